//! Two services, one address: which one owns it, and what the others show.

use super::*;
use crate::snapshot::{Reason, Verdict};

fn created(name: &str, at: i64) -> Event {
    let meta = Meta { created: Some(Timestamp(at)), ..Meta::default() };
    let own = std::format!("10.0.0.{at}");
    applied(ServiceFacts { meta, ..service(name, &own, &["10.0.0.9"]) })
}

#[track_caller]
fn check_row(snapshot: &Snapshot, name: &str, verdict: Verdict, owner: Option<&str>) {
    let view = view(snapshot, name);
    let row = row(&view, "10.0.0.9");
    let reason = (verdict == Verdict::Conflict).then_some(Reason::Claimed);
    assert_eq!(
        (row.verdict, row.reason, row.owner.clone()),
        (verdict, reason, owner.map(service_key)),
        "{name}"
    );
}

#[test]
fn every_loser_shows_the_new_owner() {
    let mut rig = Rig::new();
    let slices = ["a", "b", "c"].map(|name| slice(name, &["1.1.1.1"]));
    let services = [created("a", 1), created("b", 2), created("c", 3)];
    let first = rig.turn(services.into_iter().chain(slices).collect());
    check_row(&first, "a", Verdict::Serving, None);
    check_row(&first, "b", Verdict::Conflict, Some("a"));
    check_row(&first, "c", Verdict::Conflict, Some("a"));
    let second = rig.turn(vec![deleted("a")]);
    check_row(&second, "b", Verdict::Serving, None);
    check_row(&second, "c", Verdict::Conflict, Some("b"));
    assert_eq!(row(&view(&second, "c"), "10.0.0.9").since, Timestamp(101), "the verdict is the same");
    let third = rig.turn(vec![created("a", 1)]);
    check_row(&third, "b", Verdict::Conflict, Some("a"));
    check_row(&third, "c", Verdict::Conflict, Some("a"));
}

#[test]
fn backends_of_a_service_are_in_use_while_it_has_an_address_of_its_own() {
    let mut rig = Rig::new();
    let services = ["a", "b"].map(|name| applied(service(name, "10.0.0.1", &[])));
    let slices = ["a", "b"].map(|name| slice(name, &["1.1.1.1", "1.1.1.2"]));
    let counts = |snapshot: &Snapshot| {
        let backends = snapshot.services.totals().backends();
        (backends.used(), backends.unused)
    };
    let snapshot = rig.turn(services.into_iter().chain(slices).collect());
    assert_eq!(counts(&snapshot), (2, 2));
    assert_eq!(["a", "b"].map(|name| view(&snapshot, name).is_port_in_conflict(0)), [false, true]);
    let snapshot = rig.turn(vec![applied(service("b", "10.0.0.1", &["10.0.0.8"]))]);
    assert_eq!(counts(&snapshot), (4, 0));
}

/// Services that all claim the same twenty ports at one address.
fn crowd(services: u8) -> Rig {
    let mut rig = Rig::with(Capacity { slots: 256, ports: 8_192, ..Capacity::default() });
    rig.turn((0..services).map(|number| of_crowd(number, true)).collect());
    rig
}

fn of_crowd(number: u8, claims: bool) -> Event {
    let meta = Meta { created: Some(Timestamp(number.into())), ..Meta::default() };
    let external: &[&str] = if claims { &["10.0.0.9"] } else { &[] };
    let facts = service(&std::format!("s{number:03}"), &std::format!("10.0.1.{number}"), external);
    let port = |at: u16| ServicePort {
        port: NonZeroU16::new(80 + at).unwrap(),
        name: std::format!("p{at}").into(),
        ..facts.ports[0].clone()
    };
    applied(ServiceFacts { meta, ports: (0..20).map(port).collect(), ..facts })
}

