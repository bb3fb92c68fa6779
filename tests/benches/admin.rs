//! The cost of the admin API with a large table, and of its readers to the engine.
//!
//! 10,000 services with 10 endpoints each, through the real engine and memory maps, requested over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_agent::readings::About;
use holdfast_api::{AdminServer, Settings, start};
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_fixtures::clock::{Stopwatch, measure, pause};
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::Shape;
use holdfast_tests::memory::resident;
use holdfast_tests::readings;
use holdfast_tests::size::sized;
use tokio::sync::watch;

fn shape() -> Shape {
    Shape { services: sized(10_000, 200), endpoints: 10 }
}

const ASKED: usize = 20;
const CLIENTS: usize = 50;
const STEPS: u32 = 2_000;

type Failed = Box<dyn std::error::Error>;

/// The cost of the table's digest, which each scrape pays.
fn digested(snapshots: &watch::Sender<Arc<Snapshot>>) -> (u64, Duration) {
    let snapshot = Arc::clone(&snapshots.borrow());
    let mut number = 0;
    let mut times: Vec<_> = (0..sized(ASKED, 2))
        .map(|_| {
            let (time, digest) = measure(|| holdfast_core::digest::digest(&snapshot.services));
            number = digest;
            time
        })
        .collect();
    times.sort_unstable();
    (number, percentile(&times, 50))
}

fn main() -> Result<(), Failed> {
    let mut out = std::io::stdout();
    let (mut engine, snapshot) = world()?;
    let (snapshots, receiver) = watch::channel(snapshot);
    let admin = serve(receiver)?;
    let paths = [
        "/frontends?format=json",
        "/frontends",
        "/backends?format=json",
        "/metrics",
        "/explain?service=default/web-09000",
        "/explain?endpoint=10.96.30.1:1",
        "/explain?endpoint=192.0.2.1:1",
    ];
    for path in paths {
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..sized(ASKED, 2) {
            let begun = Stopwatch::start();
            bytes = ask(admin.address(), path)?;
            times.push(begun.read());
        }
        times.sort_unstable();
        let (median, most) = (percentile(&times, 50), percentile(&times, 100));
        writeln!(
            out,
            "GET {path:35} {bytes:>10} bytes, median {median:>9.1?}, most {most:>9.1?} of {ASKED}"
        )?;
    }
    let (number, cost) = digested(&snapshots);
    writeln!(out, "digest of the table:         median {cost:?} of {ASKED} ({number})")?;
    let quiet = steps(&mut engine, &snapshots)?;
    writeln!(
        out,
        "engine step, nobody asks:    p50 {:?}, p99 {:?}",
        percentile(&quiet, 50),
        percentile(&quiet, 99)
    )?;
    let before = resident(std::process::id())?;
    let (busy, answers, most) = with_clients(admin.address(), || steps(&mut engine, &snapshots))?;
    writeln!(
        out,
        "engine step, {CLIENTS} clients ask: p50 {:?}, p99 {:?}",
        percentile(&busy, 50),
        percentile(&busy, 99)
    )?;
    writeln!(out, "{answers} answers meanwhile; resident {before:.0} MB before, {most:.0} MB at most")?;
    admin.stop();
    Ok(())
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

fn world() -> Result<(Engine<MemoryMaps>, Arc<Snapshot>), Failed> {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(7), &[Source::Kubernetes])?;
    shape().events().into_iter().for_each(|event| engine.apply(event));
    engine.apply(Event::Synced(Source::Kubernetes));
    let mut snapshot = step_whole(&mut engine, now(0), &mut |_| {});
    // Grace periods end between steps.
    for step in 1..10 {
        snapshot = step_whole(&mut engine, now(step), &mut |_| {});
    }
    Ok((engine, snapshot))
}

fn now(step: u32) -> ClockReading {
    ClockReading { wall: Timestamp(1_767_870_715 + i64::from(step)), mono: Duration::from_secs(step.into()) }
}

fn serve(snapshots: watch::Receiver<Arc<Snapshot>>) -> Result<AdminServer, Failed> {
    let readings = readings::from_snapshots(snapshots, About { version: "0", started: Timestamp(0) });
    let socket = std::env::temp_dir().join(format!("holdfast-bench-{}.sock", std::process::id()));
    let settings = Settings { listen: "127.0.0.1:0".parse()?, socket };
    Ok(start(&settings, (readings, EventStatus::default(), readings::acts()), watch::channel(Vec::new()).0)?)
}

/// Sends a GET and reads the answer to its end.
fn ask(address: SocketAddr, path: &str) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let (mut buffer, mut bytes) = (vec![0; 1 << 18], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            count => bytes += count,
        }
    }
}

/// Replaces one endpoint of one service again and again.
fn steps(
    engine: &mut Engine<MemoryMaps>,
    snapshots: &watch::Sender<Arc<Snapshot>>,
) -> Result<Vec<Duration>, Failed> {
    let mut times = Vec::new();
    let shape = shape();
    for step in 0..sized(STEPS, 20) {
        let event = shape.slice(step * 7 % shape.services, 0, step % 256);
        let begun = Stopwatch::start();
        engine.apply(event);
        let snapshot = step_whole(engine, now(100 + step), &mut |_| {});
        times.push(begun.read());
        snapshots.send_replace(snapshot);
        pause(Duration::from_micros(500));
    }
    times.sort_unstable();
    Ok(times)
}

/// The steps' times, the number of answers meanwhile, and the peak of resident megabytes.
fn with_clients(
    address: SocketAddr,
    steps: impl FnOnce() -> Result<Vec<Duration>, Failed>,
) -> Result<(Vec<Duration>, usize, f64), Failed> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = || {
            let mut answers = 0;
            while !stop.load(Ordering::Relaxed) {
                answers += usize::from(ask(address, "/frontends?format=json").is_ok());
            }
            answers
        };
        let clients: Vec<_> = (0..sized(CLIENTS, 4)).map(|_| scope.spawn(client)).collect();
        let watch = scope.spawn(|| {
            let mut most = 0.0_f64;
            while !stop.load(Ordering::Relaxed) {
                most = resident(std::process::id()).unwrap_or_default().max(most);
                pause(Duration::from_millis(20));
            }
            most
        });
        let times = steps();
        stop.store(true, Ordering::Relaxed);
        let answers = clients.into_iter().map(|client| client.join().unwrap_or_default()).sum();
        Ok((times?, answers, watch.join().unwrap_or_default()))
    })
}
