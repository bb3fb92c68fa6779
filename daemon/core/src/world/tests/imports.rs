//! ServiceImports: no apiserver allocates their addresses, so every other claim on an address wins.

use super::*;
use crate::address_policy::ExternalIps;
use crate::keys::{FrontendKey, Transport};
use crate::maps::{Client, DialOutcome, Maps, MemoryMaps};
use crate::op::FrontendType;
use crate::snapshot::{Reason, Verdict};

const SHARED: &str = "10.0.0.9";

fn name(text: &str) -> ObjectName {
    ObjectName::new("default", text).unwrap()
}

fn key(text: &str, source: Source) -> ServiceKey {
    ServiceKey { name: name(text), source }
}

fn import(text: &str, addresses: &[&str], created: i64) -> ServiceFacts {
    ServiceFacts {
        key: key(text, Source::ClusterSet),
        kind: ServiceType::ClusterSetIp,
        meta: Meta { created: Some(Timestamp(created)), ..Meta::default() },
        cluster_ips: addresses.iter().map(|it| ip(it)).collect(),
        ..service("x", "10.0.0.1", &[])
    }
}

/// A Service of the cluster, younger than any import here.
fn of_cluster(text: &str, cluster_ip: &str, external_ips: &[&str]) -> ServiceFacts {
    ServiceFacts {
        key: key(text, Source::Kubernetes),
        meta: Meta { created: Some(Timestamp(1_000)), ..Meta::default() },
        ..service("x", cluster_ip, external_ips)
    }
}

fn slice_of(text: &str, source: Source, endpoints: &[&str]) -> Event {
    let key = SliceKey { name: name(text), source };
    Event::SliceApplied(Arc::new(SliceFacts { key, ..slice_facts("x", text, endpoints) }))
}

fn found(snapshot: &Snapshot, key: &ServiceKey) -> Arc<ServiceView> {
    snapshot.services.iter().find(|view| view.key == *key).cloned().unwrap()
}

/// The verdict of the ServiceImport `imported`, and the other owner of its address.
fn owned(snapshot: &Snapshot) -> (Verdict, Option<ServiceKey>) {
    let view = found(snapshot, &key("imported", Source::ClusterSet));
    let row = row(&view, SHARED);
    assert_eq!(row.kind, FrontendType::ClusterSetIp);
    (row.verdict, row.owner.clone())
}

#[test]
fn an_import_is_served_alongside_a_service_of_its_name() {
    let mut rig = Rig::new();
    let snapshot = rig.turn(vec![
        applied(import("web", &[SHARED, "fd00::9"], 1)),
        slice_of("web", Source::ClusterSet, &["1.1.1.1"]),
        applied(of_cluster("web", "10.0.0.2", &[])),
        slice_of("web", Source::Kubernetes, &["1.1.1.2"]),
    ]);
    for (source, address, backend) in
        [(Source::ClusterSet, SHARED, "1.1.1.1:8080"), (Source::Kubernetes, "10.0.0.2", "1.1.1.2:8080")]
    {
        let view = found(&snapshot, &key("web", source));
        let row = row(&view, address);
        assert_eq!(row.verdict, Verdict::Serving, "{source}");
        let backends: Vec<_> = view.backends(row).map(|row| row.slot().backend()).collect();
        assert_eq!(backends, [backend.parse::<SocketAddr>().unwrap()], "{source}");
    }
    let view = found(&snapshot, &key("web", Source::ClusterSet));
    assert_eq!(row(&view, "fd00::9").verdict, Verdict::Refusing, "it has no slice of that family");
}

