//! The capacity for members: a namespace that fills it stops no other's lists, and does not get all of it.

use core::ops::Range;

use super::room::{filled, found, rest};
use super::*;
use crate::snapshot::Status;

const SLOTS: u32 = 1 << 10;
const LEAVING: Conditions = Conditions { ready: false, serving: true, terminating: true };

/// Maps with the kernel's capacity for members.
fn rig() -> Rig {
    let rig = Rig::with(Capacity { slots: SLOTS, ports: 1 << 14, ..Capacity::default() });
    Rig { members_max: SLOTS as usize, ..rig }
}

/// A UDP service with affinity, its list, and backends that leave but still serve.
fn sticky(namespace: &str, number: u8, backends: Range<u32>, leaving: Range<u32>) -> [Event; 2] {
    let name = ObjectName::new(namespace, &std::format!("s-{number}")).unwrap();
    let mut builder = EndpointsBuilder::new(Family::V4);
    let each = |conditions| move |backend| (backend, conditions);
    for (backend, conditions) in backends.map(each(Conditions::READY)).chain(leaving.map(each(LEAVING))) {
        let address = core::net::Ipv4Addr::from_bits(0x0101_0000 + backend).into();
        builder
            .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
            .unwrap();
    }
    let port = NonZeroU16::new(53).unwrap();
    let ports = vec![ServicePort { name: "".into(), protocol: Protocol::UDP, port, node_port: None }];
    let key = ServiceKey { name: name.clone(), source: SOURCE };
    let net = if namespace == "web" { 200 } else { namespace.len() };
    let address = std::format!("10.{net}.0.{number}");
    let facts = ServiceFacts { key, ports, affinity_timeout: Some(60), ..service("x", &address, &[]) };
    let service = Some(name.name().into());
    let slice = SliceFacts {
        key: SliceKey { name, source: SOURCE },
        service,
        ports: [SlicePort { name: "".into(), protocol: Protocol::UDP, port }].into(),
        endpoints: builder.finish(),
        ..slice_facts("x", "x", &[])
    };
    [applied(facts), Event::SliceApplied(Arc::new(slice))]
}

/// Services of namespaces that take all they can, each named by a number of letters: lists, and one listed backend
/// among many that leave.
fn greedy(namespaces: usize) -> impl Iterator<Item = Event> {
    let of_one = |number: u8| {
        let many = 1 << (6 - u32::from(number) / 32);
        if number.is_multiple_of(2) { (0..many, 0..0) } else { (0..1, 1..many) }
    };
    (1..=namespaces).flat_map(move |length| {
        let one = move |number| {
            let (backends, leaving) = of_one(number);
            sticky(&"t".repeat(length), number, backends, leaving)
        };
        (0..200).flat_map(one)
    })
}

fn members_of(rig: &Rig, namespace: &str, number: u8) -> Vec<IpAddr> {
    let name = ObjectName::new(namespace, &std::format!("s-{number}")).unwrap();
    let id = rig.world.tables.find_id(&ServiceKey { name, source: SOURCE }).unwrap();
    let index = rig.world.services.get(id).unwrap().ports[0].index.unwrap();
    let of_list = |it: &&MemberKey| it.port == index && it.membership == Membership::List(Scope::Cluster);
    rig.members.iter().filter(of_list).map(|it| it.backend.ip()).collect()
}

/// A list is replaced repeatedly, in part and as a whole, while its former backends still serve and others' lists
/// change.
fn check_changes(rig: &mut Rig) {
    for round in 1..20 {
        let first = if round % 5 == 0 { 100 * round } else { round };
        let others = (0..40).flat_map(|number| sticky("t", number, round..round + 16, 100..116));
        rig.turn(others.chain(sticky("web", 1, first..first + 4, first + 4..first + 8)).collect());
        rest(rig);
        let expected: Vec<IpAddr> =
            (first..first + 4).map(|it| core::net::Ipv4Addr::from_bits(0x0101_0000 + it).into()).collect();
        assert_eq!(found(rig, "web", 1), expected, "round {round}");
        assert_eq!(members_of(rig, "web", 1), expected, "round {round}");
    }
}

