//! From events to realized state over memory maps: the cost of the rules and the engine.
//!
//! Each result has a baseline that ran just before it on the same machine: filling a plain hash map with the same
//! keys. The ratio is comparable between machines, the rate only on one.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use holdfast_agent::engine::run::CHANGES_WAITING_MAX;
use holdfast_agent::recorder::{Recorder, TimedChange};
use holdfast_core::change::Change;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maglev;
use holdfast_core::maps::{Capacity, DialOutcome, MapError, Maps, MemoryMaps};
use holdfast_core::op::{Action, Dump, Grace};
use holdfast_core::time::ClockReading;
use holdfast_datapath::Allocator;
use holdfast_fixtures::clock::{Stopwatch, measure};
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::{Shape, cluster_ip};
use holdfast_tests::memory::resident;
use holdfast_tests::size::{self, sized};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const BATCH: usize = 1_024;
const ROUNDS: usize = 7;

/// Steps until nothing is left to do: a word is cleared after the grace period of its frontends, and its range after
/// another.
const STEPS_TO_REST: usize = 10;

/// Runs the part named by the argument, or each part in a process of its own, so that none inherits another's heap.
fn main() {
    let parts: [(&str, fn()); 7] = [
        ("bulk", bulk),
        ("change-10000", || one_change(sized(10_000, 200), sized(200, 10))),
        ("change-1000", || one_change(sized(1_000, 100), sized(200, 10))),
        ("resync", resync),
        ("memory", memory),
        ("recorder", recorder),
        ("maglev", tables),
    ];
    let wanted = size::wanted();
    for (name, part) in parts {
        match &wanted {
            Some(wanted) if wanted == name => part(),
            Some(_) => {}
            None => run_alone(name),
        }
    }
}

fn run_alone(name: &str) {
    let status = Command::new(std::env::current_exe().unwrap()).args(size::arguments(name)).status().unwrap();
    assert!(status.success(), "{name}: {status}");
}

fn engine() -> Engine<MemoryMaps> {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(7), &[Source::Kubernetes]).unwrap();
    engine.apply(Event::Synced(Source::Kubernetes));
    step(&mut engine);
    engine
}

fn step(engine: &mut Engine<MemoryMaps>) {
    step_into(engine, &mut Vec::new());
}

/// The daemon's change records go to another thread, which frees them; here they wait until the clock has stopped.
fn step_into(engine: &mut Engine<MemoryMaps>, changes: &mut Vec<Change>) {
    let now = ClockReading { wall: Timestamp(1_800_000_000), mono: Duration::ZERO };
    step_whole(engine, now, &mut |change| changes.push(change));
}

fn feed(engine: &mut Engine<MemoryMaps>, events: Vec<Event>) -> Duration {
    let mut changes = Vec::with_capacity(events.len());
    let started = Stopwatch::start();
    let mut waiting = events.into_iter().peekable();
    while waiting.peek().is_some() {
        waiting.by_ref().take(BATCH).for_each(|event| engine.apply(event));
        step_into(engine, &mut changes);
    }
    started.read()
}