/// In either order, and however old the import is.
#[test]
fn no_import_takes_a_frontend_that_a_service_claims() {
    let node_port = |facts: ServiceFacts| {
        let port = ServicePort { node_port: NonZeroU16::new(80), ..facts.ports[0].clone() };
        ServiceFacts { ports: vec![port], ..facts }
    };
    let balancer = |facts: ServiceFacts| ServiceFacts {
        kind: ServiceType::LoadBalancer,
        ingress: vec![crate::facts::Ingress { address: ip(SHARED), proxied: false }],
        ..facts
    };
    let other_port = |facts: ServiceFacts| {
        let port = ServicePort { port: NonZeroU16::new(443).unwrap(), ..facts.ports[0].clone() };
        ServiceFacts { ports: vec![port], ..facts }
    };
    for (what, facts) in [
        ("a cluster IP", of_cluster("own", SHARED, &[])),
        ("another port of a cluster IP", other_port(of_cluster("own", SHARED, &[]))),
        ("an external IP", of_cluster("own", "10.0.0.2", &[SHARED])),
        ("a balancer's address", balancer(of_cluster("own", "10.0.0.2", &[]))),
        ("a node port at the same address", node_port(of_cluster("own", SHARED, &[]))),
    ] {
        let own = facts.key.clone();
        let theirs = || applied(facts.clone());
        let mine = || applied(import("imported", &[SHARED], 1));
        let slices = || {
            [
                slice_of("imported", Source::ClusterSet, &["1.1.1.1"]),
                slice_of("own", own.source, &["1.1.1.2"]),
            ]
        };
        let conflict = (Verdict::Conflict, Some(own.clone()));
        for order in [[theirs(), mine()], [mine(), theirs()]] {
            let mut rig = Rig::new();
            rig.turn(slices().into());
            for event in order {
                rig.turn(vec![event]);
            }
            assert_eq!(owned(&rig.turn(vec![])), conflict, "{what}");
            let rest = rig.turn(vec![Event::ServiceDeleted(own.clone(), None)]);
            assert_eq!(owned(&rest), (Verdict::Serving, None), "{what}: it is the heir");
        }
    }
}

/// The address never goes missing, and the import's own list is not touched.
#[test]
fn a_service_takes_over_an_imports_address_in_one_write() {
    let mut rig = Rig::new();
    rig.turn(vec![
        applied(import("imported", &[SHARED], 1)),
        slice_of("imported", Source::ClusterSet, &["1.1.1.1"]),
        slice_of("own", Source::Kubernetes, &["1.1.1.2"]),
    ]);
    rig.turn(vec![applied(of_cluster("own", SHARED, &[]))]);
    let of_frontend = |op: &&Op| match op.action {
        Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => key.address == ip(SHARED),
        _ => false,
    };
    let ops: Vec<_> = rig.log.iter().filter(of_frontend).collect();
    assert!(matches!(ops.as_slice(), [op] if is_insert(op)), "{ops:?}");
}

#[test]
fn the_older_of_two_imports_wins_in_any_order() {
    let [older, younger] =
        [("older", 1), ("younger", 2)].map(|(name, at)| applied(import(name, &[SHARED], at)));
    for order in [[older.clone(), younger.clone()], [younger, older]] {
        let mut rig = Rig::new();
        let mut snapshot = rig.turn(vec![]);
        for event in order {
            snapshot = rig.turn(vec![event]);
        }
        let view = found(&snapshot, &key("younger", Source::ClusterSet));
        let row = row(&view, SHARED);
        assert_eq!(
            (row.verdict, row.owner.clone()),
            (Verdict::Conflict, Some(key("older", Source::ClusterSet)))
        );
    }
}

#[test]
fn no_import_takes_node_apiserver_or_disallowed_addresses() {
    let mut rig = Rig::new();
    let node = NodeFacts {
        node_port_addresses: [ip("192.168.0.1")].into(),
        addresses: [ip("192.168.0.1"), ip("192.168.0.2")].into(),
        ..NodeFacts::default()
    };
    let settings = |external_ips| Settings {
        bypass: ["10.0.0.5:80".parse().unwrap()].into(),
        external_ips,
        ..Settings::default()
    };
    rig.turn(vec![
        Event::NodeApplied(Arc::new(node)),
        Event::SettingsApplied(Arc::new(settings(ExternalIps::All))),
    ]);
    let address = Some(Reason::Address);
    let mut check = |text: &str, allowed: ExternalIps, expected| {
        rig.turn(vec![Event::SettingsApplied(Arc::new(settings(allowed)))]);
        let snapshot = rig.turn(vec![applied(import("web", &[text], 1))]);
        let view = found(&snapshot, &key("web", Source::ClusterSet));
        let row = row(&view, text);
        assert_eq!((row.verdict, row.reason), expected, "{text}");
    };
    check("192.168.0.1", ExternalIps::All, (Verdict::Unprogrammed, address));
    check("192.168.0.2", ExternalIps::All, (Verdict::Unprogrammed, address));
    check("127.0.0.1", ExternalIps::All, (Verdict::Unprogrammed, address));
    check("169.254.169.254", ExternalIps::All, (Verdict::Unprogrammed, address));
    check("10.0.0.5", ExternalIps::All, (Verdict::Bypassed, Some(Reason::Control)));
    check(SHARED, ExternalIps::None, (Verdict::Unprogrammed, address));
    check(SHARED, ExternalIps::All, (Verdict::Refusing, Some(Reason::NoEndpoints)));
}