#[test]
fn invariant_10_a_list_changes_while_other_namespaces_fill_the_members() {
    for namespaces in [1, 8, 40] {
        let mut rig = rig();
        rig.turn(sticky("web", 1, 0..4, 0..0).into());
        rig.turn(greedy(namespaces).collect());
        check_changes(&mut rig);
    }
}

#[test]
fn invariant_10_a_list_changes_after_a_restart_with_all_members_taken() {
    let mut before = rig();
    before.turn(sticky("web", 1, 0..4, 4..6).into());
    before.turn(greedy(40).collect());
    for _ in 0..3 {
        let mut rig = Rig { members: before.members.clone(), ..rig() };
        assert_eq!(rig.world.adopt(&before.dump()), []);
        let found = rig.world.space.members.used();
        rig.turn(greedy(40).chain(sticky("web", 1, 0..4, 4..6)).collect());
        assert!(found <= limits::counted_members_max(SLOTS), "{found} of the former members are counted");
        check_changes(&mut rig);
        before = rig;
    }
}

#[test]
fn invariant_10_a_start_counts_the_members_that_lists_need() {
    let mut before = rig();
    before.turn(sticky("web", 1, 0..3, 0..0).into());
    before.turn(greedy(2).collect());
    let mut again = rig();
    assert_eq!(again.world.adopt(&before.dump()), []);
    let used = |rig: &Rig| rig.world.space.members.used();
    assert!(used(&before) as usize == before.members.len() + 2, "one slot of its block is free");
    assert_eq!(used(&again), used(&before));
}

#[test]
fn invariant_10_members_of_one_namespace_leave_capacity_to_another() {
    let mut rig = rig();
    rig.turn(greedy(1).collect());
    let (used, most) = (rig.world.space.members.used(), limits::counted_members_max(SLOTS));
    assert!(used > most / 8 * 7 && used < most - most / 16, "{used} of {most} are taken");
    for backends in [5, 8] {
        rig.turn(sticky("web", 1, 0..backends, 0..0).into());
        assert_eq!(members_of(&rig, "web", 1).len(), backends as usize);
    }
}

#[test]
fn invariant_10_a_list_without_members_is_not_written_and_says_why() {
    let mut rig = rig();
    let snapshot = rig.turn(greedy(1).collect());
    let at = |number: u8| std::format!("10.1.0.{number}");
    let row = |snapshot: &Snapshot, number| {
        let rows = snapshot.services.iter().flat_map(|view| view.frontends.clone());
        rows.filter(|row| row.address == ip(&at(number))).map(|row| row.status).next().unwrap()
    };
    let refused = (0..200).filter(|number| matches!(row(&snapshot, *number), Status::Error(_)));
    let refused: Vec<_> = refused.collect();
    assert!(refused.len() > 50, "{refused:?}");
    assert_eq!(rig.dump().frontends.len(), 200 - refused.len(), "no frontend points to a missing list");
    for number in refused {
        assert_eq!((found(&rig, "t", number), members_of(&rig, "t", number)), (vec![], vec![]));
    }
}

/// Lists without members take all slots, so no list can grow; one that wants to grow is replaced repeatedly.
#[test]
fn invariant_10_a_list_that_cannot_grow_fills_its_block() {
    let mut rig = rig();
    rig.turn(sticky("web", 1, 0..4, 0..0).into());
    filled(&mut rig, 12);
    for round in 1..40 {
        let snapshot = rig.turn(sticky("web", 1, 100 * round..100 * round + 8, 0..0).into());
        let view = snapshot.services.iter().find(|view| view.key.name.namespace() == "web").unwrap();
        assert!(matches!(view.frontends[0].status, Status::Error(_)), "its status says that it is truncated");
        rest(&mut rig);
        let members = members_of(&rig, "web", 1);
        assert_eq!((&found(&rig, "web", 1)[..], members.len()), (&members[..4], 8));
        let (used, there) = (rig.world.space.members.used() as usize, rig.members.len());
        assert!(there <= used, "{there} members are in the maps, and {used} are counted");
    }
    rig.turn(sticky("web", 1, 100..104, 0..0).into());
    assert_eq!((members_of(&rig, "web", 1), rig.members.len()), (found(&rig, "web", 1), 8));
}