/// The oldest of a hundred is rewritten repeatedly, with and without the address.
#[test]
fn a_loser_with_a_new_owner_makes_no_change_record() {
    let mut rig = crowd(100);
    for round in 0..20 {
        let snapshot = rig.turn(vec![of_crowd(0, round % 2 == 1)]);
        let mut recorded: Vec<_> =
            rig.changes.iter().map(|change| std::format!("{}", change.service.name)).collect();
        recorded.sort_unstable();
        assert_eq!(recorded, ["default/s000", "default/s001"], "round {round}");
        let owner = if round % 2 == 0 { "s001" } else { "s000" };
        check_row(&snapshot, "s099", Verdict::Conflict, Some(owner));
    }
}

#[test]
fn invariant_10_a_handover_plans_no_service_that_loses_either_way() {
    let toggled = |services| {
        let mut rig = crowd(services);
        rig.turn(vec![of_crowd(0, false)]);
        crate::work::take();
        for round in 0..21 {
            // All within the same second.
            rig.now -= 1;
            rig.turn(vec![of_crowd(0, round % 2 == 0)]);
            assert_eq!(rig.planned, 2, "round {round}: its former and its new owner");
        }
        let work = crate::work::take();
        // The former owner is done.
        rig.now -= 1;
        rig.turn(vec![]);
        let late = rig.turn(vec![]);
        assert_eq!((rig.planned, rig.changes.len()), (0, 0));
        check_row(&late, &std::format!("s{:03}", services - 1), Verdict::Conflict, Some("s000"));
        assert_eq!(rig.world.owners.due(), None, "no row is left to update");
        work
    };
    let (few, many) = (toggled(100), toggled(200));
    assert!(many * 100 <= few * 101, "21 changes of hands among 100 cost {few}, among 200 {many}");
}

#[test]
fn an_heir_takes_over_before_the_owner_goes() {
    let mut rig = Rig::new();
    rig.turn(vec![created("a", 1), created("b", 2), slice("a", &["1.1.1.1"]), slice("b", &["1.1.1.2"])]);
    rig.turn(vec![deleted("a")]);
    let of_shared = |op: &Op| match op.action {
        Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => key.address == ip("10.0.0.9"),
        _ => false,
    };
    let ops: Vec<_> = rig.log.iter().filter(|op| of_shared(op)).collect();
    assert!(matches!(ops.as_slice(), [op] if is_insert(op)), "replaced at once, never removed: {ops:?}");
}

#[test]
fn a_frontend_is_removed_when_its_heir_leaves_before_the_handover() {
    let mut rig = Rig::new();
    rig.turn(vec![created("a", 1), created("b", 2), slice("a", &["1.1.1.1"]), slice("b", &["1.1.1.2"])]);
    let meta = Meta { created: Some(Timestamp(1)), ..Meta::default() };
    let without = ServiceFacts { meta, ..service("a", "10.0.0.1", &[]) };
    rig.refuse = |op| matches!(op.action, Action::WriteRange(..) | Action::InsertFrontend(..));
    rig.turn(vec![applied(without), slice("b", &["1.1.1.3"])]);
    rig.refuse = |_| false;
    rig.turn(vec![deleted("b")]);
    let of_shared =
        |op: &Op| matches!(op.action, Action::RemoveFrontend(key) if key.address == ip("10.0.0.9"));
    assert_eq!(rig.log.iter().filter(|op| of_shared(op)).count(), 1, "{:?}", rig.log);
}

/// A Service of one port, with a node port or a chosen address.
fn covering(name: &str, at: i64, port: u16, node_port: Option<u16>, external: &[&str]) -> ServiceFacts {
    let meta = Meta { created: Some(Timestamp(at)), ..Meta::default() };
    let facts = service(name, &std::format!("10.0.0.{at}"), external);
    let node_port = node_port.and_then(NonZeroU16::new);
    let port = ServicePort { port: NonZeroU16::new(port).unwrap(), node_port, ..facts.ports[0].clone() };
    ServiceFacts { meta, kind: ServiceType::NodePort, ports: vec![port], ..facts }
}

