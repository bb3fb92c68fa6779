//! Before a hold expires, the apiserver is asked whether the endpoints are back.

use core::time::Duration;

use super::*;
use crate::hold::{QUERY_SECONDS, UNANSWERED_LIMIT};
use crate::keys::Transport;
use crate::snapshot::{Reason, Verdict};
use crate::time::Uptime;
use crate::world::SavedSnapshot;

const APISERVER: Source = Source::Kubernetes;

/// A world with a UDP service whose only endpoint the apiserver has just lost.
struct Lost {
    rig: Rig,
    last: Snapshot,
}

fn by_udp() -> ServiceFacts {
    let mut facts = service("a", "10.0.0.1", &[]);
    facts.key.source = APISERVER;
    facts.ports.iter_mut().for_each(|port| port.protocol = Protocol::Transport(Transport::Udp));
    facts
}

fn told(endpoints: &[&str]) -> Event {
    let mut facts = slice_facts("a", "a", endpoints);
    facts.key.source = APISERVER;
    let udp = |port: &SlicePort| SlicePort { protocol: Protocol::Transport(Transport::Udp), ..port.clone() };
    facts.ports = facts.ports.iter().map(udp).collect();
    Event::SliceApplied(Arc::new(facts))
}

fn world() -> World {
    World::new(Seed(0), Capacity { slots: 256, ports: 64, ..Capacity::default() }, &[APISERVER])
}

impl Lost {
    fn new() -> Self {
        let mut rig = Rig::new();
        rig.world = world();
        rig.world.queue.most = u64::MAX;
        rig.turn(vec![
            settings(OnEmpty::Auto),
            applied(by_udp()),
            told(&["1.1.1.1"]),
            Event::Synced(APISERVER),
        ]);
        // The start counts as an interruption.
        for _ in 0..30 {
            rig.now += 3;
            rig.turn(vec![]);
        }
        let last = rig.turn(vec![told(&[])]);
        Self { rig, last }
    }

    /// Steps each second, as the engine does.
    fn wait(&mut self, seconds: i64) -> &mut Self {
        for _ in 0..seconds {
            self.last = self.rig.turn(vec![]);
        }
        self
    }

    fn tell(&mut self, events: Vec<Event>) -> &mut Self {
        self.last = self.rig.turn(events);
        self
    }

    /// The process stands still, and continues.
    fn stand_still(&mut self, seconds: i64) -> &mut Self {
        self.rig.now += seconds - 1;
        self.wait(1)
    }

    /// When the apiserver was last queried.
    fn question(&self) -> Option<Uptime> {
        self.last.queries.get(&APISERVER).copied()
    }

    /// Waits until the apiserver is queried again.
    fn ask_again(&mut self) -> &mut Self {
        let before = self.question();
        for _ in 0..40 {
            if self.question() == before {
                self.wait(1);
            }
        }
        assert!(self.question() > before, "no query follows");
        self
    }

    fn answer(&mut self) -> &mut Self {
        let question = self.question().expect("a question");
        self.tell(vec![Event::Answered(APISERVER, question)])
    }

    #[track_caller]
    fn check(&self, expected: (Verdict, Option<Reason>)) {
        let key = by_udp().key;
        let view = self.last.services.iter().find(|view| view.key == key).unwrap();
        let row = row(view, "10.0.0.1");
        assert_eq!((row.verdict, row.reason), expected);
    }

    #[track_caller]
    fn is_held(&mut self) -> &mut Self {
        self.check((Verdict::Held, Some(Reason::Vanished)));
        self
    }

    #[track_caller]
    fn is_refused(&self) {
        self.check((Verdict::Refusing, Some(Reason::HoldExpired)));
    }
}

#[test]
fn no_hold_expires_until_the_apiserver_has_answered() {
    let mut lost = Lost::new();
    lost.wait(UNANSWERED_LIMIT - 1).is_held();
    assert_eq!(lost.question(), None, "no query precedes the bound");
    lost.wait(1).is_held();
    assert!(lost.question().is_some());
    // An apiserver that hangs answers nothing.
    lost.wait(600).is_held();
    lost.ask_again().answer().wait(QUERY_SECONDS).is_refused();
}

#[test]
fn a_hold_ends_within_seconds_of_the_apiservers_answer() {
    let mut lost = Lost::new();
    lost.wait(UNANSWERED_LIMIT).is_held().answer().wait(QUERY_SECONDS - 1).is_refused();
}

#[test]
fn the_apiserver_is_queried_once_and_again_only_after_the_interval() {
    let mut lost = Lost::new();
    let first = lost.wait(UNANSWERED_LIMIT).question();
    assert_eq!(lost.wait(29).question(), first);
    lost.ask_again();
}

#[test]
fn a_silent_apiserver_restarts_the_holds_bound() {
    let mut lost = Lost::new();
    lost.wait(UNANSWERED_LIMIT).tell(vec![Event::Silent(APISERVER)]).wait(300).is_held();
    lost.tell(vec![Event::Recovered(APISERVER)]).wait(59 + UNANSWERED_LIMIT).is_held();
    lost.wait(UNANSWERED_LIMIT).ask_again().answer().wait(QUERY_SECONDS).is_refused();
}

#[test]
fn endpoints_that_returned_during_a_standstill_are_delivered_first() {
    let mut lost = Lost::new();
    lost.wait(3).stand_still(1_000).is_held();
    lost.tell(vec![told(&["1.1.1.1"])]).check((Verdict::Serving, None));
}

#[test]
fn an_answer_from_before_a_standstill_ends_no_hold() {
    let mut lost = Lost::new();
    lost.wait(UNANSWERED_LIMIT).answer().is_held();
    lost.stand_still(8).is_held();
    lost.wait(1).answer().wait(QUERY_SECONDS).is_refused();
}

#[test]
fn invariant_08_a_hold_that_expired_without_a_process_waits_for_an_answer() {
    let mut lost = Lost::new();
    lost.wait(3).is_held();
    let mut next = Rig::new();
    next.world = world();
    next.world.queue.most = u64::MAX;
    let now = ClockReading { mono: Duration::ZERO, ..lost.rig.clock() };
    next.world.restore_services(SavedSnapshot::from(&lost.last), now);
    let later = lost.rig.now + 1_000;
    (next.now, next.booted) = (later, later);
    lost.rig = next;
    lost.tell(vec![applied(by_udp()), told(&[]), Event::Synced(APISERVER)]).is_held();
    lost.wait(UNANSWERED_LIMIT + 3).is_held().ask_again().answer().wait(QUERY_SECONDS).is_refused();
}

#[test]
fn the_source_of_local_files_is_not_queried() {
    let mut rig = super::holds::rig();
    rig.turn(vec![super::holds::gone("a")]);
    rig.now += 119;
    let snapshot = rig.turn(vec![]);
    super::holds::check(&snapshot, "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
    assert!(snapshot.queries.is_empty());
}
