//! An element of a frontend map that is freed and refilled for another key while a reader holds it: `lookup_frontend4`
//! in `bpf/lb.h`.
//!
//! Invariant: the kernel fills it from the front, as its copy does; the reader reads the target first, by a dependency.
//! The model must catch a reader with the opposite order.

use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU64, Ordering};

const OWN: u64 = 1;
const FOREIGN: u64 = 2;

struct Element {
    echo: AtomicU64,
    target: AtomicU64,
}

impl Element {
    fn fill(&self, with: u64) {
        self.echo.store(with, Ordering::Relaxed);
        self.target.store(with, Ordering::Release);
    }

    /// The target that the reader accepts; `None`: it retries.
    fn read(&self, in_order: bool) -> Option<u64> {
        let early = (!in_order).then(|| self.echo.load(Ordering::Relaxed));
        let target = self.target.load(Ordering::Acquire);
        let echo = early.unwrap_or_else(|| self.echo.load(Ordering::Relaxed));
        (echo == OWN).then_some(target)
    }
}

/// All targets that a reader accepts, in any order.
fn taken(in_order: bool) -> Vec<u64> {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&taken);
    loom::model(move || {
        let element = Arc::new(Element { echo: AtomicU64::new(OWN), target: AtomicU64::new(OWN) });
        let held = Arc::clone(&element);
        let reader = loom::thread::spawn(move || held.read(in_order));
        element.fill(FOREIGN);
        seen.lock().unwrap().extend(reader.join().unwrap());
    });
    Arc::into_inner(taken).unwrap().into_inner().unwrap()
}

#[test]
fn invariant_05_model_a_reused_element_leads_to_no_other_service() {
    assert!(taken(true).iter().all(|target| *target == OWN));
}

#[test]
fn invariant_05_model_finds_an_echo_that_is_read_before_its_target() {
    assert!(taken(false).contains(&FOREIGN));
}
