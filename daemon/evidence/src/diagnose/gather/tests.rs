//! The addresses that a diagnosis dials, and its reading of the results.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_diagnose::evidence::{
    Cluster, Lookup, ObservedPort, ObservedService, Pod, Pods, Probe, ProbeKind, ProbeOutcome, TargetPort,
};
use holdfast_diagnose::{Focus, HttpPath, KnownServices, find_views};
use holdfast_objects::{
    Defaulting, Provenance, ServiceWire, SliceWire, from_value, parse_service, parse_slice,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::http;
use super::probes::{self, ProbeTarget};
use super::{GatherOptions, Gatherer};

const NODE: &str = "node-1";

/// An address outside the cluster that the service claims.
const ELSEWHERE: &str = "192.0.2.77";

fn name() -> ObjectName {
    ObjectName::new("shop", "web").unwrap()
}

/// A service with these endpoints: address, node, kind of its target.
fn snapshot(endpoints: &[(&str, &str, &str)]) -> Arc<Snapshot> {
    snapshot_at(("TCP", 80), endpoints)
}

fn snapshot_at((protocol, port): (&str, u16), endpoints: &[(&str, &str, &str)]) -> Arc<Snapshot> {
    let provenance = Provenance { source: Source::Kubernetes, origin: None, defaulting: Defaulting::Done };
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Kubernetes]).unwrap();
    let object = json!({
        "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                 "externalIPs": [ELSEWHERE],
                 "ports": [{"protocol": protocol, "port": port, "nodePort": 30080}]},
    });
    let wire: ServiceWire = from_value(&object).unwrap();
    engine.apply(Event::ServiceApplied(Arc::new(parse_service(&wire, &provenance).unwrap())));
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(address, node, kind)| {
            json!({"addresses": [address], "nodeName": node, "targetRef": {"kind": kind, "name": "a"},
                   "conditions": {"ready": *kind != "Unready"}})
        })
        .collect();
    let object = json!({
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "", "protocol": protocol, "port": 8080}],
    });
    let wire: SliceWire = from_value(&object).unwrap();
    engine.apply(Event::SliceApplied(Arc::new(parse_slice(&wire, &provenance).unwrap().0)));
    engine.apply(Event::Synced(Source::Kubernetes));
    engine.step(ClockReading { wall: Timestamp(1), mono: Duration::ZERO }, &mut |_| ())
}

fn targets(endpoints: &[(&str, &str, &str)], own: &[&str]) -> Vec<ProbeTarget> {
    let own: Vec<IpAddr> = own.iter().map(|address| address.parse().unwrap()).collect();
    probes::backend_targets(&find_views(&name(), &snapshot(endpoints)), NODE, &own)
}

#[track_caller]
fn check(endpoints: &[(&str, &str, &str)], own: &[&str], dialled: &[&str]) {
    let found = targets(endpoints, own).into_iter().filter(|it| it.skip_reason.is_none());
    let found: Vec<String> = found.map(|target| target.address().to_string()).collect();
    assert_eq!(found, dialled, "{endpoints:?}");
}

#[test]
fn only_endpoints_that_a_pod_can_be_are_dialled() {
    check(&[("10.0.0.1", "node-2", "Pod"), ("10.0.0.2", NODE, "Pod")], &[], &["10.0.0.1", "10.0.0.2"]);
    check(&[("127.0.0.1", NODE, "Pod"), ("169.254.169.254", NODE, "Pod")], &[], &[]);
    let own = &["192.0.2.1"];
    check(&[("192.0.2.1", "node-2", "Pod")], own, &[]);
    check(&[("192.0.2.1", NODE, "Thing")], own, &[]);
    check(&[("192.0.2.1", NODE, "Pod")], own, &["192.0.2.1"]);
}

#[test]
fn only_backends_behind_udp_port_53_are_queried_for_names() {
    let endpoints = [("10.0.0.1", "node-2", "Pod"), ("127.0.0.1", NODE, "Pod")];
    for (at, asked) in [(("UDP", 53), 1), (("TCP", 53), 0), (("UDP", 8125), 0)] {
        let snapshot = snapshot_at(at, &endpoints);
        let found = probes::name_server_targets(&find_views(&name(), &snapshot), 53, NODE, &[]);
        let found: Vec<_> = found.into_iter().filter(|it| it.skip_reason.is_none()).map(|it| it.to).collect();
        let wanted: Vec<SocketAddr> = vec!["10.0.0.1:8080".parse().unwrap(); asked];
        assert_eq!(found, wanted, "{at:?}");
    }
}

