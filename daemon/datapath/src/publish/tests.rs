//! The protocol that publishes lists, run in every order of one writer and its reader.
//!
//! Invariant: the writer is core's planner over the stores of this module. The reader does what `bpf/lb.h` does, but
//! takes every slot of the list. Each script is explored exhaustively, and the reader must meet exactly the outcomes
//! listed here: whole lists, old or new. One reader is enough, because readers share no writes.

mod element;
mod memory;
mod reader;
mod writer;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use holdfast_core::event::Event;

use memory::{Fault, Memory};
use reader::{Met, dial};
use writer::{Writer, deleted, internal, named, service, slice};

const VIP: &str = "10.0.0.9";

/// Batches of events before any client dials, and batches while the reader dials. An empty batch lets time pass.
struct Script {
    before: Vec<Event>,
    during: Vec<Vec<Event>>,
}

/// The words of the planner's stack, sized for test builds. If it is too small, a test hangs.
const STACK: usize = 1 << 16;

/// All outcomes that a reader of the VIP meets in any order.
fn explore(script: fn() -> Script, fault: Fault) -> BTreeSet<Met> {
    let met = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&met);
    loom::model(move || {
        let seen = Arc::clone(&seen);
        let life = move || {
            let met = meet(script(), fault);
            seen.lock().unwrap().insert(met);
        };
        loom::thread::Builder::new().stack_size(STACK).spawn(life).unwrap().join().unwrap();
    });
    Arc::into_inner(met).unwrap().into_inner().unwrap()
}

/// The outcome of a reader that dials while the writer writes.
fn meet(Script { before, during }: Script, fault: Fault) -> Met {
    let memory = Memory::new(&[VIP], fault);
    let mut writer = Writer::new(&memory, fault);
    writer.step(before);
    let client = Arc::clone(&memory);
    let reader = loom::thread::spawn(move || dial(&client, VIP, fault));
    during.into_iter().for_each(|events| writer.step(events));
    reader.join().unwrap()
}

fn list(last: &[u8]) -> Met {
    Met::Served(last.to_vec())
}

#[track_caller]
fn check(script: fn() -> Script, expected: &[Met]) {
    assert_eq!(explore(script, Fault::None), expected.iter().cloned().collect());
}

/// The fault must show, otherwise the model could not have found it.
#[track_caller]
fn check_caught(script: fn() -> Script, fault: Fault, expected: &[Met]) {
    let met = explore(script, fault);
    let wrong: Vec<_> = met.iter().filter(|it| !expected.contains(it)).collect();
    assert!(!wrong.is_empty(), "{fault:?} is not caught: {met:?}");
}

fn replaced() -> Script {
    Script {
        before: vec![service("a", VIP), slice("a", &["1.1.1.1"])],
        during: vec![vec![slice("a", &["1.1.1.2", "1.1.1.3"])]],
    }
}

fn appears() -> Script {
    Script { before: vec![], during: vec![vec![service("a", VIP), slice("a", &["1.1.1.1"])]] }
}

/// The first list's range goes to another service as soon as possible.
fn reused() -> Script {
    Script {
        before: vec![service("a", VIP), slice("a", &["1.1.1.1"]), service("b", "10.0.0.2")],
        during: vec![vec![slice("a", &["1.1.1.2"])], vec![slice("b", &["2.2.2.21"])]],
    }
}

fn goes() -> Script {
    Script {
        before: vec![service("a", VIP), slice("a", &["1.1.1.1"])],
        during: vec![vec![deleted("a")], vec![], vec![]],
    }
}

/// The first service's index goes to another one as soon as possible.
fn index_reused() -> Script {
    Script {
        before: vec![service("a", VIP), slice("a", &["1.1.1.1"])],
        during: vec![vec![deleted("a")], vec![], vec![service("b", "10.0.0.2"), slice("b", &["2.2.2.21"])]],
    }
}

