//! SCTP associations through a node over raw sockets: from outside and from pods whose packets are translated, to near
//! and far backends, with different ports. An end that receives a wrong checksum fails the test.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::bed::sctp::{
    COOKIE_ACK, COOKIE_ECHO, DATA, End, INIT, INIT_ACK, SACK, SHUTDOWN, SHUTDOWN_ACK, SHUTDOWN_COMPLETE,
};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::Family;
use serde_json::{Value, json};

use crate::node::{self, SERVED, last_lines, on_a_node, write};

pub(crate) const PORT: u16 = 36_412;
const NODE_PORT: u16 = 30_412;
const TARGET: u16 = 38_412;

/// A busy machine takes a while for each packet.
const PATIENCE: Duration = Duration::from_secs(20);

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A service and its one backend.
pub(crate) struct Signalling {
    name: &'static str,
    cluster: [&'static str; 2],
    pub(crate) balancer: [&'static str; 2],
    place: &'static str,
    pod: [&'static str; 2],
    node: &'static str,
    node_port: u16,
}

pub(crate) const SERVICES: [Signalling; 2] = [
    Signalling {
        name: "signalling",
        cluster: ["10.96.7.1", "fd00:96::701"],
        balancer: ["192.168.7.201", "fd00:192:168::7201"],
        place: "pod-a",
        pod: ["10.244.1.10", "fd00:244:1::10"],
        node: "n1",
        node_port: NODE_PORT,
    },
    Signalling {
        name: "signalling-away",
        cluster: ["10.96.7.2", "fd00:96::702"],
        balancer: ["192.168.7.202", "fd00:192:168::7202"],
        place: "pod-r",
        pod: ["10.244.9.10", "fd00:244:9::10"],
        node: "n2",
        node_port: NODE_PORT + 1,
    },
];

impl Signalling {
    pub(crate) fn objects(&self) -> Vec<Value> {
        let port = json!({"name": "s", "protocol": "SCTP", "port": PORT, "nodePort": self.node_port});
        let balancers: Vec<Value> = self.balancer.iter().map(|ip| json!({"ip": ip})).collect();
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": self.cluster[0], "clusterIPs": self.cluster,
                "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"], "ports": [port],
            },
            "status": {"loadBalancer": {"ingress": balancers}},
        });
        let slice = |family: Family| {
            let (kind, suffix) = family.of([("IPv4", "v4"), ("IPv6", "v6")]);
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
                "metadata": {
                    "name": format!("{}-{suffix}", self.name), "namespace": "default",
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "ports": [{"name": "s", "protocol": "SCTP", "port": TARGET}],
                "endpoints": [{
                    "addresses": [family.of(self.pod)], "nodeName": self.node, "conditions": {"ready": true},
                }],
            })
        };
        [service].into_iter().chain(FAMILIES.map(slice)).collect()
    }
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().unwrap(), port)
}

fn serve(daemon: &Daemon<'_>) {
    let objects: Vec<Value> = SERVICES.iter().flat_map(Signalling::objects).collect();
    write(daemon, "signalling", &objects);
}

/// A client and its backend, and the addresses that they see.
struct Pair<'a> {
    client: &'a End,
    frontend: SocketAddr,
    backend: &'a End,
    /// The client, as its backend sees it.
    seen: SocketAddr,
}

impl<'a> Pair<'a> {
    /// The client repeats INIT until its backend receives it: objects are served a moment after they are written.
    #[track_caller]
    fn meet(daemon: &Daemon<'_>, client: &'a End, frontend: SocketAddr, backend: &'a End) -> Self {
        let until = Instant::now() + SERVED;
        loop {
            client.say(frontend, 0, INIT, &beginning(1)).unwrap();
            if let Ok(heard) = backend.hear(Duration::from_secs(1)) {
                assert_eq!((heard.kind, heard.tag), (INIT, 0));
                assert_eq!(heard.content, beginning(1), "not a byte of a chunk changes");
                return Self { client, frontend, backend, seen: heard.from };
            }
            assert!(
                Instant::now() < until,
                "{frontend} is not served; the daemon said:\n{}",
                last_lines(daemon)
            );
        }
    }

    #[track_caller]
    fn asks(&self, kind: u8, content: &[u8]) {
        self.client.say(self.frontend, 2, kind, content).unwrap();
        let heard = self.backend.hear(PATIENCE).unwrap();
        assert_eq!((heard.from, heard.kind, heard.content.as_slice()), (self.seen, kind, content));
    }

    #[track_caller]
    fn answers(&self, kind: u8, content: &[u8]) {
        self.backend.say(self.seen, 1, kind, content).unwrap();
        let heard = self.client.hear(PATIENCE).unwrap();
        assert_eq!((heard.from, heard.kind, heard.content.as_slice()), (self.frontend, kind, content));
    }

