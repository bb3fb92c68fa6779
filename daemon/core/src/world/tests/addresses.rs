//! A tenant with all rights in one namespace gets neither others' addresses nor the node's.

use alloc::collections::BTreeSet;
use std::format;

use super::*;
use crate::snapshot::{Reason, Verdict};

const TENANT: &str = "tenant";

/// A node with one main address per family and further addresses of the host.
fn node_at(main: &[&str], others: &[&str]) -> Event {
    let all = |texts: &[&str]| texts.iter().map(|text| ip(text)).collect::<BTreeSet<_>>();
    let node_port_addresses = all(main);
    let addresses = &node_port_addresses | &all(others);
    Event::NodeApplied(Arc::new(NodeFacts {
        name: "here".into(),
        node_port_addresses,
        addresses,
        ..NodeFacts::default()
    }))
}

/// With a cluster IP of each family.
fn dual(number: u8, facts: ServiceFacts) -> ServiceFacts {
    let cluster_ips = vec![ip(&format!("10.0.0.{number}")), ip(&format!("fd00:8::{number}"))];
    ServiceFacts { cluster_ips, ip_families: Family::ALL.to_vec(), ..facts }
}

/// A tenant's Service with one port at chosen external IPs and at status addresses.
fn chosen(port: u16, external: &[&str], status: &[&str]) -> Event {
    let facts = service("x", "10.0.0.66", external);
    let port = ServicePort { port: port.try_into().unwrap(), ..facts.ports[0].clone() };
    let key = ServiceKey { name: ObjectName::new(TENANT, "s-1").unwrap(), source: Source::Kubernetes };
    let ingress = status.iter().map(|text| crate::facts::Ingress { address: ip(text), proxied: false });
    applied(ServiceFacts { key, ports: vec![port], ingress: ingress.collect(), ..dual(66, facts) })
}

/// The verdict of the tenant's row at an address, and the owner of the address.
fn met(snapshot: &Snapshot, address: &str) -> (Verdict, Option<Reason>, Option<ServiceKey>) {
    let view = snapshot.services.iter().find(|view| view.key.name.namespace() == TENANT).unwrap();
    let row = row(view, address);
    (row.verdict, row.reason, row.owner.clone())
}

const BARRED: (Verdict, Option<Reason>, Option<ServiceKey>) =
    (Verdict::Unprogrammed, Some(Reason::Address), None);

#[test]
fn an_external_ip_at_anothers_node_port_names_its_owner() {
    let owned = || {
        let facts = service("owner", "10.0.0.8", &[]);
        let port = ServicePort { node_port: NonZeroU16::new(30_080), ..facts.ports[0].clone() };
        applied(ServiceFacts { kind: ServiceType::NodePort, ports: vec![port], ..dual(8, facts) })
    };
    let node = || node_at(&["192.0.2.7", "2001:db8::7"], &[]);
    for address in ["192.0.2.7", "2001:db8::7"] {
        for events in [
            vec![node(), owned(), chosen(30_080, &[address], &[])],
            vec![chosen(30_080, &[address], &[]), owned(), node()],
        ] {
            let mut rig = Rig::new();
            let mut snapshot = Snapshot::default();
            events.into_iter().for_each(|event| snapshot = rig.turn(vec![event]));
            let conflict = (Verdict::Conflict, Some(Reason::Claimed), Some(service_key("owner")));
            assert_eq!(met(&snapshot, address), conflict, "{address}");
            let alone = rig.turn(vec![deleted("owner")]);
            assert_eq!(met(&alone, address), BARRED, "{address}: it stays the node's");
        }
    }
}

#[test]
fn an_address_that_the_node_gets_later_is_no_tenants_either() {
    let mut rig = Rig::new();
    let nowhere = || node_at(&[], &[]);
    let is_served = |met: (Verdict, Option<Reason>, Option<ServiceKey>)| met.0 == Verdict::Refusing;
    for (address, main) in [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "2001:db8::7")] {
        rig.turn(vec![nowhere(), chosen(80, &[address], &[])]);
        let later = rig.turn(vec![node_at(&[main], &[])]);
        assert_eq!(met(&later, address), BARRED);
        assert!(is_served(met(&rig.turn(vec![nowhere()]), address)), "{address} left the node");
    }
    // The kubelet and this daemon's health check also listen at further addresses of the host.
    for number in [10_250, 10_256] {
        let events = [chosen(number, &["192.0.2.8"], &[]), chosen(number, &[], &["192.0.2.8"])];
        for event in events {
            assert!(is_served(met(&rig.turn(vec![nowhere(), event]), "192.0.2.8")));
            let later = rig.turn(vec![node_at(&["192.0.2.7"], &["192.0.2.8"])]);
            assert_eq!(met(&later, "192.0.2.8"), BARRED, "{number}");
        }
    }
    // A floating address that is here now serves what services ask for at it.
    let floating = rig.turn(vec![chosen(80, &["192.0.2.8"], &[])]);
    assert!(is_served(met(&floating, "192.0.2.8")));
}

