//! Everything is bounded; what exceeds a bound is named and harms nothing else.

use super::*;
use crate::facts::{ObjectKey, Rejection, Settings};
use crate::keys::{PortKey, Transport};
use crate::list::{Row, Rows};
use crate::op::FrontendType;
use crate::snapshot::Status;
use std::format;

#[test]
fn invariant_10_slices_of_one_service() {
    let mut rig = Rig::new();
    let part = |number: usize| {
        let endpoint = format!("1.1.{}.{}", number / 250, number % 250 + 1);
        Event::SliceApplied(Arc::new(slice_facts(&format!("part-{number:05}"), "a", &[&endpoint])))
    };
    rig.world.apply(applied(service("a", "10.0.0.1", &[])));
    (0..=limits::SLICES_PER_SERVICE_MAX).for_each(|number| rig.world.apply(part(number)));
    rig.world.decide(at(1));
    let snapshot = rig.world.publish(at(1));
    let too_many = slice_facts(&format!("part-{:05}", limits::SLICES_PER_SERVICE_MAX), "a", &[]).key;
    let named: Vec<_> = snapshot.rejections.named.keys().collect();
    assert_eq!(named, [&ObjectKey::Slice(too_many)]);
    let known = rig.world.tables.get(rig.id("a")).unwrap();
    assert_eq!(known.slices.len(), limits::SLICES_PER_SERVICE_MAX);
}

#[test]
fn invariant_10_named_rejections() {
    let mut rig = Rig::new();
    for number in 0..limits::REJECTIONS_MAX + 5 {
        let object = ObjectKey::File(SOURCE, format!("{number:05}").into());
        let reason = "not YAML".into();
        rig.world.apply(Event::Rejected(Rejection { object, origin: None, reason, partial: false }));
    }
    let rejections = rig.turn(vec![]).rejections;
    assert_eq!((rejections.named.len(), rejections.dropped), (limits::REJECTIONS_MAX, 5));
}

#[test]
fn invariant_10_causes_of_one_change() {
    let mut rig = Rig::new();
    let slices = (0..20).map(|last| slice("a", &[&format!("1.1.1.{}", last + 1)]));
    rig.turn([applied(service("a", "10.0.0.1", &[]))].into_iter().chain(slices).collect());
    let change = &rig.changes[0];
    assert_eq!(change.causes.len(), limits::CAUSES_PER_CHANGE_MAX);
    assert_eq!(change.suppressed as usize + change.causes.len(), 21);
}

#[test]
fn claims_of_others_do_not_displace_a_services_own_causes() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
    let id = rig.id("a");
    let claimed = || Cause::AddressClaimed("1.1.1.1:80".parse().unwrap(), service_key("b"));
    let own = |service: &crate::service::Service| {
        service.causes.iter().filter(|cause| matches!(cause, Cause::Retry)).count()
    };
    let service = rig.world.services.get_mut(id).unwrap();
    service.add_cause(claimed());
    (0..limits::CAUSES_PER_CHANGE_MAX).for_each(|_| service.add_cause(Cause::Retry));
    service.add_cause(claimed());
    assert_eq!((own(service), service.suppressed), (limits::CAUSES_PER_CHANGE_MAX, 0));
}

