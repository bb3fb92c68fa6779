//! Objects, the rules' results, and a client of one port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Timestamp};
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_objects::{Defaulting, Provenance, from_value};
use serde_json::{Value, json};

use holdfast_fixtures::TEST_TIMEOUT;

/// The name of this node.
pub(super) const NODE: &str = "n1";

const PROVENANCE: Provenance =
    Provenance { source: Source::Manifests, origin: None, defaulting: Defaulting::AsApiserver };

/// A Service with a health check port, created this many seconds after noon.
pub(super) fn balanced(name: &str, check: u16, created: u8) -> Value {
    json!({
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "creationTimestamp": format!("2026-01-08T12:00:{created:02}Z")},
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": check,
            "clusterIP": format!("10.96.0.{created}"), "clusterIPs": [format!("10.96.0.{created}")],
            "ipFamilies": ["IPv4"], "ports": [
                {"name": "a", "port": 80, "nodePort": 20_000 + u32::from(created)},
                {"name": "b", "port": 81, "nodePort": 21_000 + u32::from(created)},
            ],
        },
    })
}

/// Its slice: `10.0.0.1@n1 RS-` is an address, its node, and which conditions are true.
pub(super) fn slice(service: &str, endpoints: &[&str]) -> Value {
    let endpoint = |text: &&str| {
        let (address, rest) = text.split_once('@').unwrap();
        let (node, marks) = rest.split_once(' ').unwrap_or((rest, "RS"));
        let is = |mark| marks.contains(mark);
        json!({"addresses": [address], "nodeName": node,
               "conditions": {"ready": is('R'), "serving": is('S'), "terminating": is('T')}})
    };
    let is_v6 = endpoints.iter().any(|it| it.starts_with('f'));
    json!({
        "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-{is_v6}"), "namespace": "default",
                     "labels": {"kubernetes.io/service-name": service}},
        "addressType": if is_v6 { "IPv6" } else { "IPv4" },
        "ports": [{"name": "a", "port": 8080}, {"name": "b", "port": 8081}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn event(object: &Value) -> Event {
    if object["kind"] == "Service" {
        let facts = holdfast_objects::parse_service(&from_value(object).unwrap(), &PROVENANCE).unwrap();
        return Event::ServiceApplied(Arc::new(facts));
    }
    let facts = holdfast_objects::parse_slice(&from_value(object).unwrap(), &PROVENANCE).unwrap().0;
    Event::SliceApplied(Arc::new(facts))
}

/// A node's rules over maps in memory.
pub(super) struct Rules(Engine<MemoryMaps>, u64);

impl Rules {
    pub(super) fn new(addresses: &[&str], objects: &[Value]) -> Self {
        let started = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
        let mut rules = Self(started.0, 0);
        let node_port_addresses = addresses.iter().map(|it| it.parse().unwrap()).collect();
        let node = NodeFacts { name: NODE.into(), node_port_addresses, ..NodeFacts::default() };
        rules.0.apply(Event::NodeApplied(Arc::new(node)));
        objects.iter().for_each(|object| rules.0.apply(event(object)));
        rules.0.apply(Event::Synced(Source::Manifests));
        rules
    }

    pub(super) fn apply(&mut self, object: &Value) -> Arc<Snapshot> {
        self.0.apply(event(object));
        self.snapshot()
    }

    pub(super) fn snapshot(&mut self) -> Arc<Snapshot> {
        let mut snapshot = Arc::default();
        for _ in 0..10 {
            self.1 += 1;
            let mono = Duration::from_secs(self.1);
            let wall = Timestamp(1_767_870_715 + i64::try_from(self.1).unwrap());
            snapshot = self.0.step(ClockReading { wall, mono }, &mut |_| ());
        }
        snapshot
    }
}

/// Status line, headers and body of one response.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: String,
    head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let named = self.head.lines().filter_map(|line| line.split_once(": "));
        named.into_iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// One request, on its own connection.
pub(super) fn ask(address: SocketAddr, path: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: load-balancer\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.lines().next().unwrap_or_default().to_owned();
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// A loopback address with a free port.
pub(super) fn free(ip: &str) -> SocketAddr {
    let listener = std::net::TcpListener::bind((ip.parse::<std::net::IpAddr>().unwrap(), 0)).unwrap();
    listener.local_addr().unwrap()
}
