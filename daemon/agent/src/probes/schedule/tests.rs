//! The order of probes.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use holdfast_core::facts::Conditions;
use holdfast_core::hold::{Bound, HeldBackend, ProbeState};
use holdfast_core::list::Row;
use holdfast_core::snapshot::Reason;

use super::super::addresses::ADDRESS_GAP;
use super::*;
use holdfast_fixtures::{clock, many};

/// A held list with this many backends of a service, since `begun`.
fn hold(service: u8, backends: u8, begun: i64) -> Hold {
    let backend = |number: u8| {
        let address = IpAddr::from([10, 0, service, number]);
        let row = Row::new(address, NonZeroU16::MIN, Conditions::READY, 0, 0);
        HeldBackend { is_open: true, ..HeldBackend::new(row, ProbeState::Due) }
    };
    Hold {
        reason: Reason::Vanished,
        begun: Uptime(begun),
        first_probe: None,
        bound_restarted: None,
        bound_reached: None,
        bound: Bound::Guarded,
        slices: Arc::default(),
        backends: (0..backends).map(backend).collect(),
    }
}

/// A test's clock, snapshot and schedule.
struct ScheduleHarness {
    schedule: Schedule,
    snapshot: Snapshot,
    now: Instant,
}

impl ScheduleHarness {
    fn new() -> Self {
        Self { schedule: Schedule::default(), snapshot: many(100, 1), now: clock::now().into() }
    }

    /// Holds a service's list with this many backends; with none, ends the hold.
    fn hold(&mut self, service: u8, backends: u8, begun: i64) {
        let id = ServiceId(service.into());
        let mut view = ServiceView::clone(self.snapshot.services.get(id).unwrap());
        view.ports[0].hold = (backends > 0).then(|| Arc::new(hold(service, backends, begun)));
        self.snapshot.services.set(id, Some(Arc::new(view)));
        let held = Arc::make_mut(&mut self.snapshot.held);
        let _ = if backends > 0 { held.insert(id) } else { held.remove(&id) };
    }

    fn look(&mut self) {
        self.schedule.follow(&self.snapshot, self.now, &|| Duration::ZERO);
    }

