//! Who is asked before whom.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use holdfast_core::facts::Conditions;
use holdfast_core::hold::{Asked, Bound, HeldBackend};
use holdfast_core::list::Row;
use holdfast_core::snapshot::Reason;

use super::*;
use crate::admin::tests::fixture::many;

/// The list of this many backends of a service, held since then.
fn hold(service: u8, backends: u8, begun: i64) -> Hold {
    let backend = |number: u8| {
        let address = IpAddr::from([10, 0, service, number]);
        let row = Row::new(address, NonZeroU16::MIN, Conditions::READY, 0, 0);
        HeldBackend { row, asked: Asked::Due, answered: false, failures: 0, lost: None }
    };
    Hold {
        reason: Reason::Vanished,
        begun: Uptime(begun),
        asked: None,
        bound: Bound::Guarded,
        slices: Arc::default(),
        backends: (0..backends).map(backend).collect(),
    }
}

/// Time and what is held, in the hand of a test.
struct Fixture {
    schedule: Schedule,
    snapshot: Snapshot,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self { schedule: Schedule::default(), snapshot: many(100, 1), now: Instant::now() }
    }

    /// A service's list is held since then, with so many backends; with none, it is held no more.
    fn hold(&mut self, service: u8, backends: u8, begun: i64) {
        let index = usize::from(service);
        let mut view = ServiceView::clone(self.snapshot.services.get(index).unwrap());
        view.ports[0].hold = (backends > 0).then(|| Arc::new(hold(service, backends, begun)));
        self.snapshot.services.set(index, Some(Arc::new(view)));
        let held = Arc::make_mut(&mut self.snapshot.held);
        let id = ServiceId(service.into());
        let _ = if backends > 0 { held.insert(id) } else { held.remove(&id) };
    }

    fn look(&mut self) {
        self.schedule.follow(&self.snapshot, self.now);
    }

    /// The next turns, one each second, as far as they are due: the service and the backend of each.
    fn turns(&mut self, count: usize) -> Vec<(u8, u8)> {
        let turn = |_| {
            self.now += Duration::from_secs(1);
            let again = self.now + Duration::from_secs(1_000);
            let is_due = self.schedule.next(self.now).is_some_and(|at| at <= self.now);
            let target = is_due.then(|| self.schedule.take_first(self.now, again))??;
            let IpAddr::V4(address) = target.backend.ip() else { return None };
            let [.., service, backend] = address.octets();
            Some((service, backend))
        };
        (0..count).map_while(turn).collect()
    }

    fn services(&mut self, count: usize) -> Vec<u8> {
        self.turns(count).into_iter().map(|(service, _)| service).collect()
    }
}

#[test]
fn one_of_every_list_is_asked_before_a_second_one_of_any() {
    let mut fixture = Fixture::new();
    (0..4).for_each(|service| fixture.hold(service, 3, 0));
    fixture.look();
    let mut turns = fixture.turns(12);
    for round in turns.chunks(4) {
        let services: BTreeSet<_> = round.iter().map(|(service, _)| *service).collect();
        assert_eq!(services.len(), 4, "{turns:?}");
    }
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns.len(), 12, "each of them once");
    assert_eq!(fixture.turns(1), [], "and again when its time has come");
    fixture.now += Duration::from_secs(990);
    assert_eq!(fixture.turns(20).len(), 12);
}

#[test]
fn a_list_that_nobody_asked_goes_before_all_others() {
    let mut fixture = Fixture::new();
    (0..3).for_each(|service| fixture.hold(service, 20, 0));
    fixture.look();
    fixture.turns(10);
    fixture.hold(9, 2, 0);
    fixture.look();
    assert_eq!(fixture.services(1), [9]);
    assert_eq!(fixture.services(4).iter().filter(|it| **it == 9).count(), 1, "and then like any other");
}

#[test]
fn a_few_lists_do_not_wait_for_the_first_turns_of_many() {
    let mut fixture = Fixture::new();
    (10..90).for_each(|service| fixture.hold(service, 5, 0));
    fixture.look();
    fixture.turns(20);
    fixture.hold(95, 1, 0);
    fixture.look();
    assert!(fixture.services(2).contains(&95));
    // Nor do the many wait for few after few.
    let mut seen = BTreeSet::new();
    for service in 0..10 {
        fixture.hold(service, 1, 0);
        fixture.look();
        seen.extend(fixture.services(2));
    }
    assert!(seen.range(10..90).count() >= 9 && seen.range(..10).count() >= 9, "{seen:?}");
}

#[test]
fn a_large_list_takes_no_more_turns_than_a_small_one_that_is_due() {
    let mut fixture = Fixture::new();
    fixture.hold(1, 200, 0);
    fixture.hold(2, 50, 0);
    fixture.look();
    let services = fixture.services(80);
    assert_eq!(services.iter().filter(|it| **it == 2).count(), 40, "{services:?}");
}

#[test]
fn what_is_not_held_any_more_is_forgotten() {
    let mut fixture = Fixture::new();
    (0..4).for_each(|service| fixture.hold(service, 2, 0));
    fixture.look();
    fixture.turns(5);
    fixture.hold(1, 0, 0);
    fixture.hold(2, 1, 0);
    fixture.look();
    let lists: Vec<_> =
        fixture.schedule.lists.values().map(|list| (list.due.len(), list.known.len())).collect();
    assert_eq!(lists, [(2, 2), (1, 1), (2, 2)]);
    assert_eq!((fixture.schedule.turns.len(), fixture.schedule.seen.len()), (3, 3));
    (0..4).for_each(|service| fixture.hold(service, 0, 0));
    fixture.look();
    let Schedule { turns, lists, seen, .. } = &fixture.schedule;
    assert_eq!((turns.len(), lists.len(), seen.len()), (0, 0, 0));
}

#[test]
fn a_list_that_returned_and_was_lost_again_is_a_new_one() {
    let mut fixture = Fixture::new();
    (0..3).for_each(|service| fixture.hold(service, 1, 0));
    fixture.look();
    assert_eq!(fixture.services(9).len(), 3);
    fixture.hold(1, 1, 7);
    fixture.look();
    assert_eq!(fixture.services(9), [1]);
}

#[test]
fn another_service_in_the_same_place_is_not_taken_for_the_one_before() {
    let mut fixture = Fixture::new();
    fixture.hold(1, 1, 0);
    fixture.look();
    assert_eq!(fixture.services(9), [1]);
    let mut view = ServiceView::clone(fixture.snapshot.services.get(1).unwrap());
    view.key = fixture.snapshot.services.get(50).unwrap().key.clone();
    fixture.snapshot.services.set(1, Some(Arc::new(view)));
    fixture.look();
    assert_eq!((fixture.services(9), fixture.schedule.lists.len()), (vec![1], 1));
}
