//! ServiceImports: served if the cluster has them; nothing waits for them if it does not.

use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Verdict;
use holdfast_kubernetes::source::{Resource, SourceSettings, State, Timing};
use holdfast_tests::fake::{Fault, Kind, RequestFilter};
use serde_json::{Value, json};

use crate::node::{Node, Setup, backend, ms, quick, service_object, slice_object, vip, web};

fn shared(number: u8) -> IpAddr {
    IpAddr::from([10, 200, 0, number])
}

fn import_object(name: &str, address: IpAddr) -> Value {
    json!({
        "kind": "ServiceImport", "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "type": "ClusterSetIP", "ips": [address],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        },
    })
}

/// A slice of a ServiceImport, with a name that no Service's slice has.
fn imported_slice(import: &str, backends: &[IpAddr]) -> Value {
    let mut slice = slice_object(import, backends);
    slice["metadata"]["name"] = format!("imported-{import}").into();
    slice["metadata"]["labels"] = json!({
        "multicluster.kubernetes.io/service-name": import,
        "multicluster.kubernetes.io/source-cluster": "c2",
    });
    slice
}

fn start(setup: Setup) -> Node {
    let timing = Timing { absent_retry: ms(200), ..quick() };
    Node::start_with(setup, SourceSettings { timing, service_imports: true, ..SourceSettings::default() })
}

/// The frontends at an address, from any source.
fn met(node: &Node, address: IpAddr) -> Vec<(Source, Verdict, Vec<SocketAddr>)> {
    let snapshot = node.snapshots.borrow();
    let rows = snapshot.services.iter().flat_map(|view| view.frontends.iter().map(move |row| (view, row)));
    let here = rows.filter(|(_, row)| row.address == address);
    let found = here.map(|(view, row)| {
        (view.key.source, row.verdict, view.backends(row).map(|row| row.slot().backend()).collect())
    });
    found.collect()
}

fn serving(number: u8) -> Vec<(Source, Verdict, Vec<SocketAddr>)> {
    vec![(Source::ClusterSet, Verdict::Serving, vec![SocketAddr::new(backend(number), 8080)])]
}

fn absent() -> Fault {
    Fault::status(404, "NotFound")
}

#[test]
fn the_service_import_api_can_appear_and_disappear() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.cluster.apply(import_object("far", shared(7))).unwrap();
    setup.cluster.apply(imported_slice("far", &[backend(7)])).unwrap();
    setup.servers[0].always(RequestFilter::for_kind(Kind::Imports), absent());
    let mut node = start(setup);
    node.wait("synced", |node| node.snapshots.borrow().is_synced());
    node.wait("served", |node| node.has(0));
    node.guard(0);
    node.wait("asked for twice", |node| {
        node.server().request_count(RequestFilter::for_kind(Kind::Imports)) >= 6
    });
    assert_eq!(node.log().matches("no ServiceImport is served").count(), 1, "{}", node.log());
    assert!(!node.log().contains("interrupted") && met(&node, shared(7)).is_empty());

    node.server().heal();
    node.wait("imported", |node| met(node, shared(7)) == serving(7));
    assert!(node.log().contains("the cluster's ServiceImports can be read"));

    // The kind disappears, as it does briefly when an apiserver starts.
    node.server().always(RequestFilter::for_kind(Kind::Imports), absent());
    node.server().end_watches(Kind::Imports);
    node.wait("told", |node| node.last_error(Resource::Imports).contains("404"));
    let refused = node.server().request_count(RequestFilter::for_kind(Kind::Imports));
    node.wait("told again", |node| {
        node.server().request_count(RequestFilter::for_kind(Kind::Imports)) >= refused + 2
    });
    assert_eq!(met(&node, shared(7)), serving(7), "what is known is served");
    node.cluster().apply(imported_slice("far", &[backend(8)])).unwrap();
    node.wait("its slices are followed", |node| met(node, shared(7)) == serving(8));
    node.server().heal();
    node.wait("watched again", |node| node.watch(Resource::Imports).state == State::Watching);

    node.cluster().delete(Kind::Imports, "default/far").unwrap();
    node.wait("gone", |node| met(node, shared(7)).is_empty());
    node.check_guard();
}

#[test]
fn a_slice_moved_to_another_import_takes_its_backends_along() {
    let setup = Setup::new(1);
    setup.services(1);
    for (name, number) in [("far", 7), ("near", 8)] {
        setup.cluster.apply(import_object(name, shared(number))).unwrap();
    }
    setup.cluster.apply(imported_slice("far", &[backend(7)])).unwrap();
    let mut node = start(setup);
    node.wait("imported", |node| met(node, shared(7)) == serving(7));
    let mut moved = imported_slice("near", &[backend(7)]);
    moved["metadata"]["name"] = "imported-far".into();
    node.cluster().apply(moved.clone()).unwrap();
    node.wait("moved", |node| met(node, shared(8)) == serving(7));
    assert!(met(&node, shared(7)).iter().all(|(_, verdict, _)| *verdict != Verdict::Serving));
    moved["metadata"]["labels"] = json!({"kubernetes.io/service-name": web(0)});
    node.cluster().apply(moved).unwrap();
    node.wait("it is a Service's now", |node| node.serves(0, &[backend(0), backend(7)]));
    node.wait("and no import's", |node| {
        met(node, shared(8)).iter().all(|(_, verdict, _)| *verdict != Verdict::Serving)
    });
}

/// As with the reference controller: a Service gets the address, and the slices have both labels.
#[test]
fn a_derived_service_owns_the_address_in_either_order() {
    for service_first in [true, false] {
        let setup = Setup::new(1);
        setup.services(1);
        let mut slice = imported_slice("far", &[backend(7)]);
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = "derived-1".into();
        setup.cluster.apply(slice).unwrap();
        let (service, import) = (service_object("derived-1", vip(9)), import_object("far", vip(9)));
        let [first, second] = if service_first { [service, import] } else { [import, service] };
        setup.cluster.apply(first).unwrap();
        let mut node = start(setup);
        let is_served = |node: &Node| met(node, vip(9)).iter().any(|it| it.1 == Verdict::Serving);
        node.wait("the first", is_served);
        node.guard(9);
        node.cluster().apply(second).unwrap();
        let backends = vec![SocketAddr::new(backend(7), 8080)];
        node.wait("both", |node| {
            let met = met(node, vip(9));
            met.contains(&(Source::Kubernetes, Verdict::Serving, backends.clone()))
                && met.iter().any(|(source, verdict, _)| {
                    (*source, *verdict) == (Source::ClusterSet, Verdict::Conflict)
                })
        });
        // A chance for a mistake to show.
        node.live(ms(300));
        node.check_guard();
    }
}
