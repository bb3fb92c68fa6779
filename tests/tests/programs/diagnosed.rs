//! What a diagnosis reads from a host: its sockets, routes and rules, and which backends answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_evidence::diagnose::gather::{GatherOptions, Gatherer};
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_objects::{
    Defaulting, Provenance, ServiceWire, SliceWire, from_value, parse_service, parse_slice,
};
use holdfast_tests::bed::{Bed, Layout, Location, Neighbour, Role, succeed};
use serde_json::{Value, json};

/// A service at 10.96.0.1:80 and node port 30080, with these endpoints.
fn snapshot(endpoints: &[&str]) -> Arc<Snapshot> {
    snapshot_from(Source::Kubernetes, endpoints)
}

fn snapshot_from(source: Source, endpoints: &[&str]) -> Arc<Snapshot> {
    let provenance = Provenance { source, origin: None, defaulting: Defaulting::Done };
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[source]).unwrap();
    let wire: ServiceWire = from_value(&json!({
        "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                 "ports": [{"protocol": "TCP", "port": 80, "nodePort": 30080}]},
    }))
    .unwrap();
    engine.apply(Event::ServiceApplied(Arc::new(parse_service(&wire, &provenance).unwrap())));
    let endpoints: Vec<Value> =
        endpoints.iter().map(|it| json!({"addresses": [it], "nodeName": "node-2"})).collect();
    let wire: SliceWire = from_value(&json!({
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
    }))
    .unwrap();
    engine.apply(Event::SliceApplied(Arc::new(parse_slice(&wire, &provenance).unwrap().0)));
    engine.apply(Event::Synced(source));
    engine.step(ClockReading { wall: Timestamp(1), mono: Duration::ZERO }, &mut |_| ())
}

fn bed() -> Bed {
    let neighbours = vec![Neighbour { name: "pod", near: vec!["10.1.0.1/24"], far: vec!["10.1.0.2/24"] }];
    Bed::lay(&Layout { neighbours, ..Layout::default() }).unwrap()
}

/// All evidence from the node's network, as text.
fn gather(bed: &Bed, snapshot: &Snapshot) -> String {
    let asks = GatherOptions { api: true, probes: true, frontend_skip_reason: None, time_limit: None };
    let name = ObjectName::new("shop", "web").unwrap();
    bed.within(Location::NODE, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = tokio::sync::watch::channel(Arc::default()).1;
        let gatherer = Gatherer::new(None, "node-1".into(), config);
        runtime.block_on(async { format!("{:?}", gatherer.gather_opaque(&name, snapshot, asks).await) })
    })
    .unwrap()
}

#[track_caller]
fn says(text: &str, wanted: &str) {
    assert!(text.contains(wanted), "{wanted:?} is not in {text}");
}

fn nft(bed: &Bed, words: &str) {
    let mut command = bed.command(Location::NODE, "nft").unwrap();
    command.arg(words);
    succeed(command, Duration::from_secs(120)).unwrap();
}

#[test]
fn backends_in_pod_ranges_are_probed_and_listeners_are_listed() {
    let bed = bed();
    let at = |text: &str| text.parse().unwrap();
    let _web = bed.serve(Location::pod("pod"), Role::Tcp, "web", at("10.1.0.2:8080")).unwrap();
    let _own = bed.serve(Location::NODE, Role::Tcp, "own", at("10.1.0.1:8080")).unwrap();
    let _squatter = bed.serve(Location::NODE, Role::Tcp, "squatter", at("0.0.0.0:30080")).unwrap();
    let snapshot = snapshot(&["10.1.0.2", "10.1.0.1", "10.1.0.9", "192.0.2.99", "127.0.0.1"]);
    let begun = Instant::now();
    let text = gather(&bed, &snapshot);
    assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", begun.elapsed());
    says(&text, "Probe { to: 10.1.0.2:8080, kind: Backend { local: false }, outcome: Connected");
    says(
        &text,
        "Probe { to: 10.1.0.1:8080, kind: Backend { local: true }, outcome: NotTried(\"it is an address",
    );
    says(&text, "Probe { to: 127.0.0.1:8080, kind: Backend { local: true }, outcome: NotTried(\"no pod");
    says(&text, "Probe { to: 192.0.2.99:8080, kind: Backend { local: false }, outcome: Unreachable(");
    says(&text, "Probe { to: 10.1.0.9:8080, kind: Backend { local: false }, outcome: TimedOut");
    says(
        &text,
        "listeners: Answered([Listener { port: 30080, protocol: \"TCP\", address: 0.0.0.0, process: Some(",
    );
    assert!(!text.contains("own: true"), "{text}");
    says(&text, "Route { to: 192.0.2.99, device: None, mtu: None, unreachable: Some(");
    says(&text, "mtu: Some(1500), unreachable: None }");
    says(&text, "rules: Answered([])");
    says(&text, "host_port_rules: Answered([])");
}

