//! What lists in JSON and in protobuf cost a real apiserver: bytes, and its processor. Needs root.
//!
//! Lists are read to their end and thrown away; nothing else is asked of the apiserver meanwhile. The encodings take
//! turns, so that both meet the same machine.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Duration;

use holdfast::apiserver::{Access, Connection};
use holdfast_tests::bed::{Layout, Location};
use holdfast_tests::peers::{Api, Cluster, Part, PeersError};
use holdfast_tests::size::sized;
use serde_json::json;

const ENCODINGS: [(&str, &str); 2] =
    [("JSON", "application/json"), ("protobuf", "application/vnd.kubernetes.protobuf")];

const LISTS: [&str; 2] = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"];

/// How many endpoints each slice has.
const ENDPOINTS: u32 = 10;

/// Of `/proc/PID/stat`, on every machine that holdfast supports.
const TICKS: f64 = 100.0;

/// A list that says nothing for so long is none.
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    let cluster = match Cluster::without_controllers(Layout::default(), 1) {
        Err(PeersError::NotBuilt { .. }) => return,
        started => started.unwrap(),
    };
    let (services, slices) = (sized(2_000, 20), sized(1_000, 10));
    fill(&cluster.api(0).unwrap(), services, slices);
    let pid = cluster.pid(Part::Apiserver(0)).unwrap();
    let rounds = sized(20, 1);
    let measured =
        cluster.bed().within(Location::NODE, || measure(&cluster.access().unwrap(), pid, rounds)).unwrap();
    for ((name, _), (bytes, seconds)) in ENCODINGS.iter().zip(measured) {
        println!(
            "{name}: {services} services and {slices} slices of {ENDPOINTS} endpoints are {:.2} MB and take an apiserver {:.1} ms",
            bytes as f64 / 1e6,
            seconds * 1e3
        );
    }
}

fn fill(api: &Api<'_>, services: u32, slices: u32) {
    for at in 0..services {
        let object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("web-{at}"), "labels": {"app": "web"}},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
        });
        api.apply_object(&object).unwrap();
    }
    for at in 0..slices {
        let endpoint = |nth: u32| {
            let [_, b, c, d] = (at * ENDPOINTS + nth).to_be_bytes();
            json!({"addresses": [format!("10.{b}.{c}.{d}")], "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{nth}"), "zone": "europe-west1-b",
                "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("web-7d4b9c6f5d-{at}-{nth}"),
                    "uid": format!("5f3c1a2e-0000-4000-8000-{at:012}")}})
        };
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("web-{at}-a"), "labels": {"kubernetes.io/service-name": format!("web-{at}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
        });
        api.apply_object(&object).unwrap();
    }
}

/// For each encoding the bytes of both lists, and how long they keep a processor of the apiserver busy.
fn measure(access: &Access, pid: u32, rounds: u32) -> [(usize, f64); 2] {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut measured = [(0, 0.0); 2];
    // One connection for all: what it takes to make one is the same for both.
    let mut kept = None;
    for round in 0..=rounds {
        for ((_, accept), (bytes, seconds)) in ENCODINGS.iter().zip(&mut measured) {
            let before = cpu(pid);
            *bytes = LISTS.iter().map(|list| runtime.block_on(read(access, accept, list, &mut kept))).sum();
            // The first round fills caches.
            if round > 0 {
                *seconds += (cpu(pid) - before) / f64::from(rounds);
            }
        }
    }
    measured
}

async fn read(access: &Access, accept: &'static str, list: &str, kept: &mut Option<Connection>) -> usize {
    let mut reply = access.get_as(accept, list, kept.take()).await.unwrap();
    assert_eq!(reply.status, 200, "{list}");
    let mut bytes = 0;
    while let Some(chunk) = reply.chunk(IDLE).await.unwrap() {
        bytes += chunk.len();
    }
    *kept = Some(reply.into_connection());
    bytes
}

/// Seconds of a processor that a process has had.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / TICKS
}