/// All members are taken, so no list can grow; one that wants to grow is replaced repeatedly.
#[test]
fn invariant_10_a_list_without_more_members_changes_within_its_members() {
    for weighs in [false, true] {
        let mut rig = Rig::with(Capacity { slots: 1 << 16, ports: 64, ..Capacity::default() });
        let address = |backend| core::net::Ipv4Addr::from_bits(0x0101_0000 + backend);
        let web = |backends: Range<u32>| {
            let weights = std::format!("{}=2", address(backends.start));
            let [Event::ServiceApplied(facts), slice] = sticky("web", 1, backends, 0..0) else {
                unreachable!()
            };
            let weights = crate::weights::Weights::parse(&weights).unwrap();
            let weights = weighs.then(|| crate::weights::WeightSetting { weights, wrong: None }.into());
            vec![applied(ServiceFacts { weights, ..(*facts).clone() }), slice]
        };
        rig.turn(web(0..4));
        assert_eq!(found(&rig, "web", 1).len() > 4, weighs, "it is a table");
        let members = &mut rig.world.space.members;
        members.set_members(PortIndex(63), QuotaId(9), limits::counted_members_max(1 << 16) - members.used());
        for round in 1..20 {
            let first = 1_000 * round;
            rig.turn(web(first..first + 8 - round % 3));
            rest(&mut rig);
            let expected: Vec<IpAddr> = (first..first + 4).map(|it| address(it).into()).collect();
            assert_eq!(found(&rig, "web", 1).len(), 4, "round {round}");
            assert_eq!(found(&rig, "web", 1), expected, "round {round}");
            assert_eq!(members_of(&rig, "web", 1), expected, "round {round}");
            assert_eq!(rig.members.len(), 8, "round {round}: as many as it had");
        }
        rig.turn(web(0..3));
        rest(&mut rig);
        assert_eq!(found(&rig, "web", 1).len() > 3, weighs, "and it is whole again");
        assert_eq!(members_of(&rig, "web", 1).len(), 3);
    }
}

/// The cluster list finds no slots while the local list changes repeatedly.
#[test]
fn invariant_10_a_list_alongside_an_unplaced_one_leaks_no_members() {
    let with = |here: u32, others: u32| {
        let [Event::ServiceApplied(facts), Event::SliceApplied(slice)] = sticky("web", 1, 0..1, 0..0) else {
            unreachable!()
        };
        let others = (0..others).map(|it| std::format!("1.1.0.{it}"));
        let endpoints: Vec<_> = others.chain([std::format!("@1.2.0.{here}")]).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(AsRef::as_ref).collect();
        let endpoints = slice_facts("x", "x", &endpoints).endpoints;
        let external_ips = vec![ip("192.0.2.1")];
        let facts = ServiceFacts { external_ips, external_policy: local(), ..(*facts).clone() };
        vec![applied(facts), Event::SliceApplied(Arc::new(SliceFacts { endpoints, ..(*slice).clone() }))]
    };
    let mut rig = rig();
    rig.turn(with(0, 3));
    filled(&mut rig, 12);
    for round in 1..40 {
        rig.turn(with(round, 4));
        rest(&mut rig);
        let members = members_of(&rig, "web", 1);
        assert_eq!((&found(&rig, "web", 1)[..], members.len()), (&members[..4], 5));
        let here = |it: &&MemberKey| it.membership == Membership::List(Scope::Local);
        assert_eq!((rig.members.iter().filter(here).count(), rig.members.len()), (1, 5 + 1 + 5));
    }
}

#[test]
fn invariant_10_all_members_come_free() {
    let mut rig = rig();
    rig.turn(sticky("web", 1, 0..3, 3..5).into());
    let own = rig.world.space.members.used();
    rig.turn(greedy(9).collect());
    let gone = greedy(9).filter_map(|event| match event {
        Event::ServiceApplied(facts) => Some(Event::ServiceDeleted(facts.key.clone(), None)),
        Event::SliceApplied(facts) => Some(Event::SliceDeleted(facts.key.clone(), None)),
        _ => None,
    });
    rig.turn(gone.collect());
    rest(&mut rig);
    assert_eq!((rig.world.space.members.used(), own), (10, 10), "blocks of four twice, and two that leave");
}
