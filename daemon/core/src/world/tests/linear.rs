//! The work of one service grows no faster than the service: counted, not timed.

use core::net::Ipv4Addr;
use std::format;

use super::*;
use crate::snapshot::Status;
use crate::work;

/// The size of a service.
#[derive(Clone, Copy, Debug)]
struct Size {
    ports: u16,
    addresses: u32,
    slices: u32,
    endpoints: u32,
    affinity: bool,
}

const ONE: Size = Size { ports: 1, addresses: 1, slices: 1, endpoints: 1, affinity: false };

impl Size {
    fn port_name(self, port: u16) -> Arc<str> {
        if self.ports == 1 { "".into() } else { format!("p{port:04}").into() }
    }

    /// `first`: the first address, so that a change moves every row.
    fn service(self, first: u32) -> Event {
        let port = |number: u16| ServicePort {
            name: self.port_name(number),
            protocol: Protocol::TCP,
            port: NonZeroU16::new(1_000 + number).unwrap(),
            node_port: None,
        };
        let address = |position: u32| IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 + first + position));
        applied(ServiceFacts {
            external_ips: (0..self.addresses).map(address).collect(),
            ports: (0..self.ports).map(port).collect(),
            affinity_timeout: self.affinity.then_some(10),
            ..service("a", "10.0.0.1", &[])
        })
    }

    fn slice(self, slice: u32, first: u32) -> Event {
        let mut builder = EndpointsBuilder::new(Family::V4);
        for position in 0..self.endpoints {
            let address = IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 + (slice << 14) + first + position));
            let conditions = Conditions::READY;
            let endpoint =
                Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
            builder.push(endpoint).unwrap();
        }
        let port = |number| SlicePort {
            name: self.port_name(number),
            protocol: Protocol::TCP,
            port: NonZeroU16::new(8_080).unwrap(),
        };
        Event::SliceApplied(Arc::new(SliceFacts {
            ports: (0..self.ports).map(port).collect(),
            endpoints: builder.finish(),
            ..slice_facts(&format!("a-{slice:04}"), "a", &[])
        }))
    }

    fn slices(self, first: u32) -> impl Iterator<Item = Event> {
        (0..self.slices).map(move |slice| self.slice(slice, first))
    }

    /// Added, all rows moved, all endpoints changed, refused for a while, found by a restart, deleted.
    fn life(self) -> u64 {
        let capacity = Capacity { slots: 1 << 20, ports: 1 << 14, ..Capacity::default() };
        let mut rig = Rig::with(capacity);
        work::take();
        rig.turn([self.service(0)].into_iter().chain(self.slices(0)).collect());
        assert!(rig.log.len() > 2, "nothing was written for {self:?}");
        rig.turn(vec![self.service(1)]);
        rig.grace();
        rig.turn(self.slices(1).collect());
        rig.refuse = |op| matches!(op.action, Action::InsertFrontend(..) | Action::PublishWord(..));
        rig.turn([self.service(2)].into_iter().chain(self.slices(2)).collect());
        rig.refuse = |_| false;
        rig.retry(rig.id("a"));
        rig.turn(vec![]);
        rig.grace();
        let mut later = Rig::with(capacity);
        later.world.adopt(&rig.dump());
        later.turn([self.service(2)].into_iter().chain(self.slices(2)).collect());
        assert_eq!(later.log, [], "a restart finds its lists");
        later.turn(vec![deleted("a")]);
        (0..4).for_each(|_| drop(later.grace()));
        work::take()
    }
}

#[track_caller]
fn check(small: Size, large: Size) {
    let (a, b) = (small.life(), large.life());
    assert!(b * 10 <= a * 22, "twice the size costs {b} instead of {a}: {small:?}, {large:?}");
}

#[test]
fn invariant_10_work_is_linear_in_the_ports_of_a_service() {
    let of = |ports| Size { ports, ..ONE };
    check(of(1_000), of(2_000));
    check(Size { endpoints: 50, ..of(100) }, Size { endpoints: 50, ..of(50 * 4) });
}

#[test]
fn invariant_10_work_is_linear_in_the_addresses_of_a_service() {
    let of = |addresses| Size { addresses, endpoints: 20, ..ONE };
    check(of(1_000), of(2_000));
}

#[test]
fn invariant_10_work_is_linear_in_ports_times_addresses() {
    let of = |ports, addresses| Size { ports, addresses, ..ONE };
    check(of(45, 45), of(64, 63));
}

#[test]
fn invariant_10_work_is_linear_in_the_endpoints_of_a_service() {
    let of = |endpoints| Size { endpoints, addresses: 50, affinity: true, ..ONE };
    check(of(1_000), of(2_000));
}

#[test]
fn invariant_10_work_is_linear_in_the_slices_of_a_service() {
    let of = |slices| Size { slices, endpoints: 5, ports: 3, ..ONE };
    check(of(200), of(400));
}