#[test]
fn invariant_10_frontends_beyond_the_limit_show_the_error_and_harm_no_other() {
    let mut rig = Rig::new();
    let settings =
        |frontends_max| Event::SettingsApplied(Arc::new(Settings { frontends_max, ..Settings::default() }));
    rig.turn(vec![settings(Some(1)), applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1"])]);
    let snapshot = rig.turn(vec![applied(service("b", "10.0.0.2", &[]))]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").status, Status::Done);
    assert!(matches!(row(&view(&snapshot, "b"), "10.0.0.2").status, Status::Error(_)));
    let snapshot = rig.turn(vec![settings(Some(2))]);
    assert_eq!(row(&view(&snapshot, "b"), "10.0.0.2").status, Status::Done);
}

#[test]
fn invariant_10_frontends_count_as_soon_as_they_are_planned() {
    let mut rig = Rig::new();
    let settings = Settings { frontends_max: Some(1), ..Settings::default() };
    rig.world.apply(Event::SettingsApplied(Arc::new(settings)));
    rig.world.apply(applied(service("a", "10.0.0.1", &[])));
    rig.world.apply(applied(service("b", "10.0.0.2", &[])));
    rig.world.decide(at(0));
    let mut ops = Vec::new();
    let piece = rig.world.queue.piece.to_vec();
    let planned: Vec<_> = piece.into_iter().map(|id| rig.world.plan_lists(id, &mut ops).is_ok()).collect();
    assert_eq!(planned, [true, false]);
    let inserts = ops.iter().filter(|op| matches!(op.action, Action::InsertFrontend(..)));
    assert_eq!(inserts.count(), 1);
}

#[test]
fn invariant_10_slots_and_port_indices() {
    let mut rig = Rig::new();
    rig.world = World::new(Seed(0), Capacity { slots: 2, ports: 2, ..Capacity::default() }, &[SOURCE]);
    rig.world.apply(Event::Synced(SOURCE));
    let snapshot = rig.turn(vec![
        applied(service("a", "10.0.0.1", &[])),
        slice("a", &["1.1.1.1"]),
        applied(service("b", "10.0.0.2", &[])),
        slice("b", &["1.1.1.1", "1.1.1.2", "1.1.1.3"]),
        applied(service("c", "10.0.0.3", &[])),
    ]);
    let status = |name, address| row(&view(&snapshot, name), address).status.clone();
    assert_eq!(status("a", "10.0.0.1"), Status::Done);
    assert!(matches!(status("b", "10.0.0.2"), Status::Error(_)), "three slots do not fit");
    assert!(matches!(status("c", "10.0.0.3"), Status::Error(_)), "no third index");
}

#[test]
fn invariant_10_a_list_that_a_word_cannot_count_is_not_written() {
    let row = |position: u32| {
        let address = core::net::IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0b00_0000 + position));
        let mut row = Row::new(address, NonZeroU16::MIN, Conditions::READY, 0, 0);
        row.choose(Scope::Cluster);
        row
    };
    let key = PortKey { name: "".into(), transport: Transport::Tcp, family: Family::V4 };
    let mut port = Port::new(key, &Arc::default());
    port.policy.cluster_used = true;
    for (length, is_written) in [(1 << 10, true), (1 << 20, false)] {
        // A former process may have saved a list that no slice of today can produce.
        port.rows = Arc::new(Rows::restore(&(0..length).map(row).collect::<Vec<_>>()).unwrap());
        let capacity = Capacity { slots: 1 << 20, ports: 64, ..Capacity::default() };
        let placed = Rig::with(capacity).world.space.place_list(&port, Scope::Cluster, QuotaId::default());
        assert_eq!(placed.is_ok_and(|it| it.range.is_some()), is_written, "{length} backends");
    }
}

/// A service of ports p0 and on, and slices of so many endpoints for all of them; the last endpoint is ready, the
/// others not.
fn wide(ports: u16, slices: u32, endpoints: u32) -> Vec<Event> {
    let name = |number: u16| -> Arc<str> { format!("p{number}").into() };
    let number = |number: u16| NonZeroU16::new(1_000 + number).unwrap();
    let port =
        |it| ServicePort { name: name(it), protocol: Protocol::TCP, port: number(it), node_port: None };
    let of_slice = |it| SlicePort { name: name(it), protocol: Protocol::TCP, port: number(it) };
    let part = |part: u32| {
        let mut builder = EndpointsBuilder::new(Family::V4);
        for position in 0..endpoints {
            let bits = 0x0b00_0000 + part * endpoints + position;
            let conditions = Conditions { ready: position + 1 == endpoints, ..Conditions::READY };
            let address = core::net::IpAddr::V4(core::net::Ipv4Addr::from_bits(bits));
            let endpoint =
                Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
            builder.push(endpoint).unwrap();
        }
        Event::SliceApplied(Arc::new(SliceFacts {
            ports: (0..ports).map(of_slice).collect(),
            endpoints: builder.finish(),
            ..slice_facts(&format!("wide-{part:03}"), "wide", &[])
        }))
    };
    let facts = ServiceFacts { ports: (0..ports).map(port).collect(), ..service("wide", "10.0.0.1", &[]) };
    [applied(facts)].into_iter().chain((0..slices).map(part)).collect()
}

#[test]
fn invariant_10_ports_times_endpoints_of_one_service() {
    const MAX: usize = limits::ROWS_PER_SERVICE_MAX;
    let mut rig = Rig::with(Capacity { slots: 1 << 12, ports: 64, ..Capacity::default() });
    let rows = |snapshot: &Snapshot| -> Vec<_> {
        view(snapshot, "wide").ports.iter().map(|port| port.rows.iter().len()).collect()
    };
    let mut events = wide(4, 5, 5_000);
    events.push(applied(service("other", "10.0.0.2", &[])));
    let snapshot = rig.turn(events);
    assert_eq!(rows(&snapshot), [25_000, MAX - 25_000 - MAX / 4, MAX / 8, MAX / 8], "in their order");
    let shown = view(&snapshot, "wide");
    let ready = shown.ports.iter().map(|port| port.rows.len(Scope::Cluster));
    assert_eq!(ready.collect::<Vec<_>>(), [5; 4], "ready endpoints are in each list");
    let named: Vec<_> = snapshot.rejections.named.values().map(|it| (&*it.reason, it.partial)).collect();
    let reason = "its ports times endpoints are more than 65536, so 3 of its ports have only a part of their endpoints, ready \
                  ones first; spread them over several services";
    assert_eq!(named, [(reason, true)]);
    assert_eq!(row(&view(&snapshot, "other"), "10.0.0.2").status, Status::Done, "no other service notices");
    let snapshot = rig.turn(vec![wide(4, 1, 1).swap_remove(0)]);
    assert_eq!(snapshot.rejections.named.len(), 1, "its object comes again, and is still named");
    let snapshot = rig.turn(vec![wide(2, 1, 1).swap_remove(0)]);
    assert_eq!(rows(&snapshot), [25_000; 2]);
    assert!(snapshot.rejections.named.is_empty(), "a service that fits again is no longer named");
}

#[test]
fn invariant_10_thirty_two_thousand_endpoints_fit_at_two_ports() {
    let mut rig = Rig::with(Capacity { slots: 1 << 12, ports: 64, ..Capacity::default() });
    let snapshot = rig.turn(wide(2, 32, 1_000));
    assert!(view(&snapshot, "wide").ports.iter().all(|port| port.rows.iter().len() == 32_000));
    assert!(snapshot.rejections.named.is_empty());
}

#[test]
fn invariant_06_a_rejected_object_keeps_its_last_good_version() {
    let mut rig = Rig::new();
    let facts = slice_facts("a", "a", &["1.1.1.1"]);
    let object = ObjectKey::Slice(facts.key.clone());
    let rejected = Event::Rejected(Rejection {
        object: object.clone(),
        origin: None,
        reason: "addressType is what?".into(),
        partial: false,
    });
    rig.turn(vec![
        applied(service("a", "10.0.0.1", &[])),
        slice("a", &["1.1.1.1"]),
        applied(service("b", "10.0.0.2", &[])),
        slice("b", &["1.1.1.2"]),
    ]);
    let snapshot = rig.turn(vec![rejected]);
    assert_eq!(snapshot.rejections.named.keys().collect::<Vec<_>>(), [&object]);
    assert_eq!(snapshot.rejections.total, 1);
    assert_eq!((rig.log.len(), rig.changes.len()), (0, 0), "nothing was written, nothing changed");
    let view_a = view(&snapshot, "a");
    assert_eq!(view_a.backends(row(&view_a, "10.0.0.1")).count(), 1);
    let snapshot = rig.turn(vec![slice("a", &["1.1.1.1"])]);
    assert!(snapshot.rejections.named.is_empty(), "good again, though nothing changed");
}

/// A service of a namespace with its own address and creation time.
fn tenant(namespace: &str, number: u8, created: i64) -> ServiceFacts {
    let key = ServiceKey { name: ObjectName::new(namespace, &format!("s{number}")).unwrap(), source: SOURCE };
    let meta = Meta { created: Some(Timestamp(created)), ..Meta::default() };
    ServiceFacts { key, meta, ..service("x", &format!("10.1.0.{number}"), &[]) }
}

fn served(snapshot: &Snapshot) -> Vec<std::string::String> {
    let done = |view: &&Arc<ServiceView>| view.frontends.iter().all(|row| row.status == Status::Done);
    let mut names: Vec<_> = snapshot.services.iter().filter(done).map(|it| format!("{}", it.key)).collect();
    names.sort();
    names
}

#[test]
fn invariant_10_capacity_of_a_deleted_service_is_given_in_turns() {
    let mut rig = Rig::new();
    rig.world = World::new(Seed(0), Capacity { services: 2, ..Capacity::default() }, &[SOURCE]);
    rig.world.apply(Event::Synced(SOURCE));
    rig.world.apply(settings(OnEmpty::Refuse));
    let all = [
        tenant("many", 1, 1),
        tenant("many", 2, 2),
        tenant("many", 3, 3),
        tenant("many", 4, 4),
        tenant("one", 5, 99),
    ];
    let snapshot = rig.turn(all.iter().cloned().map(applied).collect());
    assert_eq!(served(&snapshot), ["many/s1", "many/s2"]);
    assert_eq!((snapshot.rejections.named.len(), snapshot.rejections.waiting), (3, 3));
    let reason = &snapshot.rejections.named.values().next().unwrap().reason;
    assert!(reason.contains("datapath.limits.services"), "{reason}");
    let mut gone = |facts: &ServiceFacts| {
        rig.turn(vec![Event::ServiceDeleted(facts.key.clone(), None)]);
        rig.grace();
        rig.turn(vec![])
    };
    assert_eq!(served(&gone(&all[0])), ["many/s2", "one/s5"], "the namespace with the fewest");
    assert_eq!(served(&gone(&all[1])), ["many/s3", "one/s5"], "then the oldest");
    let last = gone(&all[4]);
    assert_eq!(served(&last), ["many/s3", "many/s4"]);
    assert_eq!((last.rejections.named.len(), last.rejections.waiting), (0, 0));
}

#[test]
fn invariant_10_freed_frontends_are_given_in_turns_at_once() {
    let mut rig = Rig::new();
    let settings = Settings { frontends_max: Some(2), ..Settings::default() };
    rig.turn(vec![Event::SettingsApplied(Arc::new(settings))]);
    let all = [
        tenant("many", 1, 1),
        tenant("many", 2, 2),
        tenant("many", 3, 4),
        tenant("many", 4, 3),
        tenant("one", 5, 99),
    ];
    let snapshot = rig.turn(all.iter().cloned().map(applied).collect());
    assert_eq!(served(&snapshot), ["many/s1", "many/s2"]);
    let mut gone = |facts: &ServiceFacts| {
        rig.turn(vec![Event::ServiceDeleted(facts.key.clone(), None)]);
        rig.turn(vec![])
    };
    assert_eq!(served(&gone(&all[0])), ["many/s2", "many/s4"], "the oldest of the first namespace");
    assert_eq!(served(&gone(&all[1])), ["many/s4", "one/s5"], "it is another namespace's turn");
    assert_eq!(served(&gone(&all[3])), ["many/s3", "one/s5"]);
}

/// Two services use all frontends of the limit. One belongs to another tenant, of which more services wait.
#[test]
fn invariant_10_a_service_that_moves_reuses_its_own_capacity() {
    let mut rig = Rig::new();
    let settings = Settings { frontends_max: Some(2), ..Settings::default() };
    rig.turn(vec![Event::SettingsApplied(Arc::new(settings))]);
    let mine = tenant("mine", 1, 9);
    let crowd = (2..9).map(|number| tenant("crowd", number, i64::from(number)));
    rig.turn(core::iter::once(mine.clone()).chain(crowd).map(applied).collect());
    for number in [80, 8_080, 80, 81] {
        let mut moved = mine.clone();
        moved.ports[0].port = NonZeroU16::new(number).unwrap();
        rig.turn(vec![applied(moved)]);
        let dump = rig.dump();
        let ports: Vec<_> = dump.frontends.iter().map(|(key, _)| (key.address, key.port.get())).collect();
        let of_mine = ports.iter().filter(|(address, _)| *address == mine.cluster_ips[0]);
        assert_eq!(of_mine.collect::<Vec<_>>(), [&(mine.cluster_ips[0], number)], "{ports:?}");
        assert_eq!(ports.len(), 2, "{ports:?}");
    }
}

/// A service of so many ports, each with an index and a frontend.
fn of_ports(namespace: &str, name: u8, address: &str, ports: u16) -> [Event; 2] {
    let name = ObjectName::new(namespace, &format!("s-{name}")).unwrap();
    let port = |number: u16| (format!("p{number:04}").into(), NonZeroU16::new(1_000 + number).unwrap());
    let of_service = (0..ports).map(port).map(|(name, port)| ServicePort {
        name,
        protocol: Protocol::TCP,
        port,
        node_port: None,
    });
    let of_slice = (0..ports).map(port).map(|(name, port)| SlicePort { name, protocol: Protocol::TCP, port });
    let key = ServiceKey { name: name.clone(), source: SOURCE };
    let facts = ServiceFacts { key, ports: of_service.collect(), ..service("x", address, &[]) };
    let service = Some(name.name().into());
    let key = SliceKey { name, source: SOURCE };
    let slice = SliceFacts { key, service, ports: of_slice.collect(), ..slice_facts("x", "x", &["1.1.1.1"]) };
    [applied(facts), Event::SliceApplied(Arc::new(slice))]
}

/// One namespace asks for more frontends or indices than there are, before and after others ask.
#[test]
fn invariant_10_frontends_and_indices_of_one_namespace_leave_capacity_to_another() {
    for (ports, frontends) in [(2_048, 1 << 20), (1 << 13, 2_048)] {
        let mut rig = Rig::with(Capacity { slots: 1 << 16, ports, ..Capacity::default() });
        let settings = Settings { frontends_max: Some(frontends), ..Settings::default() };
        rig.turn(vec![Event::SettingsApplied(Arc::new(settings))]);
        let count = |rig: &Rig| rig.dump().frontends.len();
        rig.turn((0..30).flat_map(|it| of_ports("crowd", it, &format!("10.1.0.{it}"), 100)).collect());
        let crowd = count(&rig);
        assert!((2_048 * 8 / 9 - 1..=2_048 * 8 / 9 + 1).contains(&crowd), "{crowd}");
        rig.turn(of_ports("web", 1, "10.2.0.1", 150).into());
        assert_eq!(count(&rig), crowd + 150);
        rig.turn(of_ports("web", 1, "10.2.0.2", 150).into());
        (0..3).for_each(|_| _ = rig.grace());
        assert!(count(&rig) >= crowd + 150, "a service that moves fits");
        let gone = (0..30).map(|it| of_ports("crowd", it, "10.1.0.1", 1)).map(|[service, _]| service);
        let gone = gone.filter_map(|event| match event {
            Event::ServiceApplied(facts) => Some(Event::ServiceDeleted(facts.key.clone(), None)),
            _ => None,
        });
        rig.turn(gone.collect());
        (0..3).for_each(|_| _ = rig.grace());
        rig.turn((0..18).flat_map(|it| of_ports("late", it, &format!("10.3.0.{it}"), 100)).collect());
        assert!(count(&rig) > 1_600, "{} after capacity came free", count(&rig));
    }
}

/// Each object is small, and each namespace leaves the next one a ninth of what it found.
#[test]
fn invariant_10_external_ips_of_many_namespaces_displace_no_cluster_ip() {
    let external = |place: u32| core::net::IpAddr::V4(core::net::Ipv4Addr::from_bits(0xc612_0000 + place));
    let of = |namespace: &str, number: u8| {
        let [service, slice] = of_ports(namespace, number, &format!("10.1.{number}.1"), 8);
        let Event::ServiceApplied(facts) = service else { panic!("{service:?}") };
        let external_ips = (0..1_000).map(|it| external(u32::from(number) * 1_000 + it)).collect();
        [applied(ServiceFacts { external_ips, ..ServiceFacts::clone(&facts) }), slice]
    };
    let mut rig = Rig::with(Capacity { slots: 1 << 16, ports: 1 << 13, ..Capacity::default() });
    let settings = Settings { frontends_max: Some(20_000), ..Settings::default() };
    rig.turn(vec![Event::SettingsApplied(Arc::new(settings))]);
    for number in 0..6 {
        rig.turn(of(&format!("crowd-{number}"), number).into());
    }
    let at_external = |rig: &Rig| {
        rig.dump().frontends.iter().filter(|(_, value)| value.kind == FrontendType::ExternalIp).count()
    };
    assert_eq!(at_external(&rig), 10_000);
    let before = rig.dump().frontends.len();
    rig.turn(of_ports("web", 9, "10.2.0.1", 500).into());
    assert_eq!(rig.dump().frontends.len(), before + 500);
    let gone = of("crowd-0", 0).map(|event| match event {
        Event::ServiceApplied(facts) => Event::ServiceDeleted(facts.key.clone(), None),
        other => other,
    });
    rig.turn(gone.into());
    (0..6).for_each(|_| _ = rig.grace());
    assert_eq!(at_external(&rig), 10_000, "others have the freed capacity");
}

/// A port's name is part of its key, so `a` is a new port; ports are planned in the order of names.
#[test]
fn invariant_10_a_port_without_capacity_stops_no_other_port() {
    let port = |name: &str, number| ServicePort {
        name: name.into(),
        protocol: Protocol::TCP,
        port: NonZeroU16::new(number).unwrap(),
        node_port: None,
    };
    let with = |ports: &[(&str, u16)], backend: &str| {
        let ports: Vec<_> = ports.iter().map(|(name, number)| port(name, *number)).collect();
        let slice_ports = ports.iter().map(|it| SlicePort {
            name: Arc::clone(&it.name),
            protocol: Protocol::TCP,
            port: NonZeroU16::new(8_080).unwrap(),
        });
        let slice = SliceFacts { ports: slice_ports.collect(), ..slice_facts("web", "web", &[backend]) };
        vec![
            applied(ServiceFacts { ports, ..service("web", "10.0.0.1", &[]) }),
            Event::SliceApplied(Arc::new(slice)),
        ]
    };
    let mut rig = Rig::with(Capacity { slots: 64, ports: 2, ..Capacity::default() });
    rig.turn(vec![applied(service("crowd", "10.0.0.9", &[]))]);
    rig.turn(with(&[("b", 80)], "1.1.1.1"));
    let snapshot = rig.turn(with(&[("a", 79), ("b", 80)], "1.1.1.2"));
    let status = |port| {
        let rows = snapshot.services.iter().flat_map(|view| view.frontends.clone());
        rows.filter(|row| row.port.get() == port).map(|row| row.status).last()
    };
    assert!(matches!(status(79), Some(Status::Error(_))), "{:?}", status(79));
    let list = |rig: &Rig| {
        let ports = &rig.world.services.get(rig.id("web")).unwrap().ports;
        let list = ports.iter().find(|port| &*port.key.name == "b").unwrap().realized.cluster.clone();
        list.rows
            .slots_in_range(Scope::Cluster, list.word.count)
            .map(|slot| slot.backend().ip())
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&rig), [ip("1.1.1.2")]);
    assert_eq!(rig.dump().frontends.len(), 2, "no frontend points to a missing port");
    rig.turn(vec![Event::ServiceDeleted(service("crowd", "10.0.0.9", &[]).key, None)]);
    for _ in 0..3 {
        rig.grace();
    }
    rig.retry(rig.id("web"));
    rig.turn(vec![]);
    assert_eq!((rig.dump().frontends.len(), list(&rig)), (2, vec![ip("1.1.1.2")]), "capacity came free");
}