fn at_node() -> Event {
    let node_port_addresses = ["192.0.2.7", "10.0.0.9"].map(ip).into();
    Event::NodeApplied(Arc::new(NodeFacts {
        name: "here".into(),
        node_port_addresses,
        ..NodeFacts::default()
    }))
}

#[test]
fn no_other_service_takes_a_reserved_frontend_in_any_order() {
    let owner = || applied(covering("owner", 8, 80, Some(30_080), &[]));
    let at_node_port = || applied(covering("thief", 1, 30_080, None, &["10.0.0.9"]));
    let at_cluster_ip = || {
        applied(ServiceFacts {
            external_ips: vec![ip("10.0.0.8"), ip("10.0.0.9")],
            ..covering("thief", 1, 9_999, None, &[])
        })
    };
    for first in [true, false] {
        let mut rig = Rig::new();
        rig.turn(vec![at_node(), slice("owner", &["1.1.1.1"]), slice("thief", &["1.1.1.2"])]);
        rig.turn(vec![if first { owner() } else { at_node_port() }]);
        let both = rig.turn(vec![if first { at_node_port() } else { owner() }]);
        check_row(&both, "thief", Verdict::Conflict, Some("owner"));
        let alone = rig.turn(vec![deleted("owner")]);
        check_row(&alone, "thief", Verdict::Serving, None);
        let again = rig.turn(vec![owner()]);
        check_row(&again, "thief", Verdict::Conflict, Some("owner"));
        let other = rig.turn(vec![at_cluster_ip()]);
        check_row(&other, "thief", Verdict::Serving, None);
        let view = view(&other, "thief");
        let inside = row(&view, "10.0.0.8");
        assert_eq!((inside.verdict, inside.owner.clone()), (Verdict::Conflict, Some(service_key("owner"))));
        rig.turn(vec![deleted("owner"), deleted("thief")]);
        assert!(rig.world.owners.reservations.is_empty(), "nothing is left behind");
    }
}

/// Two services claim a port of an external address that then becomes a third one's ClusterIP: the heir of the first
/// loses it in the same batch.
#[test]
fn losing_a_reserved_frontend_has_one_cause() {
    let mut rig = Rig::new();
    rig.turn(vec![created("a", 1), created("b", 2), slice("a", &["1.1.1.1"]), slice("b", &["1.1.1.2"])]);
    rig.turn(vec![applied(covering("owner", 9, 9_999, None, &[]))]);
    let lost = rig.changes.iter().find(|change| change.service == service_key("a")).unwrap();
    let [Cause::ClaimLost(key, by)] = &lost.causes[..] else { panic!("{:?}", lost.causes) };
    assert_eq!((key.address, by), (ip("10.0.0.9"), &service_key("owner")));
}

#[test]
fn tenants_and_controllers_get_no_node_reserved_frontend() {
    let mut rig = Rig::new();
    rig.turn(vec![at_node()]);
    let ingress = |address: &&str| crate::facts::Ingress { address: ip(address), proxied: false };
    let shown = |rig: &mut Rig, port, external: &[&str], status: &[&str]| {
        let facts = covering("tenant", 1, port, None, external);
        let key = ServiceKey { source: Source::Kubernetes, ..facts.key.clone() };
        let facts = ServiceFacts { key, ingress: status.iter().map(ingress).collect(), ..facts };
        let snapshot = rig.turn(vec![applied(facts)]);
        let view = snapshot.services.iter().find(|it| it.key.name.name() == "tenant").cloned().unwrap();
        (row(&view, "10.0.0.9").verdict, row(&view, "10.0.0.9").reason)
    };
    let barred = (Verdict::Unprogrammed, Some(Reason::Address));
    for port in [80, 10_250, 10_256] {
        assert_eq!(shown(&mut rig, port, &["10.0.0.9"], &[]), barred, "{port}");
    }
    assert_eq!(shown(&mut rig, 10_250, &[], &["10.0.0.9"]), barred);
    assert_eq!(
        shown(&mut rig, 80, &[], &["10.0.0.9"]).0,
        Verdict::Refusing,
        "some controllers have no other"
    );
}