fn changes_hands() -> Script {
    Script {
        before: vec![
            service("a", VIP),
            slice("a", &["1.1.1.1"]),
            service("b", VIP),
            slice("b", &["2.2.2.21"]),
        ],
        during: vec![vec![deleted("a")], vec![]],
    }
}

fn renamed() -> Script {
    Script {
        before: vec![service("a", VIP), slice("a", &["1.1.1.1"])],
        during: vec![vec![named("a", VIP, "web")], vec![]],
    }
}

fn turns_local() -> Script {
    Script {
        before: vec![service("a", VIP), slice("a", &["@1.1.1.1", "1.1.1.2"])],
        during: vec![vec![internal("a", VIP)]],
    }
}

fn turns_cluster() -> Script {
    Script {
        before: vec![internal("a", VIP), slice("a", &["@1.1.1.1", "1.1.1.2"])],
        during: vec![vec![service("a", VIP)], vec![]],
    }
}

#[test]
fn invariant_04_model_a_replaced_list_is_whole() {
    check(replaced, &[list(&[1]), list(&[2, 3])]);
}

#[test]
fn invariant_04_model_a_new_frontend_has_its_list() {
    check(appears, &[Met::Passed, list(&[1])]);
}

#[test]
fn invariant_04_model_a_reader_of_a_freed_range_meets_no_other_list() {
    check(reused, &[list(&[1]), list(&[2])]);
}

#[test]
fn invariant_04_model_a_word_outlives_the_readers_of_its_frontend() {
    check(goes, &[Met::Passed, list(&[1])]);
}

#[test]
fn invariant_04_model_a_reader_of_a_freed_index_meets_no_other_list() {
    check(index_reused, &[Met::Passed, list(&[1])]);
}

#[test]
fn invariant_04_model_a_frontend_that_changes_hands_has_one_list_or_the_other() {
    check(changes_hands, &[list(&[1]), list(&[21])]);
}

#[test]
fn invariant_04_model_a_renamed_port_keeps_its_list() {
    check(renamed, &[list(&[1])]);
}

#[test]
fn invariant_04_model_a_policy_that_turns_local_shows_one_list_or_the_other() {
    check(turns_local, &[list(&[1]), list(&[1, 2])]);
}

#[test]
fn invariant_04_model_a_policy_that_turns_to_cluster_shows_one_list_or_the_other() {
    check(turns_cluster, &[list(&[1]), list(&[1, 2])]);
}

#[test]
fn invariant_04_model_finds_a_word_before_its_range() {
    check_caught(replaced, Fault::WordBeforeRange, &[list(&[1]), list(&[2, 3])]);
}

#[test]
fn invariant_04_model_finds_a_frontend_before_its_word() {
    check_caught(appears, Fault::FrontendBeforeWord, &[Met::Passed, list(&[1])]);
}

#[test]
fn invariant_04_model_finds_a_word_in_two_stores() {
    check_caught(replaced, Fault::TwoStores, &[list(&[1]), list(&[2, 3])]);
}

#[test]
fn invariant_04_model_finds_a_word_that_nothing_orders_after_its_range() {
    check_caught(replaced, Fault::Relaxed, &[list(&[1]), list(&[2, 3])]);
}

#[test]
fn invariant_04_model_finds_a_range_that_is_reused_without_grace() {
    check_caught(reused, Fault::NoGrace, &[list(&[1]), list(&[2])]);
}

#[test]
fn invariant_04_model_finds_a_word_that_is_wiped_without_grace() {
    check_caught(goes, Fault::NoGrace, &[Met::Passed, list(&[1])]);
}

#[test]
fn invariant_04_model_finds_an_index_that_is_reused_without_grace() {
    check_caught(index_reused, Fault::NoGrace, &[Met::Passed, list(&[1]), Met::Denied]);
}

#[test]
fn invariant_04_model_finds_a_local_word_that_is_read_early() {
    check_caught(turns_local, Fault::LocalEarly, &[list(&[1]), list(&[1, 2])]);
}
