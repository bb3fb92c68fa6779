//! A tenant with all rights in one namespace cannot affect the holds of another.

use std::format;
use std::string::String;

use super::*;
use crate::change::Cause;
use crate::facts::Target;
use crate::facts::endpoints::UidText;
use crate::hold::Bound;
use crate::keys::Transport;
use crate::snapshot::{Reason, Verdict};

const TENANT: &str = "tenant";

fn key_in(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name).unwrap()
}

/// A service in a namespace, and its slice with one backend of this pod.
fn served(namespace: &str, number: u8, source: Source) -> [Event; 2] {
    let name = key_in(namespace, &format!("s-{number}"));
    let key = ServiceKey { name: name.clone(), source };
    let facts = ServiceFacts { key, ..service("x", &format!("10.0.0.{number}"), &[]) };
    [applied(facts), pods(name, source, &[&format!("1.1.1.{number}")], "one")]
}

fn pods(name: ObjectName, source: Source, addresses: &[&str], uid: &str) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for address in addresses {
        let target =
            Target { kind: "Pod", namespace: "default", name: "p-1".into(), uid: UidText::parse(uid) };
        let (address, conditions) = (ip(address), Conditions::READY);
        let target = Some(target);
        let endpoint = Endpoint { address, conditions, node: None, zone: None, hints: None, target };
        builder.push(endpoint).unwrap();
    }
    let service = Some(name.name().into());
    let endpoints = builder.finish();
    let key = SliceKey { name, source };
    Event::SliceApplied(Arc::new(SliceFacts { key, service, endpoints, ..slice_facts("x", "x", &[]) }))
}

fn emptied(namespace: &str, number: u8) -> Event {
    pods(key_in(namespace, &format!("s-{number}")), SOURCE, &[], "one")
}

/// So many services in each namespace, numbered consecutively, an hour after the start.
fn peopled(namespaces: &[(&str, u8)]) -> Rig {
    let mut rig = Rig::new();
    rig.turn(vec![super::settings(OnEmpty::Auto)]);
    let mut number = 0;
    for (namespace, count) in namespaces {
        for _ in 0..*count {
            number += 1;
            rig.turn(served(namespace, number, SOURCE).into());
        }
    }
    rig.now += 3_600;
    rig
}

/// The reasons for which the lists of a namespace are held.
fn held(snapshot: &Snapshot, namespace: &str) -> Vec<Reason> {
    let of = snapshot.services.iter().filter(|view| view.key.name.namespace() == namespace);
    let holds = of.flat_map(|view| view.ports.iter().filter_map(|port| port.hold.clone()));
    holds.map(|hold| hold.reason).collect()
}

fn claims(changes: &[Change]) -> usize {
    let causes = changes.iter().flat_map(|change| &change.causes);
    causes.filter(|cause| matches!(cause, Cause::AddressClaimed(..))).count()
}

#[test]
fn invariant_05_a_slice_listing_a_held_address_ends_no_hold() {
    for uid in ["one", "", "two"] {
        let mut rig = peopled(&[("default", 2)]);
        rig.turn(vec![emptied("default", 1)]);
        let claim = || pods(key_in(TENANT, "nobody"), SOURCE, &["1.1.1.1"], uid);
        assert_eq!(held(&rig.turn(vec![claim()]), "default"), [Reason::Vanished], "{uid}");
        let first = claims(&rig.changes);
        assert_eq!(first, usize::from(uid == "two"), "a claim by another pod is recorded and probed");
        for _ in 0..3 {
            assert_eq!(held(&rig.turn(vec![claim()]), "default"), [Reason::Vanished], "{uid}");
            assert_eq!(claims(&rig.changes), 0, "once in a hold");
        }
    }
}