/// A node may get the address later, for example in a cloud.
#[test]
fn an_import_loses_an_address_that_becomes_the_nodes() {
    let mut rig = Rig::new();
    rig.turn(vec![
        applied(import("imported", &[SHARED], 1)),
        slice_of("imported", Source::ClusterSet, &["1.1.1.1"]),
    ]);
    let node_port_addresses = [ip(SHARED)].into();
    let node = NodeFacts { name: "here".into(), node_port_addresses, ..NodeFacts::default() };
    let snapshot = rig.turn(vec![Event::NodeApplied(Arc::new(node))]);
    assert_eq!(owned(&snapshot), (Verdict::Unprogrammed, None));
}

/// At a start without saved state the few imports arrive first, and the Services have many pages.
#[test]
fn an_import_waits_until_services_are_synced() {
    let mut rig = at_a_start();
    let imports = vec![
        applied(import("imported", &[SHARED], 1)),
        slice_of("imported", Source::ClusterSet, &["1.1.1.1"]),
        Event::Synced(Source::ClusterSet),
    ];
    rig.turn(imports);
    assert!(!rig.log.iter().any(|op| matches!(op.action, Action::InsertFrontend(..))), "{:?}", rig.log);
    let services = vec![applied(of_cluster("own", SHARED, &[])), Event::Synced(Source::Kubernetes)];
    let snapshot = rig.turn(services);
    assert_eq!(owned(&snapshot), (Verdict::Conflict, Some(key("own", Source::Kubernetes))));
}

/// A node whose sources have delivered nothing.
fn at_a_start() -> Rig {
    let mut rig = at_a_start_of(&[Source::Kubernetes, Source::ClusterSet]);
    rig.world.apply(settings(OnEmpty::Refuse));
    rig
}

fn at_a_start_of(sources: &[Source]) -> Rig {
    let mut rig = Rig::new();
    let capacity = Capacity { slots: 256, ports: 64, ..Capacity::default() };
    rig.world = World::new(Seed(0), capacity, sources);
    rig.world.queue.most = u64::MAX;
    rig
}

fn removed(rig: &Rig) -> Vec<IpAddr> {
    let removed = rig.log.iter().filter_map(|op| match op.action {
        Action::RemoveFrontend(key) => Some(key.address),
        _ => None,
    });
    removed.collect()
}

/// A node that boots while no apiserver answers.
#[test]
fn invariant_08_restored_imports_are_served_before_any_list() {
    let mut before = Rig::new();
    let snapshot = before.turn(vec![
        applied(import("imported", &[SHARED], 1)),
        slice_of("imported", Source::ClusterSet, &["1.1.1.1"]),
        applied(import("other", &["10.0.0.2"], 1)),
        applied(of_cluster("own", "10.0.0.2", &[])),
    ]);
    let mut next = at_a_start_of(&[Source::Config, Source::Kubernetes, Source::ClusterSet]);
    let mut remembered = SavedSnapshot::from(&snapshot);
    // The Service that owns the other address was too large to be saved.
    remembered.services.retain(|view| view.key.name != name("own"));
    next.world.restore_services(remembered, next.clock());
    let snapshot = next.turn(vec![settings(OnEmpty::Refuse), Event::Synced(Source::Config)]);
    assert!(snapshot.programmed, "no start waits for an import");
    let inserted: Vec<_> = next
        .log
        .iter()
        .filter_map(|op| match op.action {
            Action::InsertFrontend(key, _) => Some(key.address),
            _ => None,
        })
        .collect();
    assert_eq!(inserted, [ip(SHARED)], "no import gets a Service's address before the Services are synced");
    assert_eq!(owned(&snapshot), (Verdict::Serving, None));
}

/// The saved state is lost, and the apiserver lacks the kind.
#[test]
fn invariant_08_imports_that_a_start_found_stay_until_a_complete_list() {
    let imported = || {
        [applied(import("imported", &[SHARED], 1)), slice_of("imported", Source::ClusterSet, &["1.1.1.1"])]
    };
    let mut before = Rig::new();
    before.turn(imported().into_iter().chain([applied(of_cluster("gone", "10.0.0.2", &[]))]).collect());
    let mut later = at_a_start();
    assert_eq!(later.world.adopt(&before.dump()), []);
    later.turn(vec![Event::Synced(Source::Kubernetes)]);
    assert_eq!(removed(&later), [] as [IpAddr; 0], "the source is awaited");
    let snapshot = later.turn(vec![Event::Absent(Source::ClusterSet)]);
    assert!(snapshot.is_synced(), "nothing waits any more");
    assert_eq!(removed(&later), [ip("10.0.0.2")]);
    later.grace();
    let mut emptied = at_a_start();
    assert_eq!(emptied.world.adopt(&before.dump()), []);
    emptied.turn(vec![Event::Synced(Source::Kubernetes), Event::Absent(Source::ClusterSet)]);
    emptied.turn(vec![Event::Synced(Source::ClusterSet)]);
    assert_eq!(removed(&emptied), [ip(SHARED)], "the complete list lacks it");
    let synced = imported().into_iter().chain([Event::Synced(Source::ClusterSet)]).collect();
    assert_eq!(owned(&later.turn(synced)), (Verdict::Serving, None));
    let names: Vec<_> = later.log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["insert frontend"], "its port is adopted; its namespace has another number");
}