/// A tenant may write `appProtocol` of a port, any address in a slice, and any external address.
#[tokio::test]
async fn kernel_an_http_port_gets_only_pods_of_the_service_queried() {
    let (own, listed) = ("127.0.0.1:8080", "127.0.0.2:8080");
    let (other_port, claimed) = ("127.0.0.1:9090", "192.0.2.77:80");
    let snapshot = snapshot(&[("127.0.0.1", NODE, "Pod"), ("127.0.0.2", NODE, "Pod")]);
    let views = find_views(&name(), &snapshot);
    assert!(views[0].frontends.iter().any(|it| it.port.get() == 80 && it.address.to_string() == ELSEWHERE));
    for (says, asked) in [
        (Some("http"), &[own][..]),
        (Some("HTTP"), &[own]),
        (Some("kubernetes.io/ws"), &[own]),
        (Some("https"), &[]),
        (Some("http\r\nHost: evil"), &[]),
        (None, &[]),
    ] {
        let port = ObservedPort {
            name: String::new(),
            protocol: "TCP".to_owned(),
            port: 80,
            target: TargetPort::Number(8080),
            app_protocol: says.map(str::to_owned),
        };
        let service = ObservedService { ports: vec![port], ..ObservedService::default() };
        let pod = Pod { name: "web-1".to_owned(), ips: vec!["127.0.0.1".parse().unwrap()], ..Pod::default() };
        let cluster = Cluster {
            service: Lookup::Answered(Some(service)),
            pods: Lookup::Answered(Pods { list: vec![pod], more: false }),
            ..Cluster::default()
        };
        let connected = |to: &str, of| Probe {
            to: to.parse().unwrap(),
            kind: of,
            outcome: ProbeOutcome::Connected,
            took: Duration::ZERO,
        };
        let behind = [own, listed, other_port].map(|to| connected(to, ProbeKind::Backend { local: true }));
        let before = [claimed, own].map(|to| connected(to, ProbeKind::Frontend));
        let probes = Lookup::Answered(behind.into_iter().chain(before).collect());
        let (path, until) = (HttpPath::parse("/").unwrap(), Instant::now() + Duration::from_millis(200));
        let found = http::query_backends(Some(&path), &name(), (&views, &cluster), &probes, until).await;
        let found: Vec<String> = found.answer().unwrap().iter().map(|it| it.to.to_string()).collect();
        assert_eq!(found, asked, "{says:?}");
    }
}

#[test]
fn twenty_backends_are_dialled_ready_ones_first() {
    let addresses: Vec<String> = (1..=60).map(|number| format!("10.0.0.{number}")).collect();
    let kind = |number: usize| if number < 45 { "Unready" } else { "Pod" };
    let all: Vec<_> =
        addresses.iter().enumerate().map(|(at, address)| (address.as_str(), "node-2", kind(at))).collect();
    let found = targets(&all, &[]);
    assert_eq!(found.len(), 20);
    let ready = found.iter().take(15).map(|target| target.address().to_string());
    assert_eq!(ready.collect::<Vec<_>>(), addresses[45..], "the fifteen ready ones");
}

#[tokio::test]
async fn kernel_open_closed_skipped_and_late_targets_differ() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let open = listener.local_addr().unwrap();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = closed.local_addr().unwrap();
    drop(closed);
    let target =
        |to: SocketAddr| ProbeTarget { to, kind: ProbeKind::Backend { local: false }, skip_reason: None };
    let barred = ProbeTarget { skip_reason: Some("because"), ..target(open) };
    let begun = Instant::now();
    let targets = vec![target(open), target(refused), barred];
    let found = probes::dial_targets(targets, begun + Duration::from_secs(4)).await;
    assert_eq!(found[0].outcome, ProbeOutcome::Connected);
    assert_eq!(found[1].outcome, ProbeOutcome::Refused);
    assert_eq!(found[2].outcome, ProbeOutcome::NotTried("because"));
    let late = probes::dial_targets(vec![target(open)], begun).await;
    assert_eq!(late[0].outcome, ProbeOutcome::NotTried("no time left"));
}

#[tokio::test]
async fn without_an_apiserver_or_probes_only_this_host_is_read() {
    let gatherer = Gatherer::new(None, NODE.into(), tokio::sync::watch::channel(Arc::default()).1);
    let snapshot = snapshot(&[("10.0.0.1", NODE, "Pod")]);
    let options = GatherOptions { api: true, probes: false, frontend_skip_reason: None, time_limit: None };
    let focus = Focus::default();
    let known = KnownServices::find(name(), snapshot, &focus);
    let found = gatherer.gather_evidence(&known, (options, &focus)).await;
    assert_eq!(found.cluster.pods.unavailable_reason().unwrap(), "no apiserver is used");
    assert!(matches!(found.probes, Lookup::Skipped(_)) && matches!(found.names, Lookup::Skipped(_)));
    assert!(found.host.port_range.answer().is_some(), "{:?}", found.host);
    assert!(found.host.addresses.answer().is_some_and(|all| !all.is_empty()));
    assert!(matches!(found.host.health, Lookup::Skipped(_)));
}

#[tokio::test]
async fn kernel_an_exempt_daemon_dials_no_frontend() {
    let snapshot = snapshot(&[("10.0.0.1", NODE, "Pod")]);
    let found =
        probes::frontend_targets(&find_views(&name(), &snapshot), &snapshot, Some("our cgroup is exempt"));
    let found = probes::dial_targets(found, Instant::now() + Duration::from_secs(1)).await;
    let cluster_ip = found.iter().find(|it| it.to == "10.96.0.1:80".parse().unwrap()).unwrap();
    assert_eq!(cluster_ip.kind, ProbeKind::Frontend);
    assert_eq!(cluster_ip.outcome, ProbeOutcome::NotTried("our cgroup is exempt"));
}

#[tokio::test]
async fn kernel_the_health_port_is_queried_at_its_listener() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    };
    let listener_view = holdfast_diagnose::evidence::Listener {
        port,
        protocol: "TCP".to_owned(),
        address: "127.0.0.1".parse().unwrap(),
        process: None,
        pid: None,
        own: true,
    };
    let until = Instant::now() + Duration::from_secs(2);
    let listeners = vec![listener_view];
    let (found, ()) = tokio::join!(probes::query_health(port, Some(&listeners), until), answer);
    assert_eq!(found, Lookup::Answered(503));
    assert!(
        matches!(probes::query_health(port, None, until).await, Lookup::Failed(_)),
        "no listener is known"
    );
}
