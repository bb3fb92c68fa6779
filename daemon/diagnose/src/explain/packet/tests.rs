//! Traces by real rules over maps in memory: each query with its golden answer.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use expect_test::expect_file;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Settings, Timestamp};
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Client, Maps, MemoryMaps};
use holdfast_core::time::ClockReading;
use holdfast_objects::manifests::TextFolder;

use super::*;
use crate::explain::query_match::{self, ExplainQuery};

const WORLD: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  externalIPs: [198.51.100.7]
  loadBalancerSourceRanges: [203.0.113.0/24, 192.0.2.0/24, 10.1.0.0/16, 10.2.0.0/16]
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-1}
  - {addresses: [10.2.0.1], nodeName: node-2}
  - {addresses: [10.3.0.1]}
---
apiVersion: v1
kind: Service
metadata: {name: here}
spec:
  type: NodePort
  clusterIP: 10.96.0.2
  externalTrafficPolicy: Local
  ports: [{port: 53, nodePort: 30053, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: here-1, labels: {kubernetes.io/service-name: here}}
addressType: IPv4
ports: [{port: 53, protocol: UDP}]
endpoints:
  - {addresses: [10.1.0.2], nodeName: node-1}
  - {addresses: [10.2.0.2], nodeName: node-2}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec:
  type: NodePort
  clusterIP: 10.96.0.3
  externalTrafficPolicy: Local
  ports: [{port: 80, nodePort: 30081}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere-1, labels: {kubernetes.io/service-name: elsewhere}}
addressType: IPv4
ports: [{port: 80}]
endpoints:
  - {addresses: [10.2.0.3], nodeName: node-2, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec:
  type: NodePort
  clusterIP: 10.96.0.4
  ports: [{name: a, port: 80, nodePort: 30082}, {name: b, port: 80, nodePort: 30082, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata:
  name: shifting
  annotations: {holdfast.io/maglev: 'true', holdfast.io/weights: 'node:node-2=3,10.3.0.4=0'}
spec:
  type: NodePort
  clusterIP: 10.96.0.5
  ports: [{port: 80, nodePort: 30083}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shifting-1, labels: {kubernetes.io/service-name: shifting}}
addressType: IPv4
ports: [{port: 80}]
endpoints:
  - {addresses: [10.1.0.4], nodeName: node-1}
  - {addresses: [10.2.0.4], nodeName: node-2}
  - {addresses: [10.3.0.4], nodeName: node-2}
---
apiVersion: v1
kind: Service
metadata: {name: kept, annotations: {holdfast.io/session-affinity-prefix: 'ipv4=20'}}
spec: {clusterIP: 10.96.0.6, ports: [{port: 80}], sessionAffinity: ClientIP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kept-1, labels: {kubernetes.io/service-name: kept}}
addressType: IPv4
ports: [{port: 80}]
endpoints:
  - {addresses: [10.1.0.5], nodeName: node-1}
  - {addresses: [10.2.0.5], nodeName: node-2}
";

/// A node that serves [`WORLD`].
fn world() -> (Arc<Snapshot>, Engine<MemoryMaps>) {
    served(WORLD)
}

/// A node that serves these objects.
fn served(objects: &str) -> (Arc<Snapshot>, Engine<MemoryMaps>) {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    let addresses = ["10.0.0.5", "fd00::5"].map(|address| address.parse().unwrap());
    let node = NodeFacts {
        name: "node-1".into(),
        node_port_addresses: addresses.into(),
        zone: None,
        addresses: [].into(),
        is_leaving: false,
    };
    let files = BTreeMap::from([(Arc::from("world.yaml"), objects.as_bytes().to_vec())]);
    let events = [Event::NodeApplied(Arc::new(node)), Event::SettingsApplied(Arc::<Settings>::default())];
    events
        .into_iter()
        .chain(TextFolder::new("manifests").replace_files(&files))
        .for_each(|event| engine.apply(event));
    engine.apply(Event::Synced(Source::Manifests));
    let mut snapshot = Arc::default();
    for second in 1..5 {
        let now = ClockReading {
            wall: Timestamp(1_000 + second),
            mono: Duration::from_secs(second.unsigned_abs()),
        };
        snapshot = engine.step(now, &mut |_| ());
    }
    assert_eq!(snapshot.rejections.total, 0);
    (snapshot, engine)
}

fn dialled(text: &str) -> DialTarget {
    let (address, protocol) =
        text.split_once('/').map_or((text, None), |(address, by)| (address, Some(Protocol::parse(by))));
    DialTarget::new(address.parse().unwrap(), protocol)
}

fn at(outer: &[&str], pods: &[&str]) -> AttachedDevices {
    let named = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
    let (shortcut, direct) = (FastPathDevices::default(), DsrConfig::default());
    AttachedDevices::Attached { outer: named(outer), pods: named(pods), fast_path: shortcut, dsr: direct }
}

fn ask(
    snapshot: &Snapshot,
    engine: &mut Engine<MemoryMaps>,
    watched: &AttachedDevices,
    (to, from): (&str, &str),
) -> Packet {
    let (found, mut subjects) = query_match::find_subjects(snapshot, &ExplainQuery::Address(dialled(to)));
    if found != query_match::QueryMatch::Frontend {
        subjects.clear();
    }
    let frontends = subjects.iter().flat_map(Subject::frontends).filter_map(details::frontend_key);
    let read: ReadBack = frontends.map(|key| (key, Ok(engine.maps_mut().read(&key).unwrap()))).collect();
    trace_packet(snapshot, watched, (&dialled(to), from.parse().unwrap()), &subjects, &read)
}

#[test]
fn a_packet_passes_where_no_program_is_attached() {
    let (snapshot, _) = world();
    let watched = AttachedDevices::from_datapath(&DatapathView::for_memory());
    let query = (&dialled("192.0.2.10:80"), "203.0.113.9".parse().unwrap());
    let packet = trace_packet(&snapshot, &watched, query, &[], &Vec::new());
    assert_eq!((packet.outcome.0, packet.steps.len()), (Outcome::Passed, 1));
    assert!(packet.sentence.ends_with("because this daemon's tables are in memory and touch no traffic."));
}

#[test]
fn one_device_or_the_first_three_are_named() {
    let named = |names: &[&str], of_pods| {
        prose::describe_device(&names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>(), of_pods)
    };
    assert!(named(&["eth0"], false).starts_with("eth0, the only outer one. If"));
    let several = named(&["eth0", "eth1"], false);
    assert!(several.starts_with("One of eth0, eth1, as the routes of other machines decide."), "{several}");
    assert!(named(&["veth1"], true).starts_with("veth1, the only device of pods. If"));
    let pods = ["veth1", "veth2", "veth3", "veth4", "veth5"];
    assert!(named(&pods, true).starts_with("One of veth1, veth2, veth3 and 2 more, the pod's own. If"));
}

/// Backends on other nodes and pods of this node use different devices.
#[test]
fn the_return_path_names_the_devices_that_bypass_the_stack() {
    let (snapshot, mut engine) = world();
    let AttachedDevices::Attached { outer, pods, .. } = at(&["eth0"], &[]) else { unreachable!() };
    let [eth0, veth7] = ["eth0", "veth7"].map(|name| vec![name.to_owned()]);
    let shortcut = FastPathDevices { outer: eth0.clone(), local: veth7, drivers: eth0, pods: Vec::new() };
    let watched = AttachedDevices::Attached { outer, pods, fast_path: shortcut, dsr: DsrConfig::default() };
    let mut leads_on_seen = Vec::new();
    for (to, from) in QUESTIONS {
        let packet = ask(&snapshot, &mut engine, &watched, (to, from));
        let leads_on = packet.backends.iter().any(|it| it.seen_as.0 != ClientAddress::Client);
        let back = packet.steps.iter().find(|it| it.step.0 == StepKind::ReturnPath);
        if let Some(back) = back {
            let says = "At eth0 packets of such flows bypass the stack, both ways, most of them at the driver of eth0.";
            assert_eq!(back.says.contains(says), leads_on, "{to} from {from}: {}", back.says);
            let is_near = packet.backends.iter().any(|it| it.seen_as.0 == ClientAddress::Client);
            let says = "Packets to and from pods behind veth7 bypass the stack.";
            assert_eq!(back.says.contains(says), is_near, "{to} from {from}: {}", back.says);
            leads_on_seen.push(leads_on);
        }
    }
    assert!(leads_on_seen.contains(&true) && leads_on_seen.contains(&false));
}

/// Node ports, affinity, other transports and nodes keep this node's address.
#[test]
fn dsr_depends_on_transport_frontend_client_and_backend() {
    let (snapshot, mut engine) = world();
    let network = |address: [u8; 4], bits| SourceRange::new(address.into(), bits).unwrap();
    let trace = |wraps, nodes: &[SourceRange], engine: &mut Engine<MemoryMaps>, question| {
        let AttachedDevices::Attached { outer, pods, fast_path: shortcut, .. } = at(&["eth0"], &[]) else {
            unreachable!()
        };
        let direct = DsrConfig { encap: wraps, dsr_from: nodes.to_vec(), families: vec![Family::V4] };
        ask(
            &snapshot,
            engine,
            &AttachedDevices::Attached { outer, pods, fast_path: shortcut, dsr: direct },
            question,
        )
    };
    let nodes = [network([10, 0, 0, 0], 24)];
    let with_pods = [network([10, 0, 0, 0], 24), network([10, 2, 0, 0], 16)];
    let vip = ("10.96.0.5:80", "198.51.100.9");
    for (wraps, nodes, question, expected) in [
        (DsrTransports::Tcp, &nodes[..], vip, [ClientAddress::Client, ClientAddress::Dsr]),
        (DsrTransports::TcpAndUdp, &nodes, vip, [ClientAddress::Client, ClientAddress::Dsr]),
        (DsrTransports::Off, &nodes, vip, [ClientAddress::Client, ClientAddress::Node]),
        (DsrTransports::Tcp, &with_pods, vip, [ClientAddress::Client, ClientAddress::Node]),
        (
            DsrTransports::Tcp,
            &nodes,
            ("10.96.0.5:80", "10.0.0.6"),
            [ClientAddress::Client, ClientAddress::Node],
        ),
        (
            DsrTransports::Tcp,
            &nodes,
            ("10.0.0.5:30083", "198.51.100.9"),
            [ClientAddress::Client, ClientAddress::Node],
        ),
        (
            DsrTransports::Tcp,
            &nodes,
            ("10.96.0.1:80", "198.51.100.9"),
            [ClientAddress::Client, ClientAddress::Node],
        ),
    ] {
        let packet = trace(wraps, nodes, &mut engine, question);
        let seen: Vec<_> = packet.backends.iter().take(2).map(|it| it.seen_as.0).collect();
        assert_eq!(seen, expected, "{wraps} {nodes:?} {question:?}");
        let back = packet.steps.iter().find(|it| it.step.0 == StepKind::ReturnPath).unwrap();
        assert_eq!(back.says.contains("past this one"), expected[1] == ClientAddress::Dsr, "{}", back.says);
    }
}

fn written(packet: &Packet) -> String {
    let mut text = format!("{}\n", packet.sentence);
    for step in &packet.steps {
        let _ = writeln!(text, "  {}: {}", step.step, step.says);
    }
    for it in &packet.backends {
        let node = it.node.as_deref().unwrap_or("-");
        let _ = writeln!(text, "  {:.3} {} {node} {}", it.share, it.backend, it.seen_as);
    }
    text
}

const QUESTIONS: [(&str, &str); 22] = [
    ("192.0.2.10:80", "203.0.113.9"),
    ("192.0.2.10:80", "198.51.100.9"),
    ("192.0.2.10:80", "10.1.0.2"),
    ("192.0.2.10:80", "10.3.0.1"),
    ("198.51.100.7:80", "198.51.100.9"),
    ("10.0.0.5:30080", "198.51.100.9"),
    ("10.96.0.1:80", "198.51.100.9"),
    ("10.96.0.6:80", "198.51.100.9"),
    ("10.0.0.6:30080", "198.51.100.9"),
    ("10.0.0.5:30053", "198.51.100.9"),
    ("10.0.0.5:30053", "10.1.0.1"),
    ("10.0.0.5:30053", "10.1.0.2"),
    ("10.0.0.5:30053/TCP", "198.51.100.9"),
    ("10.0.0.5:30081", "198.51.100.9"),
    ("10.0.0.5:30081", "10.1.0.1"),
    ("10.0.0.5:30082", "198.51.100.9"),
    ("10.0.0.5:30082/UDP", "198.51.100.9"),
    ("10.0.0.5:30082", "10.0.0.5"),
    ("10.0.0.5:30083", "198.51.100.9"),
    ("127.0.0.1:30080", "198.51.100.9"),
    ("10.1.0.1:8080", "198.51.100.9"),
    ("[fd00::5]:30080", "fd00::9"),
];

#[test]
fn each_step_matches_the_golden() {
    let (snapshot, mut engine) = world();
    let mut book = String::new();
    for (to, from) in QUESTIONS {
        let packet = ask(&snapshot, &mut engine, &at(&["eth0"], &["veth7"]), (to, from));
        let _ = writeln!(book, "== {from} to {to}\n{}", written(&packet));
    }
    expect_file!["golden.txt"].assert_eq(&book);
}

#[test]
fn an_unknown_port_of_a_cluster_ip_is_refused_an_unknown_address_passes() {
    let (snapshot, mut engine) = world();
    for (to, from, outcome, says) in [
        (
            "10.96.0.1:81",
            "198.51.100.9",
            Outcome::Refused,
            "10.96.0.1 is a cluster IP of default/web, which has no such port.",
        ),
        ("10.96.0.1:80/UDP", "10.1.0.1", Outcome::Refused, "is refused by an ICMP port unreachable, because"),
        ("10.96.0.4:81", "198.51.100.9", Outcome::Refused, "of default/nobody, which has no such port."),
        ("10.96.0.9:80", "198.51.100.9", Outcome::Passed, "because no service has that frontend."),
        ("192.0.2.10:81", "198.51.100.9", Outcome::Passed, "because no service has that frontend."),
        ("10.96.0.1:81", "10.0.0.5", Outcome::Passed, "because no service has that frontend."),
    ] {
        let packet = ask(&snapshot, &mut engine, &at(&["eth0"], &["veth7"]), (to, from));
        assert_eq!(packet.outcome.0, outcome, "{to}: {}", packet.sentence);
        assert!(packet.sentence.contains(says), "{to}: {}", packet.sentence);
    }
}

/// Programs recognise a pod by its device, so without one no program processes its packets.
#[test]
fn a_client_without_an_attached_device_passes_unchanged() {
    let (snapshot, mut engine) = world();
    let (pod, outside) = (("10.0.0.5:30053", "10.1.0.1"), ("10.0.0.5:30080", "198.51.100.9"));
    for (watched, query, outcome) in [
        (at(&["eth0"], &[]), pod, Outcome::Passed),
        (at(&["eth0"], &["veth7"]), pod, Outcome::Served),
        (at(&[], &["veth7"]), pod, Outcome::Served),
        (at(&[], &["veth7"]), outside, Outcome::Passed),
        (at(&["eth0"], &[]), outside, Outcome::Served),
    ] {
        let packet = ask(&snapshot, &mut engine, &watched, query);
        assert_eq!(packet.outcome.0, outcome, "{query:?}: {}", packet.sentence);
    }
}

/// Sends the same query to the maps themselves, for outside clients.
#[test]
fn the_trace_agrees_with_a_lookup_in_the_maps() {
    use holdfast_core::maps::DialOutcome;

    let (snapshot, mut engine) = world();
    for (to, from) in QUESTIONS {
        let packet = ask(&snapshot, &mut engine, &at(&["eth0"], &["veth7"]), (to, from));
        if packet.client.0 != ClientClass::Outside {
            continue;
        }
        let (address, from) = (dialled(to).address, from.parse().unwrap());
        let transport = packet.protocol.0;
        let met = engine.maps().lookup(address.ip(), address.port(), transport, Client::From(from));
        let (outcome, backends) = match &met {
            DialOutcome::Passed => (Outcome::Passed, Vec::new()),
            DialOutcome::Refused => (Outcome::Refused, Vec::new()),
            DialOutcome::Dropped => (Outcome::Dropped, Vec::new()),
            DialOutcome::Served(slots) => {
                (Outcome::Served, slots.iter().map(|slot| slot.backend().to_string()).collect())
            }
        };
        assert_eq!(packet.outcome.0, outcome, "{from} to {to}: {met:?}");
        let listed: Vec<String> = packet.backends.iter().map(|it| it.backend.clone()).collect();
        assert_eq!(listed, backends, "{from} to {to}");
    }
}

#[test]
fn unreadable_maps_give_an_unknown_outcome() {
    let (snapshot, _) = world();
    let (_, subjects) =
        query_match::find_subjects(&snapshot, &ExplainQuery::Address(dialled("192.0.2.10:80")));
    let keys = subjects.iter().flat_map(Subject::frontends).filter_map(details::frontend_key);
    let read: ReadBack = keys.map(|key| (key, Err("the engine is busy".to_owned()))).collect();
    let watched = at(&["eth0", "eth1"], &[]);
    let query = (&dialled("192.0.2.10:80"), "203.0.113.9".parse().unwrap());
    let packet = trace_packet(&snapshot, &watched, query, &subjects, &read);
    assert_eq!(packet.outcome.0, Outcome::Unknown);
    assert!(packet.sentence.ends_with("could not be read: the engine is busy."), "{}", packet.sentence);
}

#[test]
fn three_ranges_are_named_and_the_others_counted() {
    let range =
        |number: u8| holdfast_core::source_ranges::SourceRange::single_host([10, 0, 0, number].into());
    let ranges: Vec<_> = (1..6).map(range).collect();
    assert_eq!(prose::join_names(&ranges), "10.0.0.1/32, 10.0.0.2/32, 10.0.0.3/32 and 2 more");
    assert_eq!(prose::join_names(&ranges[..3]), "10.0.0.1/32, 10.0.0.2/32, 10.0.0.3/32");
}

#[test]
fn one_maglev_backend_needs_no_table() {
    use holdfast_core::op::{Word, WordFlags};

    let flags = WordFlags::default().with(WordFlags::MAGLEV, true);
    let slot = holdfast_core::list::Slot {
        address: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
        port: std::num::NonZeroU16::MIN,
        state: holdfast_core::list::SlotState::Active,
    };
    let text = prose::describe_selection(Word { base: 0, count: 1, flags }, &[(slot, 1)].into(), true, None);
    assert_eq!(text, "There is one backend.");
}

#[test]
fn a_long_list_and_a_full_table_have_different_reasons() {
    use holdfast_core::op::{Word, WordFlags};

    let flags = WordFlags::default().with(WordFlags::MAGLEV, true);
    let text = |count: u32| {
        let slot = |number: u32| holdfast_core::list::Slot {
            address: std::net::Ipv4Addr::from(0x0a00_0000 + number).into(),
            port: std::num::NonZeroU16::MIN,
            state: holdfast_core::list::SlotState::Active,
        };
        let backends = (0..count).map(|number| (slot(number), 1)).collect();
        prose::describe_selection(Word { base: 0, count, flags }, &backends, false, None)
    };
    assert_eq!(text(6_553).matches("There are too many for a table").count(), 2, "{}", text(6_553));
    assert_eq!(text(6_552).matches("There is no room for a table").count(), 2, "{}", text(6_552));
}

/// Two services name one external IP: one owns it, the other only claims it.
#[test]
fn a_packet_reaches_the_owner_of_an_address_not_a_claimant() {
    let claiming = |name: &str, created: &str, address: &str, backend: &str| {
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: {name}, creationTimestamp: '{created}'}}
spec: {{clusterIP: {address}, externalIPs: [198.51.100.9], ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 80}}]
endpoints: [{{addresses: [{backend}]}}]
---"
        )
    };
    let young = claiming("first-by-name", "2026-01-02T00:00:00Z", "10.96.1.1", "10.1.1.1");
    let old = claiming("owner", "2026-01-01T00:00:00Z", "10.96.1.2", "10.1.1.2");
    let (snapshot, mut engine) = served(&(young + &old));
    let (to, from) = (dialled("198.51.100.9:80"), "203.0.113.9".parse().unwrap());
    let (_, mut subjects) =
        query_match::find_subjects(&snapshot, &ExplainQuery::Address(dialled("198.51.100.9:80")));
    assert_eq!(subjects.len(), 2);
    let keys = subjects.iter().flat_map(Subject::frontends).filter_map(details::frontend_key);
    let read: ReadBack = keys.map(|key| (key, Ok(engine.maps_mut().read(&key).unwrap()))).collect();
    for _ in 0..2 {
        subjects.reverse();
        let packet = trace_packet(&snapshot, &at(&["eth0"], &[]), (&to, from), &subjects, &read);
        let backends: Vec<_> = packet.backends.iter().map(|it| it.backend.as_str()).collect();
        assert_eq!(backends, ["10.1.1.2:80"]);
        let text = written(&packet);
        assert!(text.contains("default/owner") && !text.contains("first-by-name"), "{text}");
    }
}