/// Tenants write the slices of a cluster; the administrator wrote this.
#[test]
fn local_backends_of_the_administrator_are_probed_too() {
    let bed = bed();
    let _own = bed.serve(Location::NODE, Role::Tcp, "own", "127.0.0.1:8080".parse().unwrap()).unwrap();
    for source in [Source::Config, Source::Manifests] {
        let text = gather(&bed, &snapshot_from(source, &["10.1.0.1", "127.0.0.1"]));
        says(&text, "Probe { to: 127.0.0.1:8080, kind: Backend { local: true }, outcome: Connected");
        says(&text, "Probe { to: 10.1.0.1:8080, kind: Backend { local: true }, outcome: Refused");
    }
}

#[test]
fn foreign_rules_for_our_frontends_are_shown_as_nft_lists_them() {
    let bed = bed();
    nft(&bed, "add table ip nat");
    for chain in ["KUBE-SERVICES", "KUBE-NODEPORTS", "CNI-HOSTPORT-DNAT"] {
        nft(&bed, &format!("add chain ip nat {chain}"));
    }
    nft(&bed, "add rule ip nat KUBE-SERVICES ip daddr 10.96.0.1 tcp dport 80 accept");
    nft(&bed, "add rule ip nat KUBE-SERVICES ip daddr 10.96.0.2 tcp dport 80 accept");
    nft(&bed, "add rule ip nat KUBE-SERVICES ip daddr 10.96.0.0/16 tcp dport 80 accept");
    nft(&bed, "add rule ip nat KUBE-NODEPORTS tcp dport 30080 accept");
    nft(&bed, "add rule ip nat KUBE-NODEPORTS udp dport 30080 accept");
    nft(&bed, "add rule ip nat CNI-HOSTPORT-DNAT tcp dport 8081 accept");
    nft(&bed, "add table ip kube-proxy");
    nft(&bed, "add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }");
    nft(
        &bed,
        "add element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80 : drop, 10.96.0.1 . udp . 80 : drop }",
    );
    nft(&bed, "add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }");
    nft(&bed, "add element ip kube-proxy service-nodeports { tcp . 30080 : drop }");
    let text = gather(&bed, &snapshot(&["10.1.0.2"]));
    let rule = |place: &str, frontend: &str| {
        format!("Rule {{ proxy: \"kube-proxy\", place: \"{place}\", frontend: {frontend}, backends: [] }}")
    };
    says(&text, &rule("iptables table nat, chain KUBE-SERVICES", "10.96.0.1:80"));
    says(&text, &rule("iptables table nat, chain KUBE-NODEPORTS", "0.0.0.0:30080"));
    says(&text, &rule("nftables table ip kube-proxy, map service-ips", "10.96.0.1:80"));
    says(&text, &rule("nftables table ip kube-proxy, map service-nodeports", "0.0.0.0:30080"));
    assert_eq!(text.matches("Rule {").count(), 4, "{text}");
    says(&text, "host_port_rules: Answered([8081])");
}