/// No index is free, so the port of the new name gets the index of the old one, and with it the frontend.
#[test]
fn invariant_10_a_renamed_port_needs_no_second_index() {
    let mut rig = Rig::with(Capacity { slots: 64, ports: 2, ..Capacity::default() });
    rig.turn(vec![applied(service("crowd", "10.0.0.9", &[]))]);
    for (round, name) in ["http", "api", "zzz", "api"].into_iter().enumerate() {
        let backend = format!("1.1.1.{round}");
        let [Event::ServiceApplied(facts), Event::SliceApplied(slice)] = of_ports("web", 1, "10.2.0.1", 1)
        else {
            unreachable!()
        };
        let ports = facts.ports.iter().map(|port| ServicePort { name: name.into(), ..port.clone() });
        let facts = ServiceFacts { ports: ports.collect(), ..(*facts).clone() };
        let ports = slice.ports.iter().map(|port| SlicePort { name: name.into(), ..port.clone() });
        let endpoints = slice_facts("x", "x", &[&backend]).endpoints;
        let slice = SliceFacts { ports: ports.collect(), endpoints, ..(*slice).clone() };
        let snapshot = rig.turn(vec![applied(facts), Event::SliceApplied(Arc::new(slice))]);
        let failed = snapshot.services.iter().flat_map(|view| view.frontends.iter());
        assert_eq!(failed.filter(|row| matches!(row.status, Status::Error(_))).count(), 0, "{name}");
        let dump = rig.dump();
        let (_, value) = dump.frontends.iter().find(|(key, _)| key.address == ip("10.2.0.1")).unwrap();
        let list = &dump.ports.iter().find(|port| port.index == value.port).unwrap().cluster.1;
        assert_eq!(list.iter().map(|slot| slot.backend().ip()).collect::<Vec<_>>(), [ip(&backend)], "{name}");
        rig.grace();
    }
}

