//! From objects to the kernel's maps, with attached programs: filling them, a restart, one change of a file, and what
//! a start after a crash costs.
//!
//! The engine, its loop, the manifests and the maps are the daemon's own. Needs root; everything runs in a bed.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use holdfast_agent::engine::run::{CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::op::MapGrowth;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_datapath::{Allocator, KernelMaps, ServedSockets, StaleSockets, StartOptions};
use holdfast_fixtures::clock::{Stopwatch, pause, pause_async};
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::Shape;
use holdfast_standalone::manifests::Manifests;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::memory::resident;
use holdfast_tests::processor;
use holdfast_tests::program::command_line;
use holdfast_tests::size::{self, sized};
use tokio::sync::{mpsc, watch};

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const ROUNDS: usize = 5;
/// The first step waits for readers of a former daemon.
const FIRST_GRACE: Duration = Duration::from_millis(100);
const CHANGES: usize = 1_000;
/// Lets the engine become idle after the last change.
const PAUSE: Duration = Duration::from_millis(3);
const SERVICES_PER_FILE: u32 = 100;

/// Runs the part named by the argument, or each in a process of its own, so that none inherits another's heap.
fn main() -> ExitCode {
    let parts: [(&str, fn()); 4] =
        [("fill", fill), ("restart", restart), ("change", change), ("killed", killed)];
    let wanted = size::wanted();
    if matches!(wanted.as_deref(), Some("run")) || std::env::args().any(|word| word == "--socket") {
        return command_line();
    }
    for (name, part) in parts {
        match &wanted {
            Some(wanted) if wanted == name => part(),
            Some(_) => {}
            None => {
                let status = Command::new(std::env::current_exe().unwrap())
                    .args(size::arguments(name))
                    .status()
                    .unwrap();
                assert!(status.success(), "{name}: {status}");
            }
        }
    }
    ExitCode::SUCCESS
}

fn kernel(bed: &Bed) -> KernelMaps {
    let options = StartOptions {
        cgroup: Some(bed.cgroup().to_owned()),
        bpffs: bed.bpffs().join("holdfast"),
        capacity: Capacity::default(),
        mark: 0,
        expected: MapGrowth::default(),
        stale_sockets: StaleSockets::default(),
        served: ServedSockets::default(),
        packets: None,
    };
    bed.within(Location::NODE, || KernelMaps::start(&options)).unwrap().unwrap()
}

fn step<M: Maps>(engine: &mut Engine<M>, mono: Duration) -> Arc<Snapshot> {
    step_whole(engine, ClockReading { wall: Timestamp(1_800_000_000), mono }, &mut drop)
}

/// The time from the first event until everything is in the maps.
fn filled<M: Maps>(maps: M, shape: Shape) -> (Engine<M>, Duration) {
    let (mut engine, _) = Engine::start(maps, Seed(7), &[Source::Kubernetes]).unwrap();
    let events = shape.events();
    pause(FIRST_GRACE);
    let started = Stopwatch::start();
    events.into_iter().for_each(|event| engine.apply(event));
    engine.apply(Event::Synced(Source::Kubernetes));
    let snapshot = step(&mut engine, Duration::ZERO);
    let took = started.read();
    assert_eq!(snapshot.fill.frontends, shape.services as usize);
    (engine, took)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// 50,000 services with one endpoint each into empty maps.
fn fill() {
    let shape = Shape { services: sized(50_000, 500), endpoints: 1 };
    let (mut memory, mut real) = (Vec::new(), Vec::new());
    let mut growths = 0;
    for _ in 0..sized(ROUNDS, 1) {
        memory.push(filled(MemoryMaps::default(), shape).1);
        let bed = Bed::new().unwrap();
        let (engine, took) = filled(kernel(&bed), shape);
        growths = engine.maps().status().growths;
        real.push(took);
    }
    let rate = |time: Duration| f64::from(shape.services) / time.as_secs_f64();
    let (best, memory, real) = (*real.iter().min().unwrap(), median(memory), median(real));
    println!(
        "programming {} services from nothing: {:.0} services/s, at best {:.0}, {growths} growths; {:.0} into memory maps",
        shape.services,
        rate(real),
        rate(best),
        rate(memory)
    );
}

/// The time from the start of the maps until nothing is left to do, with the same objects as before.
fn restart() {
    let shape = Shape { services: sized(10_000, 500), endpoints: 10 };
    let bed = Bed::new().unwrap();
    drop(filled(kernel(&bed), shape));
    let mut times = Vec::new();
    let mut growth = 0.0_f64;
    for _ in 0..sized(ROUNDS, 1) {
        let events = shape.events();
        let before = resident(std::process::id()).unwrap();
        let started = Stopwatch::start();
        let (mut engine, found) = Engine::start(kernel(&bed), Seed(7), &[Source::Kubernetes]).unwrap();
        growth = growth.max(resident(std::process::id()).unwrap() - before);
        assert_eq!(found, []);
        events.into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Synced(Source::Kubernetes));
        let mut snapshot = step(&mut engine, started.read());
        while engine.next_due(started.read()).is_some() {
            pause(Duration::from_millis(1));
            snapshot = step(&mut engine, started.read());
        }
        times.push(started.read());
        assert_eq!((snapshot.fill.frontends, snapshot.counters.ops), (shape.services as usize, 0));
    }
    println!(
        "restart with {} services of {} endpoints: adopted and consistent in {:.0} ms, at most {:.0} ms; adoption took {growth:.1} MB",
        shape.services,
        shape.endpoints,
        median(times.clone()).as_secs_f64() * 1e3,
        times.iter().max().unwrap().as_secs_f64() * 1e3,
    );
}