#[test]
fn a_status_address_beats_a_chosen_one_of_any_age() {
    let balanced = |port: u16, address: &str| {
        let facts = service("owner", "10.0.0.8", &[]);
        let port = ServicePort { port: port.try_into().unwrap(), ..facts.ports[0].clone() };
        let key = ServiceKey { source: Source::Kubernetes, ..facts.key.clone() };
        let ingress = vec![crate::facts::Ingress { address: ip(address), proxied: false }];
        let meta = Meta { created: Some(Timestamp(99)), ..Meta::default() };
        let facts = ServiceFacts { ports: vec![port], ingress, meta, ..dual(8, facts) };
        (key.clone(), applied(ServiceFacts { key, ..facts }))
    };
    let older = |address: &str| {
        let Event::ServiceApplied(facts) = chosen(443, &[address], &[]) else { panic!("a service") };
        let meta = Meta { created: Some(Timestamp(1)), ..Meta::default() };
        applied(ServiceFacts { meta, ..ServiceFacts::clone(&facts) })
    };
    for address in ["198.51.100.9", "2001:db8:9::9"] {
        for first in [true, false] {
            let mut rig = Rig::new();
            let (key, owner) = balanced(443, address);
            let (one, other) = if first { (owner, older(address)) } else { (older(address), owner) };
            rig.turn(vec![one]);
            let conflict = (Verdict::Conflict, Some(Reason::Claimed), Some(key));
            assert_eq!(met(&rig.turn(vec![other]), address), conflict, "{address}, {first}");
        }
    }
    // A balancer may give the node's own address; it does not include another service's node port.
    let mut rig = Rig::new();
    let owner = service("owner", "10.0.0.8", &[]);
    let port = ServicePort { node_port: NonZeroU16::new(30_080), ..owner.ports[0].clone() };
    rig.turn(vec![
        node_at(&["192.0.2.7"], &[]),
        applied(ServiceFacts { kind: ServiceType::NodePort, ports: vec![port], ..owner }),
    ]);
    let taken = rig.turn(vec![chosen(30_080, &[], &["192.0.2.7"])]);
    let conflict = (Verdict::Conflict, Some(Reason::Claimed), Some(service_key("owner")));
    assert_eq!(met(&taken, "192.0.2.7"), conflict);
    assert_eq!(met(&rig.turn(vec![chosen(443, &[], &["192.0.2.7"])]), "192.0.2.7").0, Verdict::Refusing);
}

/// The settings of an administrator who allows external IPs in this range.
fn allowing(first: &str, last: &str) -> Event {
    let Event::SettingsApplied(usual) = settings(OnEmpty::Refuse) else { panic!("settings") };
    let range = crate::address_policy::AddressRange { first: ip(first), last: ip(last) };
    let external_ips = crate::address_policy::ExternalIps::Within(vec![range]);
    Event::SettingsApplied(Arc::new(Settings { external_ips, ..Settings::clone(&usual) }))
}

/// For example keepalived's address, where NodePorts answer at all addresses of the node.
#[test]
fn a_node_address_that_the_administrator_listed_exactly_may_be_chosen() {
    for (first, last, port, is_served) in [
        ("192.0.2.7", "192.0.2.7", 80, true),
        ("192.0.2.7", "192.0.2.7", 10_250, false),
        // A range covers others' addresses, so the node's own in it is not listed exactly.
        ("192.0.2.0", "192.0.2.255", 80, false),
        ("192.0.2.6", "192.0.2.6", 80, false),
    ] {
        let mut rig = Rig::new();
        let events =
            vec![node_at(&["192.0.2.7"], &[]), allowing(first, last), chosen(port, &["192.0.2.7"], &[])];
        let met = met(&rig.turn(events), "192.0.2.7");
        assert_eq!(met.0 == Verdict::Refusing, is_served, "{first} to {last}, {port}: {met:?}");
        assert!(is_served || met == BARRED);
    }
}

/// The listening sockets of the node.
fn listening(sockets: &[(&str, u16)]) -> Event {
    let socket = |(address, port): &(&str, u16)| crate::facts::Listener {
        address: ip(address),
        port: (*port).try_into().unwrap(),
        transport: crate::keys::Transport::Tcp,
    };
    Event::ListenersApplied(Arc::new(sockets.iter().map(socket).collect()))
}

const HELD_BY_A_PROCESS: (Verdict, Option<Reason>, Option<ServiceKey>) =
    (Verdict::Conflict, Some(Reason::Listener), None);

