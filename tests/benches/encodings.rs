//! The cost of lists in JSON and in protobuf to a real apiserver: bytes and processor time. Needs root.
//!
//! Lists are read to their end and discarded; the apiserver gets no other requests. The variants take turns, so that
//! all run under equal conditions.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::time::Duration;

use holdfast_kubernetes::apiserver::{Access, Connection};
use holdfast_tests::bed::{Layout, Location};
use holdfast_tests::peers::{Cluster, Part, PeersError, alike};
use holdfast_tests::processor;
use holdfast_tests::size::sized;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The variants: their names, encodings and parameters.
const WAYS: [(&str, &str, &str); 7] = [
    ("JSON", "application/json", ""),
    ("protobuf", PROTOBUF, ""),
    ("JSON in pages of 500", "application/json", "?limit=500"),
    ("protobuf in pages of 500", PROTOBUF, "?limit=500"),
    ("protobuf in pages of 2000", PROTOBUF, "?limit=2000"),
    ("protobuf, resourceVersion=0", PROTOBUF, "?resourceVersion=0"),
    (
        "protobuf, names and versions alone",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "",
    ),
];

const LISTS: [&str; 2] = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"];

/// The first bytes of the continue token, in either encoding.
const TOKEN: &[u8] = b"eyJ2Ijoi";

/// A list that stalls for this long has failed.
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    let cluster = match Cluster::without_controllers(Layout::default(), 1) {
        Err(PeersError::NotBuilt { .. }) => return,
        started => started.unwrap(),
    };
    let (services, slices) = (sized(2_000, 20), sized(1_000, 10));
    alike::fill(&cluster.api(0).unwrap(), services, slices).unwrap();
    let pid = cluster.pid(Part::Apiserver(0)).unwrap();
    let rounds = sized(20, 1);
    let measured =
        cluster.bed().within(Location::NODE, || measure(&cluster.access().unwrap(), pid, rounds)).unwrap();
    println!("{services} services and {slices} slices of {} endpoints, listed once", alike::ENDPOINTS);
    for ((name, ..), (bytes, seconds)) in WAYS.iter().zip(measured) {
        println!(
            "{name}: {:.2} MB, {:.1} ms of the apiserver's processor",
            bytes as f64 / 1e6,
            seconds * 1e3
        );
    }
}

/// For each variant, the bytes of both lists and the apiserver's processor time.
fn measure(access: &Access, pid: u32, rounds: u32) -> [(usize, f64); WAYS.len()] {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut measured = [(0, 0.0); WAYS.len()];
    // One connection for all, because its cost is the same for each variant.
    let mut kept = None;
    for round in 0..=rounds {
        for ((_, accept, query), (bytes, seconds)) in WAYS.iter().zip(&mut measured) {
            let before = processor::seconds(pid).unwrap();
            let mut asked =
                |list| runtime.block_on(read(access, accept, format!("{list}{query}"), &mut kept));
            *bytes = LISTS.iter().map(&mut asked).sum();
            // The first round fills caches.
            if round > 0 {
                *seconds += (processor::seconds(pid).unwrap() - before) / f64::from(rounds);
            }
        }
    }
    measured
}

/// Reads a list to its end, page by page, and returns its bytes.
async fn read(access: &Access, accept: &'static str, list: String, kept: &mut Option<Connection>) -> usize {
    let (mut bytes, mut next) = (0, list.clone());
    loop {
        let page = page(access, accept, &next, kept).await;
        bytes += page.len();
        let Some(token) = token(&page) else { return bytes };
        next = format!("{list}&continue={token}");
    }
}

async fn page(access: &Access, accept: &'static str, query: &str, kept: &mut Option<Connection>) -> Vec<u8> {
    let mut reply = access.get_as(accept, query, kept.take()).await.unwrap();
    assert_eq!(reply.status, 200, "{query}");
    let mut page = Vec::new();
    while let Some(chunk) = reply.next_chunk(IDLE).await.unwrap() {
        page.extend_from_slice(&chunk);
    }
    *kept = Some(reply.into_connection());
    page
}

/// The continue token of a page, if any: text of one alphabet.
fn token(page: &[u8]) -> Option<String> {
    let at = page.windows(TOKEN.len()).position(|window| window == TOKEN)?;
    let is_of_token = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    Some(page[at..].iter().take_while(is_of_token).map(|byte| char::from(*byte)).collect())
}