#[test]
fn invariant_06_last_good_versions_survive_a_restart_among_many_rejections() {
    let bad = |name: &str| {
        let object = ObjectKey::Slice(slice_facts(name, "victim", &[]).key);
        Event::Rejected(Rejection { object, origin: None, reason: "bad".into(), partial: false })
    };
    let mut rig = Rig::new();
    let mut first = vec![applied(service("victim", "10.0.0.1", &[])), slice("victim", &["1.1.1.1"])];
    let noisy = |number: usize| {
        let facts = service(&format!("noise-{number}"), "10.0.0.2", &[]);
        applied(ServiceFacts { on_empty: Some("nonsense".into()), ..facts })
    };
    first.extend((0..1_200).map(noisy));
    rig.world = World::new(Seed(0), Capacity::default(), &[SOURCE]);
    rig.world.queue.most = u64::MAX;
    rig.world.apply(settings(OnEmpty::Auto));
    rig.world.apply(Event::Synced(SOURCE));
    let before = rig.turn(first);
    assert_eq!(before.rejections.named.len() + before.rejections.more, 1_200);
    let mut next = Rig::new();
    next.world = World::new(Seed(0), Capacity::default(), &[SOURCE]);
    next.world.queue.most = u64::MAX;
    next.world.restore_services(SavedSnapshot::from(&before), at(1));
    next.world.apply(settings(OnEmpty::Auto));
    let mut events: Vec<_> = (0..1_200).map(noisy).collect();
    events.extend([applied(service("victim", "10.0.0.1", &[])), bad("victim"), Event::Synced(SOURCE)]);
    let after = next.turn(events);
    let view = view(&after, "victim");
    assert_eq!(row(&view, "10.0.0.1").verdict.as_str(), "serving");
    assert_eq!(view.slices.len(), 1, "the last good version");
}