/// For example the ingress of a bare-metal cluster: the node's own address, at 80 and 443.
#[test]
fn an_external_ip_of_the_node_is_served_at_ports_without_listener() {
    let sockets = [("0.0.0.0", 22), ("192.0.2.7", 9100), ("127.0.0.1", 8080), ("192.0.2.8", 81), ("::", 53)];
    let served = (Verdict::Refusing, Some(Reason::NoEndpoints), None);
    for (address, port, expected) in [
        ("192.0.2.7", 80, &served),
        ("2001:db8::7", 443, &served),
        ("192.0.2.7", 22, &HELD_BY_A_PROCESS),
        ("192.0.2.8", 22, &HELD_BY_A_PROCESS),
        ("198.51.100.1", 22, &served),
        ("192.0.2.7", 9100, &HELD_BY_A_PROCESS),
        ("192.0.2.7", 8080, &served),
        ("192.0.2.7", 81, &served),
        ("192.0.2.8", 81, &HELD_BY_A_PROCESS),
        ("192.0.2.7", 53, &served),
        ("2001:db8::7", 53, &HELD_BY_A_PROCESS),
        ("192.0.2.7", 10_250, &BARRED),
        ("192.0.2.7", 10_256, &BARRED),
        ("192.0.2.7", 6_443, &BARRED),
        ("192.0.2.7", 2_379, &BARRED),
        ("192.0.2.8", 2_380, &BARRED),
        ("2001:db8::7", 6_443, &BARRED),
    ] {
        let mut rig = Rig::new();
        let node = node_at(&["192.0.2.7", "2001:db8::7"], &["192.0.2.8"]);
        let snapshot = rig.turn(vec![node, listening(&sockets), chosen(port, &[address], &[])]);
        assert_eq!(&met(&snapshot, address), expected, "{address} {port}");
        let is_written = rig
            .log
            .iter()
            .any(|op| matches!(&op.action, Action::InsertFrontend(key, _) if key.address == ip(address)));
        assert_eq!(is_written, *expected == served, "{address} {port}");
    }
}

#[test]
fn a_process_that_listens_later_keeps_its_port_until_it_ends() {
    let mut rig = Rig::new();
    let address = "192.0.2.7";
    let key = FrontendKey {
        address: ip(address),
        port: NonZeroU16::new(80).unwrap(),
        transport: crate::keys::Transport::Tcp,
    };
    let is_in_the_maps =
        |rig: &Rig| rig.world.owners.frontends.get(&key).is_some_and(|entry| entry.realized.is_some());
    let unknown = rig.turn(vec![node_at(&[address], &[]), chosen(80, &[address], &[])]);
    assert_eq!((met(&unknown, address), is_in_the_maps(&rig)), (BARRED, false), "no list of sockets yet");
    let before = rig.turn(vec![listening(&[])]);
    assert_eq!((met(&before, address).0, is_in_the_maps(&rig)), (Verdict::Refusing, true));
    let later = rig.turn(vec![listening(&[("0.0.0.0", 80)])]);
    assert_eq!((met(&later, address), is_in_the_maps(&rig)), (HELD_BY_A_PROCESS, false));
    (0..4).for_each(|_| drop(rig.grace()));
    rig.turn(vec![listening(&[("0.0.0.0", 80), ("0.0.0.0", 81)])]);
    assert_eq!(rig.planned, 0, "another port is not affected");
    let after = rig.turn(vec![listening(&[("0.0.0.0", 81)])]);
    assert_eq!((met(&after, address).0, is_in_the_maps(&rig)), (Verdict::Refusing, true));
}

#[test]
fn a_listener_takes_no_allocated_or_administrators_frontend() {
    let mut rig = Rig::new();
    let events =
        [node_at(&["192.0.2.7"], &[]), listening(&[("0.0.0.0", 80)]), chosen(80, &[], &["192.0.2.7"])];
    assert_eq!(met(&rig.turn(events.into()), "192.0.2.7").0, Verdict::Refusing, "a balancer's address");
    let named = [allowing("192.0.2.7", "192.0.2.7"), chosen(80, &["192.0.2.7"], &[])];
    assert_eq!(met(&rig.turn(named.into()), "192.0.2.7").0, Verdict::Refusing, "the administrator named it");
    let owner = {
        let facts = service("owner", "10.0.0.8", &[]);
        let port = ServicePort { node_port: NonZeroU16::new(30_080), ..facts.ports[0].clone() };
        applied(ServiceFacts { kind: ServiceType::NodePort, ports: vec![port], ..dual(8, facts) })
    };
    let usual = settings(OnEmpty::Refuse);
    let taken = [usual, listening(&[("0.0.0.0", 30_080)]), owner, chosen(30_080, &["192.0.2.7"], &[])];
    let conflict = (Verdict::Conflict, Some(Reason::Claimed), Some(service_key("owner")));
    assert_eq!(
        met(&rig.turn(taken.into()), "192.0.2.7"),
        conflict,
        "another Service's node port takes precedence"
    );
}