/// The work of a start over the maps of so many services, each a piece of its own.
fn start_over(services: u32) -> u64 {
    let names: Vec<_> = (0..services).map(|number| format!("s-{number}")).collect();
    let events = || {
        let address = |number: u32| format!("{}", Ipv4Addr::from_bits(0x0a00_0001 + number));
        let told = |(number, name): (u32, &std::string::String)| {
            [applied(service(name, &address(number), &[])), slice(name, &["1.1.1.1"])]
        };
        (0..).zip(&names).flat_map(told).collect()
    };
    let capacity = Capacity { slots: 1 << 12, ports: 1 << 12, ..Capacity::default() };
    let mut rig = Rig::with(capacity);
    rig.turn(events());
    let mut later = Rig::with(capacity);
    later.world.queue.most = 1;
    let dump = rig.dump();
    assert_eq!(dump.frontends.len(), names.len());
    work::take();
    later.world.adopt(&dump);
    later.turn(events());
    let mut pieces = 1;
    while later.world.has_dirty() {
        assert_eq!(later.log, [], "a start finds its lists");
        later.turn(vec![]);
        pieces += 1;
    }
    assert!(pieces >= services, "{pieces} pieces");
    work::take()
}

#[test]
fn invariant_10_a_start_is_linear_in_the_services_of_the_maps() {
    let (small, large) = (start_over(1_000), start_over(2_000));
    assert!(large * 10 <= small * 24, "twice as many services cost {large} instead of {small}");
}

#[test]
fn invariant_10_demand_of_one_object_beyond_its_bound_costs_nothing() {
    let of = |ports, addresses| Size { ports, addresses, ..ONE };
    let (small, large) = (of(300, 300), of(1_000, 400));
    let (a, b) = (small.life(), large.life());
    assert!(b < a * 2, "{large:?} costs {b}, {small:?} costs {a}");
}

#[test]
fn invariant_10_rows_of_one_service_beyond_their_bound_cost_nothing() {
    let work_of = |slices| {
        let size = Size { ports: 50, slices, endpoints: 200, ..ONE };
        let mut world = World::new(Seed(0), Capacity::default(), &[SOURCE]);
        world.apply(Event::Synced(SOURCE));
        world.apply(size.service(0));
        size.slices(0).for_each(|slice| world.apply(slice));
        work::take();
        world.decide(at(1));
        work::take()
    };
    let (small, large) = (work_of(30), work_of(60));
    assert!(large * 10 <= small * 12, "300,000 rows cost {small}, 600,000 cost {large}");
}

/// The work of one piece of decisions: six services have lost their lists, and each has so many slices that a label
/// hides or whose ports belong to no service.
fn work_beside(hides: bool, slices: u32, of: Size) -> u64 {
    let mut rig = Rig::new();
    rig.world.queue.most = limits::PIECE_WORK;
    rig.turn(vec![settings(crate::hold::OnEmpty::Auto)]);
    let names: Vec<_> = (1..=6).map(|number| format!("s-{number}")).collect();
    let facts = |name: &std::string::String| service(name, &format!("10.0.0.{}", &name[2..]), &[]);
    let Event::SliceApplied(beside) = of.slice(0, 0) else { unreachable!() };
    for name in &names {
        rig.turn(vec![applied(facts(name)), slice(name, &["1.1.1.1"])]);
        for number in 0..slices {
            let own = slice_facts(&format!("{name}-{number}"), name, &[]);
            let (ports, endpoints) = (beside.ports.clone(), beside.endpoints.clone());
            rig.world.apply(Event::SliceApplied(Arc::new(SliceFacts {
                ports,
                endpoints,
                headless: hides,
                ..own
            })));
        }
        rig.turn(vec![slice(name, &[])]);
    }
    (0..60).for_each(|_| drop(rig.grace()));
    let annotated = |name| ServiceFacts { on_empty: Some("auto".into()), ..facts(name) };
    names.iter().for_each(|name| rig.world.apply(applied(annotated(name))));
    let now = rig.clock();
    work::take();
    rig.world.decide(now);
    work::take()
}

#[test]
fn invariant_10_a_decisions_lookups_count_as_work_of_a_piece() {
    let rows = limits::ROWS_PER_SERVICE_MAX as u64;
    let hidden = work_beside(true, 7, Size { endpoints: 10_000, ..ONE });
    assert!((rows..2 * rows).contains(&hidden), "{hidden} for addresses that a label hides");
    let ports = work_beside(false, 200, Size { ports: 1_000, ..ONE });
    assert!((rows..5 * rows).contains(&ports), "{ports} for ports of no service");
}

/// The work of renaming so many ports in reverse order while no index is free.
fn work_of_names(ports: u32) -> u64 {
    let named = |letter: char, number: u32| ServicePort {
        name: format!("{letter}{number:05}").into(),
        port: NonZeroU16::new(u16::try_from(1 + number).unwrap()).unwrap(),
        ..service("web", "10.2.0.1", &[]).ports[0].clone()
    };
    let mut rig = Rig::with(Capacity { slots: 64, ports, ..Capacity::default() });
    let web = |ports: Vec<ServicePort>| applied(ServiceFacts { ports, ..service("web", "10.2.0.1", &[]) });
    rig.turn(vec![web((0..ports).map(|it| named('a', it)).collect())]);
    work::take();
    let snapshot = rig.turn(vec![web((0..ports).map(|it| named('z', ports - 1 - it)).collect())]);
    let work = work::take();
    let failed = snapshot.services.iter().flat_map(|view| view.frontends.iter());
    assert_eq!(failed.filter(|row| row.status != Status::Done).count(), 0);
    work
}

#[test]
fn invariant_10_renaming_all_ports_takes_linear_work() {
    let (small, large) = (work_of_names(200), work_of_names(400));
    assert!(large * 10 <= small * 22, "{small} for 200 ports, {large} for 400");
}