/// The time from replacing one file of 10,000 services until readers see what the maps have accepted.
fn change() {
    let bed = Bed::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let all: u32 = sized(10_000, 500);
    for file in 0..all / SERVICES_PER_FILE {
        let services = file * SERVICES_PER_FILE..(file + 1) * SERVICES_PER_FILE;
        let text = services.fold(String::new(), |text, service| text + &manifest(service, 1));
        std::fs::write(folder.path().join(format!("{file:03}.yaml")), text).unwrap();
    }
    let (engine, _) = Engine::start(kernel(&bed), Seed(7), &[Source::Manifests]).unwrap();
    let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
    let (snapshots_in, mut snapshots) = watch::channel(Arc::default());
    let (changes, recorded) = mpsc::channel(CHANGES_WAITING_MAX);
    let (stop, stopping) = watch::channel(false);
    let ends = EngineChannels {
        queries: holdfast_agent::engine::query::channel().1,
        events: incoming,
        snapshots: snapshots_in,
        changes,
        progress: Arc::default(),
        steps: Arc::default(),
        stop: stopping.clone(),
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let recorder = std::thread::spawn(move || {
        let mut recorded = recorded;
        while recorded.blocking_recv().is_some() {}
    });
    let engine = std::thread::spawn(move || drop(runtime().block_on(run(engine, ends, |_, _| false))));
    let manifests = Manifests::new(folder.path());
    let source = std::thread::spawn(move || runtime().block_on(manifests.run(events, stopping)).unwrap());
    let mut times = runtime().block_on(async {
        snapshots.wait_for(|snapshot: &Arc<Snapshot>| snapshot.fill.frontends == all as usize).await.unwrap();
        let mut times = Vec::new();
        for round in 0..sized(CHANGES, 10) {
            pause_async(PAUSE).await;
            times.push(replaced(folder.path(), round, &mut snapshots).await);
        }
        times
    });
    stop.send_replace(true);
    source.join().unwrap();
    engine.join().unwrap();
    recorder.join().unwrap();
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 1_000].as_secs_f64() * 1e6;
    println!(
        "one file changes among {all} services, until the kernel has it: p50 {:.0} µs, p99 {:.0} µs",
        at(500),
        at(990)
    );
}

/// A daemon with 100 services is killed and started again: with the programs that its predecessor left pinned, and
/// without them, as after an upgrade.
fn killed() {
    let bed = Bed::new().unwrap();
    let blocks = (1..=100).fold(String::new(), |blocks, number| blocks + &block(number));
    let mut daemon = Daemon::new(&bed, &blocks).unwrap().started_as(std::env::current_exe().unwrap());
    daemon.start().unwrap();
    for (what, forgets) in [("taken over", false), ("loaded anew", true)] {
        let starts: Vec<_> = (0..sized(11, 2)).map(|_| start_again(&mut daemon, forgets)).collect();
        let (ready, spent): (Vec<_>, Vec<_>) = starts.into_iter().unzip();
        println!(
            "a start after a crash, programs {what}: ready in {:.0} ms, {:.0} ms CPU",
            median(ready).as_secs_f64() * 1e3,
            median(spent).as_secs_f64() * 1e3
        );
    }
    daemon.kill().unwrap();
}

fn block(number: u32) -> String {
    let backends: Vec<_> = (1..=10).map(|backend| format!("\"10.1.{number}.{backend}:8080\"")).collect();
    format!(
        "[[service]]\nname = \"s{number}\"\nfrontends = [\"10.96.0.{number}:80\"]\nbackends = [{}]\n",
        backends.join(", ")
    )
}

/// The time until the daemon is ready, and its processor time until it rests.
fn start_again(daemon: &mut Daemon<'_>, forgets: bool) -> (Duration, Duration) {
    daemon.kill().unwrap();
    if forgets {
        let versions = std::fs::read_dir(daemon.pins()).unwrap().map(|entry| entry.unwrap().path());
        let programs = versions.map(|version| version.join("programs")).find(|folder| folder.exists());
        std::fs::remove_dir_all(programs.unwrap()).unwrap();
    }
    let started = Stopwatch::start();
    daemon.start().unwrap();
    let ready = started.read();
    pause(Duration::from_millis(300));
    (ready, Duration::from_secs_f64(processor::seconds(daemon.pid().unwrap()).unwrap()))
}

async fn replaced(folder: &Path, round: usize, snapshots: &mut watch::Receiver<Arc<Snapshot>>) -> Duration {
    let (hidden, file) = (folder.join(".changing"), folder.join("changing.yaml"));
    std::fs::write(&hidden, manifest(10_000, 1 + round % 200)).unwrap();
    let before = snapshots.borrow().counters.changes;
    let started = Stopwatch::start();
    std::fs::rename(hidden, file).unwrap();
    snapshots.wait_for(|snapshot| snapshot.counters.changes > before).await.unwrap();
    started.read()
}

/// A service and its slice.
fn manifest(service: u32, endpoint: usize) -> String {
    let (high, low) = (service >> 8, service & 255);
    let mut text = String::new();
    write!(
        text,
        "---
apiVersion: v1
kind: Service
metadata: {{name: web-{service}, namespace: default}}
spec:
  clusterIP: 10.96.{high}.{low}
  ports: [{{name: http, port: 80}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{service}-1, namespace: default, labels: {{kubernetes.io/service-name: web-{service}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: [{{addresses: [192.0.2.{endpoint}], conditions: {{ready: true}}}}]
"
    )
    .unwrap();
    text
}