/// A tenant of `default` may choose any name for a ServiceImport.
#[test]
fn no_import_counts_as_the_path_to_the_apiserver() {
    let mut rig = Rig::new();
    let of = |endpoints: &[&str]| slice_of("kubernetes", Source::ClusterSet, endpoints);
    rig.turn(vec![settings(OnEmpty::Auto), applied(import("kubernetes", &[SHARED], 1)), of(&["1.1.1.1"])]);
    let snapshot = rig.turn(vec![of(&[])]);
    let view = found(&snapshot, &key("kubernetes", Source::ClusterSet));
    let row = row(&view, SHARED);
    assert_eq!(row.verdict, Verdict::Held);
    assert_ne!(row.reason, Some(Reason::Control));
}

/// The imports have arrived, their slices have not.
#[test]
fn invariant_08_a_partial_first_list_empties_nothing() {
    let mut rig = at_a_start();
    let half = vec![
        applied(import("imported", &[SHARED], 1)),
        Event::Synced(Source::Kubernetes),
        Event::Absent(Source::ClusterSet),
        applied(of_cluster("own", "10.0.0.2", &[])),
    ];
    let snapshot = rig.turn(half);
    assert!(snapshot.is_synced() && snapshot.programmed && !rig.world.has_dirty());
    assert_eq!(found(&snapshot, &key("own", Source::Kubernetes)).frontends.len(), 1);
    let of_import =
        |op: &Op| matches!(op.action, Action::InsertFrontend(key, _) if key.address == ip(SHARED));
    assert!(!rig.log.iter().any(of_import), "{:?}", rig.log);
    rig.turn(vec![
        applied(of_cluster("gone", SHARED, &[])),
        slice_of("gone", Source::Kubernetes, &["1.1.1.2"]),
    ]);
    rig.turn(vec![Event::ServiceDeleted(key("gone", Source::Kubernetes), None)]);
    assert_eq!(removed(&rig), [ip(SHARED)], "a partial import keeps no other service's frontend");
    let rest =
        vec![slice_of("imported", Source::ClusterSet, &["1.1.1.1"]), Event::Synced(Source::ClusterSet)];
    assert_eq!(owned(&rig.turn(rest)), (Verdict::Serving, None));
}

#[test]
fn the_internal_policy_of_an_import_binds_its_clients() {
    let mut rig = Rig::new();
    let facts = ServiceFacts { internal_policy: local(), ..import("web", &[SHARED], 1) };
    rig.turn(vec![applied(facts), slice_of("web", Source::ClusterSet, &["1.1.1.1", "@1.1.1.2"])]);
    let mut maps = MemoryMaps::default();
    rig.log.iter().for_each(|op| maps.execute(&op.action).unwrap());
    for client in [Client::Local, Client::Outside] {
        let DialOutcome::Served(slots) = maps.lookup(ip(SHARED), 80, Transport::Tcp, client) else {
            panic!("{client:?} is served")
        };
        let backends: Vec<_> = slots.iter().map(|slot| slot.address).collect();
        assert_eq!(backends, [ip("1.1.1.2")], "{client:?}");
    }
}

#[test]
fn a_headless_import_and_one_without_an_address_have_no_frontend() {
    let mut rig = Rig::new();
    let headless = ServiceFacts { headless: true, ..import("headless", &[SHARED], 1) };
    let snapshot = rig.turn(vec![applied(headless), applied(import("bare", &[], 1))]);
    for name in ["headless", "bare"] {
        assert!(found(&snapshot, &key(name, Source::ClusterSet)).frontends.is_empty(), "{name}");
    }
    assert!(!rig.log.iter().any(|op| matches!(op.action, Action::InsertFrontend(FrontendKey { .. }, _))));
}
