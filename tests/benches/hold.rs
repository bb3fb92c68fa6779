//! The cost of holds: 10,000 lists that are lost at once, their probes, and the engine's remaining capacity.
//!
//! The engine's loop and the prober as in the daemon, over memory maps. Every backend is a loopback address without a
//! socket, so that each probe is refused at once.

// Every line of a measurement may panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, clippy::cast_precision_loss)]

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_agent::engine::query;
use holdfast_agent::engine::run::{CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use holdfast_agent::probes;
use holdfast_config::Config;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source};
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_fixtures::clock::{Stopwatch, pause_async};
use holdfast_tests::memory::resident;
use holdfast_tests::size::sized;
use tokio::sync::{mpsc, watch};

fn services() -> u32 {
    sized(10_000, 200)
}

/// How long probes are counted.
const PROBED: Duration = Duration::from_secs(10);

/// Changes of another service meanwhile.
const CHANGES: u32 = 500;

const SOURCE: Source = Source::Kubernetes;

fn name(service: u32) -> ObjectName {
    ObjectName::new("default", &format!("web-{service:05}")).unwrap()
}

fn service(service: u32) -> Event {
    let key = ServiceKey { name: name(service), source: SOURCE };
    let port =
        ServicePort { name: "".into(), protocol: Protocol::TCP, port: NonZeroU16::MIN, node_port: None };
    Event::ServiceApplied(Arc::new(ServiceFacts {
        cluster_ips: vec![IpAddr::V4(Ipv4Addr::from_bits(0x0a60_0001 + service))],
        ip_families: vec![Family::V4],
        ports: vec![port],
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn slice(service: u32, version: u32) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x7f10_0000 + (service << 3) + version % 8));
    let conditions = Conditions::READY;
    builder
        .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
        .unwrap();
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name(service), source: SOURCE },
        meta: Meta::default(),
        service: Some(name(service).name().into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: NonZeroU16::MIN }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}

fn gone(service: u32) -> Event {
    Event::SliceDeleted(SliceKey { name: name(service), source: SOURCE }, None)
}

/// Forwards events and counts the probes among them.
async fn counted(mut from: mpsc::Receiver<Vec<Event>>, to: mpsc::Sender<Vec<Event>>, probes: Arc<AtomicU64>) {
    while let Some(group) = from.recv().await {
        let found = group.iter().filter(|event| matches!(event, Event::Probed(_))).count();
        probes.fetch_add(found as u64, Ordering::Relaxed);
        if to.send(group).await.is_err() {
            return;
        }
    }
}

async fn measure(
    events: mpsc::Sender<Vec<Event>>,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    probes: &AtomicU64,
) {
    let (services, changes) = (services(), sized(CHANGES, 10));
    let all: Vec<Event> = (0..=services).flat_map(|it| [service(it), slice(it, 0)]).collect();
    events.send(all).await.unwrap();
    events.send(vec![Event::Synced(SOURCE)]).await.unwrap();
    let whole = services as usize + 1;
    snapshots.wait_for(|snapshot| snapshot.fill.frontends == whole).await.unwrap();
    let (before, begun) = (resident(std::process::id()).unwrap(), Stopwatch::start());
    events.send((0..services).map(gone).collect()).await.unwrap();
    snapshots.wait_for(|snapshot| snapshot.held.len() == services as usize).await.unwrap();
    println!("{services} lists lost at once: all held after {:.1} ms", begun.read().as_secs_f64() * 1e3);
    let (counted, begun) = (probes.load(Ordering::Relaxed), Stopwatch::start());
    let mut times = Vec::new();
    for change in 1..=changes {
        pause_async(PROBED / CHANGES).await;
        let (changes, sent) = (snapshots.borrow().counters.changes, Stopwatch::start());
        events.send(vec![slice(services, change)]).await.unwrap();
        snapshots.wait_for(|snapshot| snapshot.counters.changes > changes).await.unwrap();
        times.push(sent.read());
    }
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 1_000].as_secs_f64() * 1e3;
    let rate = (probes.load(Ordering::Relaxed) - counted) as f64 / begun.read().as_secs_f64();
    println!(
        "probes: {rate:.0}/s; another service's change meanwhile: p50 {:.2} ms, p99 {:.2} ms",
        at(500),
        at(990)
    );
    println!(
        "resident: {before:.1} MB before, {:.1} MB more while held",
        resident(std::process::id()).unwrap() - before
    );
}

fn main() {
    let (engine, _) = Engine::start(MemoryMaps::default(), Seed(7), &[SOURCE]).unwrap();
    let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
    let (probed, heard) = mpsc::channel(GROUPS_WAITING_MAX);
    let (snapshots_in, snapshots) = watch::channel(Arc::default());
    let (changes, mut recorded) = mpsc::channel(CHANGES_WAITING_MAX);
    let (stop, stopping) = watch::channel(false);
    let asks = query::channel().1;
    let ends = EngineChannels {
        events: incoming,
        queries: asks,
        snapshots: snapshots_in,
        changes,
        progress: Arc::default(),
        steps: Arc::default(),
        stop: stopping,
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::spawn(move || while recorded.blocking_recv().is_some() {});
    let engine = std::thread::spawn(move || drop(runtime().block_on(run(engine, ends, |_, _| false))));
    let config = watch::channel(Arc::new(Config::default()));
    let probes = Arc::new(AtomicU64::new(0));
    runtime().block_on(async {
        tokio::spawn(probes::run(snapshots.clone(), config.1.clone(), probed, Arc::default()));
        tokio::spawn(counted(heard, events.clone(), Arc::clone(&probes)));
        measure(events, snapshots, &probes).await;
    });
    stop.send_replace(true);
    engine.join().unwrap();
}