/// A separate function, so that a profiler can tell deletes from inserts.
#[inline(never)]
fn take_away(engine: &mut Engine<MemoryMaps>, events: Vec<Event>) -> Duration {
    feed(engine, events)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Maglev tables, compared with writing as many numbers.
fn tables() {
    for count in [3, 100, 1_000] {
        let address = |at| std::net::Ipv4Addr::from_bits(0x0a01_0000 + at * 7);
        let backends = (0..count).map(|at| ((address(at), 8080).into(), 1));
        let places = maglev::table_size(count);
        let (mut made, mut written) = (Vec::new(), Vec::new());
        for _ in 0..sized(201, 3) {
            made.push(measure(|| black_box(maglev::table(black_box(backends.clone()), places))).0);
            written
                .push(measure(|| black_box((0..black_box(places)).map(black_box).collect::<Vec<u32>>())).0);
        }
        let (made, written) = (median(made), median(written));
        let ratio = made.as_secs_f64() / written.as_secs_f64();
        println!(
            "a table of {places} places for {count} backends: {:.0} µs; {ratio:.1} × writing as many numbers",
            made.as_secs_f64() * 1e6
        );
    }
}

/// 50,000 services with one slice of one endpoint each.
fn bulk() {
    let shape = Shape { services: sized(50_000, 500), endpoints: 1 };
    let (mut inserts, mut deletes, mut baselines) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..sized(ROUNDS, 1) {
        baselines.push(baseline(shape));
        let mut engine = engine();
        inserts.push(feed(&mut engine, shape.events()));
        assert!(matches!(engine.maps().dial((cluster_ip(0), 1).into()), DialOutcome::Served(_)));
        deletes.push(take_away(&mut engine, shape.deletions()));
        (0..STEPS_TO_REST).for_each(|_| step(&mut engine));
        assert_eq!(engine.maps().entries(), 0);
    }
    let baseline = median(baselines);
    for (what, time) in
        [("insert until realized", median(inserts)), ("delete until realized", median(deletes))]
    {
        let rate = f64::from(shape.services) / time.as_secs_f64();
        let ratio = time.as_secs_f64() / baseline.as_secs_f64();
        println!("{what}: {rate:.0} services/s; {ratio:.1} × filling a hash map with the same keys");
    }
}

fn baseline(shape: Shape) -> Duration {
    let keys: Vec<_> =
        (0..shape.services).map(|service| (format!("default/web-{service:05}"), service)).collect();
    measure(|| black_box(keys.into_iter().collect::<HashMap<_, _>>())).0
}

/// One endpoint of one service changes, and nothing else.
fn one_change(services: u32, endpoints: u32) {
    let shape = Shape { services, endpoints };
    let mut engine = engine();
    feed(&mut engine, shape.events());
    let mut times = Vec::new();
    for round in 0..sized(2_000, 20) {
        let event = shape.slice(round * 7 % services, 0, 1 + round / services);
        let step = || {
            engine.apply(event);
            step(&mut engine);
        };
        times.push(measure(step).0);
    }
    times.sort_unstable();
    println!(
        "one endpoint change among {services} services of {endpoints}: p50 {:.1} µs, p99 {:.1} µs",
        micros(times[times.len() / 2]),
        micros(times[times.len() * 99 / 100])
    );
}

/// The whole unchanged world again.
fn resync() {
    let shape = Shape { services: sized(10_000, 1_000), endpoints: sized(200, 10) };
    let mut engine = engine();
    feed(&mut engine, shape.events());
    let again = shape.events();
    let time = feed(&mut engine, again);
    let endpoints = f64::from(shape.services * shape.endpoints);
    println!("unchanged resync: {:.3} µs per endpoint", micros(time) / endpoints);
}

/// Tables, desired, realized and snapshot, over maps that store nothing.
fn memory() {
    let shape = Shape { services: sized(10_000, 1_000), endpoints: sized(200, 10) };
    let (mut engine, _) = Engine::start(Sink, Seed(7), &[Source::Kubernetes]).unwrap();
    engine.apply(Event::Synced(Source::Kubernetes));
    let before = resident(std::process::id()).unwrap();
    let now = ClockReading { wall: Timestamp(1_800_000_000), mono: Duration::ZERO };
    for service in 0..shape.services {
        shape.service_events(service).into_iter().for_each(|event| engine.apply(event));
        if service % 1_000 == 999 {
            black_box(step_whole(&mut engine, now, &mut drop));
        }
    }
    println!(
        "resident with 10,000 services of 200 endpoints: {:.0} MB",
        resident(std::process::id()).unwrap() - before
    );
    drop(engine);
}

/// Maps that accept everything and store nothing.
struct Sink;

impl Maps for Sink {
    fn execute(&mut self, _: &Action) -> Result<(), MapError> {
        Ok(())
    }

    fn begin_grace(&mut self) -> Grace {
        Grace(0)
    }

    fn is_grace_over(&self, _: Grace) -> bool {
        true
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        Ok(Dump::default())
    }

    fn capacity(&self) -> Capacity {
        Capacity::default()
    }
}

/// The cost of a change on the engine's thread, and on the recorder's: 10,000 flapping services, six times over.
fn recorder() {
    let shape = Shape { services: sized(10_000, 500), endpoints: 2 };
    let mut engine = engine();
    let mut made = Vec::new();
    shape.events().into_iter().for_each(|event| engine.apply(event));
    step_into(&mut engine, &mut made);
    for version in 1..6 {
        (0..shape.services).for_each(|service| engine.apply(shape.slice(service, 0, version)));
        step_into(&mut engine, &mut made);
    }
    let folder = tempfile::tempdir().unwrap();
    let (changes, waiting) = mpsc::channel(CHANGES_WAITING_MAX);
    let (recorder, history) = Recorder::new(waiting, watch::channel(Arc::default()).1, Some(folder.path()));
    let before = resident(std::process::id()).unwrap();
    let thread = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
        own_cpu()
    });
    let (count, at, begun, cpu) = (made.len(), SystemTime::UNIX_EPOCH, Stopwatch::start(), own_cpu());
    for change in made {
        let timed =
            TimedChange { change, at, mono: Duration::ZERO, elapsed: begun.read(), reservation: None };
        assert!(changes.try_send(timed).is_ok());
    }
    let sent = own_cpu() - cpu;
    drop(changes);
    let (made, recorded) = (thread.join().unwrap(), history.status());
    assert_eq!(recorded.records, count as u64);
    println!(
        "{count} changes: {:.2} µs each in the engine's thread, {:.1} µs in the recorder's",
        micros(sent) / count as f64,
        micros(made) / count as f64
    );
    println!(
        "of {count} records {} are in memory with {:.0} MB resident, {:.0} MB are on disk, {} had no room there",
        history.fill().records,
        resident(std::process::id()).unwrap() - before,
        recorded.file.bytes as f64 / 1e6,
        recorded.file.lost
    );
}

/// The calling thread's CPU time, because others may use the CPU meanwhile.
fn own_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