#[test]
fn claims_end_neither_the_apiservers_hold_nor_a_mass_loss() {
    let mut rig = peopled(&[("default", 5)]);
    let bypass = ["1.1.1.1:8080".parse().unwrap()].into();
    let hold = Policy::default();
    rig.turn(vec![Event::SettingsApplied(Arc::new(Settings { bypass, hold, ..Settings::default() }))]);
    rig.turn((1..=5).map(|number| emptied("default", number)).collect());
    let all: Vec<String> = (1..=5).map(|number| format!("1.1.1.{number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let snapshot = rig.turn(vec![pods(key_in(TENANT, "nobody"), SOURCE, &all, "two")]);
    let mass = [Reason::MassLoss; 4];
    assert_eq!(held(&snapshot, "default"), [&[Reason::Control], &mass[..]].concat());
    assert_eq!(claims(&rig.changes), 4, "the apiserver is asked about the others");
    let ports = snapshot.services.iter().flat_map(|view| view.ports.iter());
    let holds = ports.filter_map(|port| port.hold.as_ref());
    assert_eq!(holds.map(|hold| hold.urgent_probe_targets(Transport::Tcp).count()).sum::<usize>(), 0);
}

#[test]
fn invariant_10_claims_of_one_namespace_are_bounded_and_others_still_count() {
    let mut rig = peopled(&[("default", 200)]);
    let all: Vec<String> = (1..=60).map(|number| format!("1.1.1.{number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let hold = Policy { mass_loss_share: 1_000_000, ..Policy::default() };
    rig.turn(vec![Event::SettingsApplied(Arc::new(Settings { hold, ..Settings::default() }))]);
    rig.turn((1..=60).map(|number| emptied("default", number)).collect());
    rig.turn(vec![pods(key_in(TENANT, "nobody"), SOURCE, &all, "two")]);
    let counted = claims(&rig.changes);
    assert!((1..=20).contains(&counted), "{counted} claims of one namespace");
    rig.turn(vec![pods(key_in("other", "nobody"), SOURCE, &["1.1.1.60"], "two")]);
    assert_eq!(claims(&rig.changes), 1, "another namespace's first claim counts");
    rig.now += 10;
    rig.turn(vec![]);
    rig.turn(vec![pods(key_in(TENANT, "nobody"), SOURCE, &all, "two")]);
    assert_eq!(claims(&rig.changes), counted, "later the same namespace may claim others");
}

/// A slice may list one address a thousand times at a hundred ports of one number, and its tenant may hold that address
/// with many services.
#[test]
fn invariant_10_the_claims_of_one_slice_are_bounded() {
    let mut rig = peopled(&[("default", 2)]);
    let names: Vec<_> = (1..=150_u8).map(|number| key_in(TENANT, &format!("t-{number}"))).collect();
    let served = |(at, name): (usize, &ObjectName)| {
        let key = ServiceKey { name: name.clone(), source: SOURCE };
        let facts = ServiceFacts { key, ..service("x", &format!("10.0.1.{at}"), &[]) };
        [applied(facts), pods(name.clone(), SOURCE, &["1.1.2.1"], "one")]
    };
    rig.turn(names.iter().enumerate().flat_map(served).collect());
    rig.turn(names.iter().map(|name| pods(name.clone(), SOURCE, &[], "one")).collect());
    let Event::SliceApplied(claims) = pods(key_in(TENANT, "nobody"), SOURCE, &["1.1.2.1"; 1_000], "two")
    else {
        unreachable!()
    };
    let port = claims.ports[0].clone();
    let ports = (0..100).map(|at| SlicePort { name: format!("p-{at}").into(), ..port.clone() }).collect();
    crate::work::take();
    rig.turn(vec![Event::SliceApplied(Arc::new(SliceFacts { ports, ..(*claims).clone() }))]);
    let done = crate::work::take();
    assert!(done < 20_000, "{done}");
}

#[test]
fn empty_lists_of_one_namespace_prolong_no_hold_of_another() {
    let mut rig = peopled(&[(TENANT, 60), ("default", 2), ("shop", 3)]);
    rig.turn(vec![emptied("default", 61)]);
    let snapshot = rig.turn((1..=60).map(|number| emptied(TENANT, number)).collect());
    assert_eq!(held(&snapshot, "default"), [Reason::Vanished]);
    assert_eq!(held(&snapshot, TENANT), vec![Reason::MassLoss; 60], "its own losses are all of them");
    let snapshot = rig.turn(vec![emptied("shop", 63)]);
    assert_eq!(held(&snapshot, "default"), [Reason::Vanished]);
    assert_eq!(held(&snapshot, "shop"), [Reason::Vanished]);
}

#[test]
fn losses_of_some_services_of_one_namespace_are_no_mass_loss() {
    let mut rig = peopled(&[(TENANT, 60), ("default", 2)]);
    let snapshot = rig.turn((1..=59).map(|number| emptied(TENANT, number)).collect());
    assert_eq!(held(&snapshot, TENANT), vec![Reason::Vanished; 59]);
    let snapshot = rig.turn(vec![emptied(TENANT, 60)]);
    assert_eq!(held(&snapshot, TENANT), vec![Reason::MassLoss; 60]);
}

/// For example by a faulty controller, or an apiserver with an old disk.
#[test]
fn a_loss_across_namespaces_is_a_mass_loss_of_each() {
    let namespaces = [("a", 3), ("b", 1), ("c", 40), ("d", 2), ("e", 2)];
    let mut rig = peopled(&namespaces);
    // Some services of each namespace, and all of some namespaces.
    let lost = [("a", 1), ("a", 2), ("b", 4), ("c", 5), ("c", 6), ("c", 7), ("d", 45), ("d", 46), ("e", 47)];
    let hold = Policy { mass_loss_share: 100_000, ..Policy::default() };
    rig.turn(vec![Event::SettingsApplied(Arc::new(Settings { hold, ..Settings::default() }))]);
    let snapshot = rig.turn(lost.iter().map(|(namespace, number)| emptied(namespace, *number)).collect());
    let counts = namespaces.map(|(namespace, _)| held(&snapshot, namespace));
    assert!(counts.iter().flatten().all(|reason| *reason == Reason::MassLoss), "{counts:?}");
    assert_eq!(counts.map(|held| held.len()), [2, 1, 3, 2, 1]);
}

/// In the incident every node lost the lists of `default`; the apiserver's own list is not counted.
#[test]
fn the_apiservers_hold_does_not_count_towards_a_mass_loss() {
    let mut rig = peopled(&[("default", 5), ("shop", 40)]);
    let bypass = ["1.1.1.1:8080".parse().unwrap()].into();
    rig.turn(vec![Event::SettingsApplied(Arc::new(Settings { bypass, ..Settings::default() }))]);
    let snapshot = rig.turn((1..=5).map(|number| emptied("default", number)).collect());
    let expected = [&[Reason::Control], &[Reason::MassLoss; 4][..]].concat();
    assert_eq!(held(&snapshot, "default"), expected);
}

/// How many backends of the first service's hold are to be probed, and the bound of that hold.
fn probed(rig: &mut Rig, address: &str, node: NodeFacts, bypass: &[&str], source: Source) -> (usize, Bound) {
    rig.world = World::new(Seed(0), Capacity { slots: 64, ports: 64, ..Capacity::default() }, &[source]);
    rig.world.queue.most = u64::MAX;
    let bypass = bypass.iter().map(|text| text.parse().unwrap()).collect();
    let own = ServiceFacts {
        on_empty: Some("hold".into()),
        key: ServiceKey { name: key_in(TENANT, "s-1"), source },
        ..service("x", "10.0.0.1", &[])
    };
    let other = ServiceFacts {
        key: ServiceKey { name: key_in("default", "s-2"), source },
        ports: vec![ServicePort {
            port: 8080.try_into().unwrap(),
            ..service("x", "10.0.0.2", &[]).ports[0].clone()
        }],
        ..service("x", "10.0.0.2", &["10.0.0.77"])
    };
    rig.turn(vec![
        Event::NodeApplied(Arc::new(node)),
        Event::SettingsApplied(Arc::new(Settings { bypass, ..Settings::default() })),
        applied(own),
        applied(other),
        pods(key_in(TENANT, "s-1"), source, &[address], "one"),
        Event::Synced(source),
    ]);
    let snapshot = rig.turn(vec![pods(key_in(TENANT, "s-1"), source, &[], "one")]);
    let view = snapshot.services.iter().find(|view| view.key.name.namespace() == TENANT).unwrap();
    assert_eq!(view.frontends[0].verdict, Verdict::Held, "{address}");
    let hold = view.ports[0].hold.as_deref().unwrap();
    assert!(hold.awaits_first_probe() || hold.probe_targets(view.ports[0].key.transport).count() == 0);
    (hold.probe_targets(view.ports[0].key.transport).count(), hold.bound)
}

#[test]
fn only_possible_pod_addresses_are_probed() {
    let node = || NodeFacts {
        name: "here".into(),
        node_port_addresses: [ip("192.0.2.1")].into(),
        ..NodeFacts::default()
    };
    let mut rig = Rig::new();
    for (address, expected) in [
        ("1.1.1.1", 1),
        ("192.0.2.1", 0),
        ("127.0.0.1", 0),
        ("169.254.169.254", 0),
        ("198.51.100.7", 0),
        ("10.0.0.2", 0),
        // Any tenant may list an external IP, so it must not stop probes of another tenant's pod.
        ("10.0.0.77", 1),
    ] {
        let apiserver = &["198.51.100.7:6443"];
        assert_eq!(probed(&mut rig, address, node(), apiserver, Source::Kubernetes).0, expected, "{address}");
        // Backends of the administrator's services are probed at any address.
        assert_eq!(probed(&mut rig, address, node(), apiserver, Source::Manifests).0, 1, "{address}");
    }
}