    /// From the first INIT to the last chunk, with data of odd and even lengths in both directions.
    #[track_caller]
    fn talk(&self) {
        self.answers(INIT_ACK, &beginning(2));
        self.asks(COOKIE_ECHO, b"a cookie");
        self.answers(COOKIE_ACK, b"");
        for length in [1, 2, 3, 4, 100, 1_300] {
            let data: Vec<u8> = (0..12 + length).map(|at| u8::try_from(at % 251).unwrap()).collect();
            self.asks(DATA, &data);
            self.answers(SACK, &[0; 12]);
            self.answers(DATA, &data);
            self.asks(SACK, &[0; 12]);
        }
    }

    #[track_caller]
    fn end(&self) {
        self.asks(SHUTDOWN, &[0; 4]);
        self.answers(SHUTDOWN_ACK, b"");
        self.asks(SHUTDOWN_COMPLETE, b"");
    }
}

/// The first fields of INIT and INIT ACK: a tag, a window, two numbers of streams, the first sequence number.
fn beginning(tag: u32) -> Vec<u8> {
    [&tag.to_be_bytes()[..], &[0, 1, 0, 0, 0, 8, 0, 8], &7_u32.to_be_bytes()].concat()
}

/// The state of the client's association in the flow table, by its port.
#[track_caller]
fn state(daemon: &Daemon<'_>, port: u16) -> String {
    let answer = daemon.ask(&["flows"]).unwrap();
    let flows = answer["flows"].as_array().unwrap();
    let its: Vec<_> = flows.iter().filter(|it| it["client_port"] == port).collect();
    assert!(its.len() == 1 && its[0]["protocol"] == "SCTP", "{its:?}");
    its[0]["state"].as_str().unwrap().to_owned()
}

#[track_caller]
fn backend_of(bed: &Bed, service: &Signalling, family: Family) -> End {
    End::open(bed, Location::far(service.place), family.of([true, false]), TARGET).unwrap()
}

#[test]
fn outside_clients_associations_have_correct_checksums() {
    let switches =
        Switches { strict_rp_filter: true, guarded: true, no_offload: true, ..Switches::default() };
    on_a_node(switches, "", |bed, daemon, _| {
        serve(daemon);
        let mut port = 40_000;
        for (service, family) in SERVICES.iter().flat_map(|it| FAMILIES.map(|family| (it, family))) {
            let backend = backend_of(bed, service, family);
            let balancer = at(family.of(service.balancer), PORT);
            for frontend in [balancer, at(family.of(NODE_ADDRESSES), service.node_port)] {
                port += 1;
                let client = End::open(bed, Location::far("client"), family.of([true, false]), port).unwrap();
                let pair = Pair::meet(daemon, &client, frontend, &backend);
                assert_ne!(pair.seen.port(), port, "its port is rewritten, too");
                let own = family.of(NODE_ADDRESSES).parse::<IpAddr>().unwrap();
                assert_eq!(pair.seen.ip() == own, service.node == "n2", "{}", pair.seen);
                pair.talk();
                assert_eq!(state(daemon, port), "open");
                pair.end();
                assert_eq!(state(daemon, port), "closed");
            }
        }
    });
}

#[test]
fn associations_of_pods_are_served_at_their_devices() {
    on_a_node(Switches::default(), "[packets]\npod_devices = \"auto\"\n", |bed, daemon, _| {
        serve(daemon);
        for (service, family) in SERVICES.iter().flat_map(|it| FAMILIES.map(|family| (it, family))) {
            let backend = backend_of(bed, service, family);
            let client = End::open(bed, Location::far("pod-b"), family.of([true, false]), 40_001).unwrap();
            let pair = Pair::meet(daemon, &client, at(family.of(service.cluster), PORT), &backend);
            assert_eq!(pair.seen.port(), 40_001, "a pod is seen by its own port");
            pair.talk();
            pair.end();
        }
    });
}

#[test]
fn sctp_is_not_served_without_packet_programs() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut daemon = node::daemon(&bed, "[packets]\nenabled = false\n");
    serve(&daemon);
    daemon.start().unwrap();
    let told = daemon.tell(&["explain", "default/signalling"]).unwrap();
    assert!(told.contains("SCTP is translated by packets alone"), "{told}");
    let answer = daemon.ask(&["frontends"]).unwrap();
    let rows = answer["frontends"].as_array().unwrap();
    let of_sctp: Vec<&Value> = rows.iter().filter(|it| it["protocol"] == "SCTP").collect();
    assert!(!of_sctp.is_empty() && of_sctp.iter().all(|it| it["reason"] == "protocol"), "{of_sctp:?}");
}