    /// The next turns, one per second, as far as they are due: the service and the backend of each.
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
fn one_backend_of_every_list_is_probed_before_any_second() {
    let mut fixture = ScheduleHarness::new();
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
    assert_eq!(fixture.turns(1), [], "and again once due");
    fixture.now += Duration::from_secs(990);
    assert_eq!(fixture.turns(20).len(), 12);
}

#[test]
fn a_list_without_a_probe_goes_first() {
    let mut fixture = ScheduleHarness::new();
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
    let mut fixture = ScheduleHarness::new();
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
    let mut fixture = ScheduleHarness::new();
    fixture.hold(1, 200, 0);
    fixture.hold(2, 50, 0);
    fixture.look();
    let services = fixture.services(80);
    assert_eq!(services.iter().filter(|it| **it == 2).count(), 40, "{services:?}");
}

#[test]
fn a_list_that_is_no_longer_held_is_dropped() {
    let mut fixture = ScheduleHarness::new();
    (0..4).for_each(|service| fixture.hold(service, 2, 0));
    fixture.look();
    fixture.turns(5);
    fixture.hold(1, 0, 0);
    fixture.hold(2, 1, 0);
    fixture.look();
    let lists = fixture.schedule.namespaces.values().flat_map(|lists| lists.all.values());
    let lists: Vec<_> = lists.map(|list| (list.due.len(), list.due_times.len())).collect();
    assert_eq!(lists, [(2, 2), (1, 1), (2, 2)]);
    assert_eq!((fixture.schedule.turns.len(), fixture.schedule.services.len()), (3, 3));
    (0..4).for_each(|service| fixture.hold(service, 0, 0));
    fixture.look();
    let Schedule { turns, namespaces, services: seen, .. } = &fixture.schedule;
    assert_eq!((turns.len(), namespaces.len(), seen.len()), (0, 0, 0));
}

#[test]
fn a_list_that_returned_and_was_lost_again_is_a_new_one() {
    let mut fixture = ScheduleHarness::new();
    (0..3).for_each(|service| fixture.hold(service, 1, 0));
    fixture.look();
    assert_eq!(fixture.services(9).len(), 3);
    fixture.hold(1, 1, 7);
    fixture.look();
    assert_eq!(fixture.services(9), [1]);
}

#[test]
fn a_new_service_with_a_reused_id_is_another_one() {
    let mut fixture = ScheduleHarness::new();
    fixture.hold(1, 1, 0);
    fixture.look();
    assert_eq!(fixture.services(9), [1]);
    let mut view = ServiceView::clone(fixture.snapshot.services.get(ServiceId(1)).unwrap());
    view.key = fixture.snapshot.services.get(ServiceId(50)).unwrap().key.clone();
    fixture.snapshot.services.set(ServiceId(1), Some(Arc::new(view)));
    fixture.look();
    assert_eq!((fixture.services(9), fixture.schedule.turns.len()), (vec![1], 1));
}

/// Holds this many ports at one address of a service in that namespace.
fn hold_ports(fixture: &mut ScheduleHarness, service: u8, namespace: &str, ports: u16) {
    hold_at(fixture, service, namespace, &[9], ports);
}

/// Holds this many ports at each of these addresses.
fn hold_at(fixture: &mut ScheduleHarness, service: u8, namespace: &str, addresses: &[u8], ports: u16) {
    fixture.hold(service, 1, 0);
    let mut view = ServiceView::clone(fixture.snapshot.services.get(ServiceId(service.into())).unwrap());
    let name = format!("s-{service}");
    view.key.name = holdfast_core::keys::ObjectName::new(namespace, &name).unwrap();
    let all = addresses.iter().flat_map(|last| (1..=ports).map(move |port| ([10, 9, 9, *last], port)));
    let row = |(address, port): ([u8; 4], u16)| {
        Row::new(address.into(), NonZeroU16::new(port).unwrap(), Conditions::READY, 0, 0)
    };
    let backend = |it| HeldBackend { is_open: true, ..HeldBackend::new(row(it), ProbeState::Due) };
    let mut held = hold(service, 0, 0);
    held.backends = all.map(backend).collect();
    view.ports[0].hold = Some(Arc::new(held));
    fixture.snapshot.services.set(ServiceId(service.into()), Some(Arc::new(view)));
}

/// The backends probed within a time: the moment, the namespace, and the port.
fn asked_within(fixture: &mut ScheduleHarness, time: Duration) -> Vec<(Instant, String, u16)> {
    let end = fixture.now + time;
    let mut asked = Vec::new();
    while let Some(at) = fixture.schedule.next(fixture.now).filter(|at| *at <= end) {
        fixture.now = at;
        if let Some(target) = fixture.schedule.take_first(at, at + Duration::from_secs(2)) {
            let namespace = target.list.service.name.namespace().to_owned();
            asked.push((at, namespace, target.backend.port()));
        }
        fixture.now += Duration::from_millis(2);
    }
    asked
}

#[test]
fn one_address_is_probed_a_few_times_per_second_despite_many_lists() {
    let mut fixture = ScheduleHarness::new();
    (0..20).for_each(|service| hold_ports(&mut fixture, service, "tenant", 200));
    fixture.look();
    let asked = asked_within(&mut fixture, Duration::from_secs(10));
    assert!((25..=32).contains(&asked.len()), "{}", asked.len());
    let apart = asked.windows(2).map(|two| two[1].0 - two[0].0).min().unwrap();
    assert!(apart >= ADDRESS_GAP, "{apart:?}");
}

#[test]
fn thousands_of_ports_at_an_address_do_not_starve_other_namespaces() {
    let mut fixture = ScheduleHarness::new();
    (0..20).for_each(|service| hold_ports(&mut fixture, service, "tenant", 200));
    fixture.look();
    asked_within(&mut fixture, Duration::from_secs(5));
    hold_ports(&mut fixture, 50, "bystander", 1);
    fixture.hold(60, 1, 0);
    fixture.look();
    let asked = asked_within(&mut fixture, Duration::from_secs(10));
    let of = |namespace: &str| asked.iter().filter(|(_, of, _)| of == namespace).count();
    assert!((4..=6).contains(&of("bystander")), "every two seconds, as if it were alone: {asked:?}");
    let others = asked.len() - of("bystander") - of("tenant");
    assert!(others >= 5, "and other addresses do not wait: {asked:?}");
}

#[test]
fn a_waiting_backend_is_dropped_with_its_list() {
    let mut fixture = ScheduleHarness::new();
    (0..5).for_each(|service| hold_ports(&mut fixture, service, "tenant", 50));
    fixture.look();
    asked_within(&mut fixture, Duration::from_secs(3));
    (0..5).for_each(|service| fixture.hold(service, 0, 0));
    fixture.look();
    assert_eq!(asked_within(&mut fixture, Duration::from_secs(10)), []);
    let Schedule { pausing, turns, namespaces, addresses, .. } = &fixture.schedule;
    assert_eq!((pausing.len(), turns.len(), namespaces.len(), addresses.len()), (0, 0, 0, 0));
}

#[test]
fn a_claimed_backend_is_probed_out_of_turn_once() {
    let mut fixture = ScheduleHarness::new();
    fixture.hold(1, 3, 0);
    fixture.look();
    assert_eq!(fixture.turns(9).len(), 3);
    for expected in [vec![(1, 2)], vec![]] {
        let mut view = ServiceView::clone(fixture.snapshot.services.get(ServiceId(1)).unwrap());
        let mut held = Hold::clone(view.ports[0].hold.as_ref().unwrap());
        held.backends[2].is_claimed = true;
        view.ports[0].hold = Some(Arc::new(held));
        fixture.snapshot.services.set(ServiceId(1), Some(Arc::new(view)));
        fixture.look();
        assert_eq!(fixture.turns(9), expected);
    }
}

#[test]
fn a_backend_that_may_not_be_probed_gets_no_turn() {
    let mut fixture = ScheduleHarness::new();
    fixture.hold(1, 3, 0);
    let mut view = ServiceView::clone(fixture.snapshot.services.get(ServiceId(1)).unwrap());
    let mut held = Hold::clone(view.ports[0].hold.as_ref().unwrap());
    held.backends[0].is_open = false;
    held.backends[2].is_open = false;
    view.ports[0].hold = Some(Arc::new(held));
    fixture.snapshot.services.set(ServiceId(1), Some(Arc::new(view)));
    fixture.look();
    assert_eq!(fixture.turns(9), [(1, 1)]);
}

#[test]
fn a_new_list_begins_after_its_pause_and_not_all_nodes_at_once() {
    let mut begun: Vec<Duration> = Vec::new();
    for node in 0..40_u64 {
        let mut fixture = ScheduleHarness::new();
        fixture.hold(1, 1, 0);
        let pause = Duration::from_millis(node * 50);
        fixture.schedule.follow(&fixture.snapshot, fixture.now, &|| pause);
        let at = fixture.schedule.next(fixture.now).unwrap();
        assert!(fixture.schedule.take_first(at, at + Duration::from_secs(2)).is_some());
        begun.push(at - fixture.now);
    }
    assert_eq!((begun[0], begun[39]), (Duration::ZERO, Duration::from_millis(1_950)));
}

#[test]
fn backends_at_free_addresses_are_not_delayed_by_waiting_ones() {
    let mut fixture = ScheduleHarness::new();
    let addresses: Vec<u8> = (0..=254).collect();
    (0..8).for_each(|service| hold_at(&mut fixture, service, "tenant", &addresses, 20));
    fixture.look();
    asked_within(&mut fixture, Duration::from_secs(20));
    (50..60).for_each(|service| fixture.hold(service, 1, 0));
    fixture.look();
    let asked = asked_within(&mut fixture, Duration::from_secs(10));
    let others = asked.iter().filter(|(_, of, _)| of != "tenant").count();
    assert!(others >= 40, "{others} of {}", asked.len());
    assert!(asked.len() > 4_000, "and no time is lost: {}", asked.len());
}

#[test]
fn waiting_backends_are_not_delayed_by_those_at_free_addresses() {
    let mut fixture = ScheduleHarness::new();
    (0..60).for_each(|service| fixture.hold(service, 200, 0));
    (60..62).for_each(|service| hold_ports(&mut fixture, service, "tenant", 20));
    fixture.look();
    let asked = asked_within(&mut fixture, Duration::from_secs(10));
    let waited = asked.iter().filter(|(_, of, _)| of == "tenant").count();
    assert!(waited >= 20, "{waited} of {}: three a second at that address", asked.len());
    assert!(asked.len() > 4_000, "and no time is lost: {}", asked.len());
}

/// Holds this many lists of a service, one for each of its ports, each with this many backends. `address` makes a
/// backend's address from the numbers of the list and the backend.
fn hold_lists(
    fixture: &mut ScheduleHarness,
    (service, namespace): (u8, &str),
    lists: u16,
    backends: u8,
    address: fn(u16, u8) -> [u8; 4],
) {
    hold_ports(fixture, service, namespace, 1);
    let mut view = ServiceView::clone(fixture.snapshot.services.get(ServiceId(service.into())).unwrap());
    let row = |list, backend| {
        let port = NonZeroU16::new(list + 1).unwrap();
        Row::new(address(list, backend).into(), port, Conditions::READY, 0, 0)
    };
    let held = |list| {
        let backend = |it| HeldBackend { is_open: true, ..HeldBackend::new(row(list, it), ProbeState::Due) };
        Hold { backends: (0..backends).map(backend).collect(), ..hold(service, 0, 0) }
    };
    let port = |list: u16| {
        let mut port = PortView::clone(&view.ports[0]);
        port.key.name = format!("p-{list:05}").into();
        port.hold = Some(Arc::new(held(list)));
        port
    };
    view.ports = (0..lists).map(port).collect();
    fixture.snapshot.services.set(ServiceId(service.into()), Some(Arc::new(view)));
}

/// How often a namespace's backends are probed within this many seconds.
fn asked_of(fixture: &mut ScheduleHarness, namespace: &str, seconds: u64) -> usize {
    let asked = asked_within(fixture, Duration::from_secs(seconds));
    asked.iter().filter(|(_, of, _)| of == namespace).count()
}

/// Gives each backend of each list its own address.
fn apart(list: u16, backend: u8) -> [u8; 4] {
    let [high, low] = list.to_be_bytes();
    [100 + backend, 0, high, low]
}

#[test]
fn thousands_of_held_lists_delay_no_probe_of_another_namespace() {
    let mut fixture = ScheduleHarness::new();
    hold_lists(&mut fixture, (1, "tenant"), 3_000, 10, apart);
    hold_at(&mut fixture, 60, "bystander", &[1, 2, 3], 1);
    fixture.look();
    let asked = asked_of(&mut fixture, "bystander", 20);
    assert!((29..=33).contains(&asked), "each of three every two seconds, as if it were alone: {asked}");
    let asked = asked_within(&mut fixture, Duration::from_secs(10)).len();
    assert!(asked > 4_900, "and no turn is lost: {asked}");
}

#[test]
fn new_lists_of_one_namespace_do_not_starve_another() {
    let mut fixture = ScheduleHarness::new();
    hold_at(&mut fixture, 60, "bystander", &[1, 2, 3], 1);
    hold_ports(&mut fixture, 70, "neighbour", 2);
    fixture.look();
    asked_of(&mut fixture, "bystander", 2);
    hold_lists(&mut fixture, (1, "tenant"), 3_000, 1, apart);
    fixture.look();
    let asked = asked_within(&mut fixture, Duration::from_secs(6));
    let of = |namespace: &str| asked.iter().filter(|(_, of, _)| of == namespace).count();
    assert!(of("bystander") >= 8 && of("neighbour") >= 5, "{} and {}", of("bystander"), of("neighbour"));
    assert!(of("tenant") > 2_900, "while they are served: {}", of("tenant"));
}

#[test]
fn a_waiting_backend_does_not_wait_for_another_namespaces_addresses() {
    let mut fixture = ScheduleHarness::new();
    let shared = |list: u16, backend: u8| apart(list % 1_000, backend);
    hold_lists(&mut fixture, (1, "tenant"), 20_000, 2, shared);
    hold_ports(&mut fixture, 60, "bystander", 2);
    fixture.look();
    asked_of(&mut fixture, "bystander", 40);
    let asked = asked_of(&mut fixture, "bystander", 20);
    assert!((18..=22).contains(&asked), "each of two ports of an address every two seconds: {asked}");
}