#[test]
fn invariant_10_ports_times_addresses_of_one_service() {
    let mut rig = Rig::with(Capacity { slots: 1 << 12, ports: 1 << 12, ..Capacity::default() });
    let port = |number: u16| ServicePort {
        name: format!("p{number:04}").into(),
        protocol: Protocol::TCP,
        port: NonZeroU16::new(1_000 + number).unwrap(),
        node_port: NonZeroU16::new(20_000 + number),
    };
    let external = |place: u32| core::net::IpAddr::V4(core::net::Ipv4Addr::from_bits(0xc612_0000 + place));
    let large = ServiceFacts {
        ports: (0..300).map(port).collect(),
        external_ips: (0..300).map(external).collect(),
        ..service("large", "10.0.0.1", &[])
    };
    let settings = Settings { frontends_max: Some(20_000), ..Settings::default() };
    let events = vec![
        Event::SettingsApplied(Arc::new(settings)),
        applied(large.clone()),
        applied(service("other", "10.0.0.2", &[])),
    ];
    let snapshot = rig.turn(events);
    let rows = view(&snapshot, "large");
    let count = |kind| rows.frontends.iter().filter(|row| row.kind == kind).count();
    let kinds = [FrontendType::ClusterIp, FrontendType::NodePort, FrontendType::ExternalIp];
    assert_eq!(kinds.map(count), [300, 300, limits::FRONTENDS_PER_SERVICE_MAX - 600], "in this order");
    let whole = |place| rows.frontends.iter().filter(|row| row.address == external(place)).count();
    assert_eq!((whole(0), whole(24), whole(25), whole(26)), (300, 300, 92, 0), "address by address");
    assert!(rows.frontends.iter().all(|row| row.status == Status::Done));
    let named: Vec<_> = snapshot.rejections.named.values().map(|it| (&*it.reason, it.partial)).collect();
    let reason = "its ports times addresses make 90600 frontends: the first 8192 are served and 82408 are left out, \
                  external IPs first; spread them over several services";
    assert_eq!(named, [(reason, true)]);
    assert_eq!(row(&view(&snapshot, "other"), "10.0.0.2").status, Status::Done, "no other service notices");
    let snapshot = rig.turn(vec![applied(ServiceFacts { external_ips: vec![external(0)], ..large })]);
    assert!(snapshot.rejections.named.is_empty(), "a service that fits again is no longer named");
}

#[test]
fn invariant_10_both_cluster_ips_of_the_most_ports_always_fit() {
    let port = |number: u16| ServicePort {
        name: format!("p{number:04}").into(),
        protocol: Protocol::TCP,
        port: NonZeroU16::new(1 + number).unwrap(),
        node_port: None,
    };
    let ports = 0..u16::try_from(limits::PORTS_PER_SERVICE_MAX).unwrap();
    let facts = ServiceFacts {
        cluster_ips: vec![ip("10.0.0.1"), ip("fd00::1")],
        ip_families: Family::ALL.to_vec(),
        ports: ports.map(port).collect(),
        ..service("a", "10.0.0.1", &["192.0.2.1"])
    };
    let capacity = Capacity { slots: 256, ports: 1 << 14, ..Capacity::default() };
    let snapshot = Rig::with(capacity).turn(vec![applied(facts)]);
    let view = view(&snapshot, "a");
    assert!(view.frontends.iter().all(|row| row.kind == FrontendType::ClusterIp));
    assert_eq!(view.frontends.len(), limits::FRONTENDS_PER_SERVICE_MAX);
    assert_eq!(snapshot.rejections.named.len(), 1, "the external IP is named");
}
