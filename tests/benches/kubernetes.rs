//! From an apiserver's bytes to realized state: the cost of watching a cluster.
//!
//! The fake apiserver runs in a process of its own, so CPU and memory are the client's alone: TLS, decoding, the rules
//! and the maps. For root these are the kernel's, in a bed; else memory maps. Objects are as large as real ones:
//! managed fields, owners, targets, zones, hints.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use holdfast_agent::state;
use holdfast_cli as cli;
use holdfast_config::{Config, Encodings};
use holdfast_core::engine::Engine;
use holdfast_core::event::{Event, WatchKind};
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::op::MapGrowth;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_datapath::{KernelMaps, ServedSockets, StaleSockets, StartOptions};
use holdfast_fixtures::clock::{Stopwatch, pause, pause_async, wait_until};
use holdfast_kubernetes::apiserver::{self, Access};
use holdfast_kubernetes::source::{Kubernetes, Resource, SourceSettings, Timing, View};
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::{self, Shape};
use holdfast_tests::bed::{Bed, Location, Role};
use holdfast_tests::fake::many::{service, slice};
use holdfast_tests::fake::{Authority, Cluster, Kind, Names, Server};
use holdfast_tests::memory;
use holdfast_tests::size::{self, sized};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The timed changes.
const CHANGES: u32 = 5_000;

/// The pause between two changes, so that each meets an idle daemon.
const PAUSE: Duration = Duration::from_millis(2);

/// The first writes to the kernel's maps wait for readers of a former daemon.
const FIRST_GRACE: Duration = Duration::from_millis(100);

const UID: &str = "7c8d4a2e-0000-4000-8000-000000000001";

/// Runs the part named by the arguments, or each part in a process of its own, so that none inherits another's heap.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let many = sized(10_000, 200);
    let number = |at: usize| arguments[at].parse().unwrap();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(Path::new(&arguments[1]), number(2), number(3), number(4)),
        Some("run") => return run_daemon(),
        Some("list") => measure_list(sized(2_000, 100), sized(3_000, 150), 100, Encodings::Auto),
        Some("list-json") => measure_list(sized(2_000, 100), sized(3_000, 150), 100, Encodings::Json),
        Some("large") => over_maps(
            |maps| measure_large(maps, sized(10_000, 100), sized(20_000, 200), 100),
            |maps| measure_large(maps, sized(10_000, 100), sized(20_000, 200), 100),
        ),
        Some("change") => {
            over_maps(|maps| measure_change(maps, many, many, 5), |maps| measure_change(maps, many, many, 5));
        }
        Some("change-large") => {
            let all = sized(100_000, 400);
            over_maps(|maps| measure_change(maps, all, all, 10), |maps| measure_change(maps, all, all, 10));
        }
        Some("audited") => {
            over_maps(
                |maps| measure_audited(maps, many, many, 5),
                |maps| measure_audited(maps, many, many, 5),
            );
        }
        Some("sustained") => over_maps(
            |maps| measure_sustained(maps, many, many, 5),
            |maps| measure_sustained(maps, many, many, 5),
        ),
        Some("cold") => measure_cold(Shape { services: many, endpoints: 10 }),
        _ => ["list", "list-json", "large", "change", "change-large", "audited", "sustained", "cold"]
            .into_iter()
            .for_each(run_alone),
    }
    ExitCode::SUCCESS
}

fn run_alone(name: &str) {
    let status = Command::new(std::env::current_exe().unwrap()).args(size::arguments(name)).status().unwrap();
    assert!(status.success(), "{name}: {status}");
}

/// Runs the real daemon.
fn run_daemon() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match cli::parse(std::env::args_os(), &mut out, &mut err) {
        Ok(cli) => match &cli.command {
            cli::Command::Run(run) => holdfast::run(run, &mut err),
            cli::Command::Client(_) => ExitCode::FAILURE,
        },
        Err(exit) => exit.into(),
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a part over the kernel's maps, or over memory maps without root.
fn over_maps(real: impl FnOnce(KernelMaps), memory: impl FnOnce(MemoryMaps)) {
    if !is_root() {
        println!("over maps of memory; the kernel's need root:");
        return memory(MemoryMaps::default());
    }
    let bed = Bed::new().unwrap();
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
    real(bed.within(Location::NODE, || KernelMaps::start(&options)).unwrap().unwrap());
}

// === The apiserver's side

/// Serves and runs orders until its input ends.
fn serve(folder: &Path, services: u32, slices: u32, endpoints: u32) {
    let cluster = Cluster::new(UID);
    let objects = (0..services).map(service);
    for object in objects.chain((0..slices).map(|at| slice(at % services, at, endpoints, 1))) {
        cluster.apply(object).unwrap();
    }
    let authority = Authority::new().unwrap();
    std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    let server = Server::start(&cluster, &authority.server(&Names::Kubernetes).unwrap()).unwrap();
    println!("{}", server.url());
    let change = |at: u32| {
        let changed = slice(at % services, at % slices, endpoints - at % 2, nanoseconds());
        cluster.apply(changed).unwrap();
    };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["change", at] => change(at.parse().unwrap()),
            ["sustain", per_second, seconds] => {
                sustain(per_second.parse().unwrap(), seconds.parse().unwrap(), &change);
            }
            ["forget"] => forget(&cluster, &server),
            _ => assert_eq!(line, "", "an order that nobody knows"),
        }
    }
}

/// Makes changes at this rate, each with a time stamp.
fn sustain(per_second: u32, seconds: u32, change: &dyn Fn(u32)) {
    let begun = Stopwatch::start();
    for at in 0..per_second * seconds {
        pause((Duration::from_secs(1) / per_second * at).saturating_sub(begun.read()));
        change(at);
    }
}

/// Makes a change that no watch gets, and compacts it away.
fn forget(cluster: &Cluster, server: &Server) {
    [Kind::Services, Kind::Slices].iter().for_each(|kind| server.mute(*kind, true));
    cluster.apply(service(0)).unwrap();
    cluster.compact();
    [Kind::Services, Kind::Slices].iter().for_each(|kind| server.mute(*kind, false));
}

/// A clock that both processes share.
fn nanoseconds() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().num_nanoseconds()
}

// === The daemon's side

/// A served cluster and the daemon's parts, all on this thread.
struct Client<M> {
    child: Child,
    orders: ChildStdin,
    engine: Engine<M>,
    events: mpsc::Receiver<Vec<Event>>,
    view: View,
    started: Stopwatch,
    snapshot: Arc<Snapshot>,
    _tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl<M: Maps> Client<M> {
    /// Waits until the apiserver serves; sends no request yet.
    fn new(maps: M, services: u32, slices: u32, endpoints: u32) -> Self {
        Self::with(maps, services, slices, endpoints, SourceSettings::default())
    }

    fn with(maps: M, services: u32, slices: u32, endpoints: u32, settings: SourceSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["serve", folder.path().to_str().unwrap()])
            .args([services, slices, endpoints].map(|it| it.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let orders = child.stdin.take().unwrap();
        let (events_in, events) = mpsc::channel(64);
        let (zones, _) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        let source = Kubernetes::new(access(folder.path(), url.trim()), settings);
        let view = source.view();
        tasks.spawn(source.run(events_in, zones));
        let (engine, _) = Engine::start(maps, Seed(7), &[Source::Kubernetes]).unwrap();
        pause(FIRST_GRACE);
        let (started, snapshot) = (Stopwatch::start(), Arc::default());
        Self { child, orders, engine, events, view, started, snapshot, _tasks: tasks, _folder: folder }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn step(&mut self) {
        let now = ClockReading { wall: Timestamp(1_800_000_000), mono: self.started.read() };
        self.snapshot = step_whole(&mut self.engine, now, &mut drop);
    }

    /// Takes the next group through to the maps. `made` gets the stamps of changed slices.
    async fn group(&mut self, made: &mut Vec<i64>) {
        let group = self.events.recv().await.unwrap();
        made.extend(group.iter().filter_map(|event| match event {
            Event::SliceApplied(facts) => facts.meta.generation,
            _ => None,
        }));
        group.into_iter().for_each(|event| self.engine.apply(event));
        self.step();
    }

    /// Runs until everything is in the maps.
    async fn sync(&mut self, services: u32) {
        while !self.snapshot.is_synced() {
            self.group(&mut Vec::new()).await;
        }
        while self.snapshot.fill.frontends < services as usize {
            pause_async(Duration::from_millis(1)).await;
            self.step();
        }
    }

    /// The completed lists of slices.
    fn lists(&self) -> u64 {
        self.view.current().iter().find(|watch| watch.what == Resource::Slices).unwrap().lists
    }

    /// The completed audits of either kind.
    fn audits(&self) -> u64 {
        self.view.current().iter().map(|watch| watch.audits).sum()
    }

    /// Makes changes one after the other, each when the one before is in the maps. Returns their times.
    async fn change(&mut self, changes: u32) -> Vec<i64> {
        let mut times = Vec::new();
        for at in 0..changes {
            self.order(&format!("change {at}"));
            let mut made = Vec::new();
            while made.is_empty() {
                self.group(&mut made).await;
            }
            times.extend(made.iter().map(|made| nanoseconds() - made));
            pause_async(PAUSE).await;
        }
        times
    }

    fn end(mut self) {
        drop(self.orders);
        self.child.wait().unwrap();
    }
}

fn access(folder: &Path, url: &str) -> Access {
    let text = format!(
        "[apiserver]\nendpoints = [\"{url}\"]\ntls_server_name = \"kubernetes.default.svc\"\nca_file = \"{}\"\ndiscover = []\n",
        folder.join("ca.crt").display()
    );
    let (config, _) = Config::parse(&text, "config.toml").unwrap();
    let sources = apiserver::AccessSources { apiserver: config.apiserver, kubelet: None, learns: false };
    let state = folder.to_owned();
    let settings = apiserver::AccessSettings { sources, state, known_cluster: None, seed: 7 };
    Access::new(&settings).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The time of the first lists, until everything is in the maps.
fn measure_list(services: u32, slices: u32, endpoints: u32, encodings: Encodings) {
    runtime().block_on(async {
        let settings = SourceSettings { encodings, ..SourceSettings::default() };
        let mut client = Client::with(MemoryMaps::default(), services, slices, endpoints, settings);
        let (before, begun) = (cpu(), Stopwatch::start());
        client.sync(services).await;
        let (spent, took) = (cpu() - before, begun.read());
        println!(
            "lists ({encodings}) of {services} services and {slices} slices of {endpoints} endpoints over TLS: {:.2} s CPU, {:.2} s, {:.0} MB resident, {:.0} MB at most",
            spent.as_secs_f64(),
            took.as_secs_f64(),
            memory::resident(std::process::id()).unwrap(),
            memory::most(std::process::id()).unwrap()
        );
        client.end();
    });
}

/// The largest cluster: the time until all is served, and the cost of a relist.
fn measure_large<M: Maps>(maps: M, services: u32, slices: u32, endpoints: u32) {
    runtime().block_on(async {
        let mut client = Client::new(maps, services, slices, endpoints);
        let (before, begun) = (cpu(), Stopwatch::start());
        client.sync(services).await;
        let (spent, took) = (cpu() - before, begun.read());
        println!(
            "{services} services with {slices} slices of {endpoints} endpoints, until all is served: {:.2} s, {:.2} s CPU, {:.0} MB resident, {:.0} MB at most",
            took.as_secs_f64(),
            spent.as_secs_f64(),
            memory::resident(std::process::id()).unwrap(),
            memory::most(std::process::id()).unwrap()
        );
        // Resets the peak of memory use.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let (before, known) = (cpu(), client.lists());
        client.order("forget");
        while client.lists() == known {
            client.group(&mut Vec::new()).await;
        }
        println!(
            "the same once more, because the version is gone: {:.2} s CPU, {:.0} MB resident, {:.0} MB at most",
            (cpu() - before).as_secs_f64(),
            memory::resident(std::process::id()).unwrap(),
            memory::most(std::process::id()).unwrap()
        );
        client.end();
    });
}

/// One change after another among many services, from the write at the apiserver to the maps.
fn measure_change<M: Maps>(maps: M, services: u32, slices: u32, endpoints: u32) {
    runtime().block_on(async {
        let mut client = Client::new(maps, services, slices, endpoints);
        client.sync(services).await;
        let before = cpu();
        let mut times = client.change(sized(CHANGES, 20)).await;
        let spent = (cpu() - before) / sized(CHANGES, 20);
        println!(
            "a change of a slice, among {services} services, from the apiserver to the maps: {}; {} µs CPU each",
            percentiles(&mut times),
            spent.as_micros()
        );
        client.end();
    });
}

/// The same while an audit runs as often as an admin API client can request it.
fn measure_audited<M: Maps>(maps: M, services: u32, slices: u32, endpoints: u32) {
    runtime().block_on(async {
        let every = sized(Timing::default().audit_interval_min, Duration::from_millis(1));
        let timing = Timing { audit_interval: every, audit_confirm_delay: every, ..Timing::default() };
        let settings = SourceSettings { timing, ..SourceSettings::default() };
        let mut client = Client::with(maps, services, slices, endpoints, settings);
        client.sync(services).await;
        let (known, begun) = (client.audits(), Stopwatch::start());
        let mut times = client.change(sized(CHANGES, 20)).await;
        println!(
            "the same beside {} comparisons in {:.1} s: {}",
            client.audits() - known,
            begun.read().as_secs_f64(),
            percentiles(&mut times)
        );
        client.end();
    });
}

/// 1,000 changes a second: the lag of the maps, and any growth.
fn measure_sustained<M: Maps>(maps: M, services: u32, slices: u32, endpoints: u32) {
    const PER_SECOND: u32 = 1_000;
    const PARTS: u32 = 6;
    let seconds = sized(60, PARTS / 3);
    runtime().block_on(async {
        let mut client = Client::new(maps, services, slices, endpoints);
        client.sync(services).await;
        client.order(&format!("sustain {PER_SECOND} {seconds}"));
        println!("{PER_SECOND} changes a second among {services} services, from the apiserver to the maps:");
        for part in 1..=PARTS {
            let (mut times, mut made, mut waiting) = (Vec::new(), Vec::new(), 0);
            let before = cpu();
            while times.len() < (PER_SECOND * seconds / PARTS) as usize {
                client.group(&mut made).await;
                times.extend(made.drain(..).map(|made| nanoseconds() - made));
                waiting = waiting.max(client.events.len());
            }
            let share = (cpu() - before).as_secs_f64() * f64::from(PARTS) / f64::from(seconds);
            println!(
                "  until {} s: {}; {:.0} % of a core, {:.1} MB resident, at most {waiting} groups waiting",
                part * seconds / PARTS,
                percentiles(&mut times),
                share * 100.0,
                memory::resident(std::process::id()).unwrap(),
            );
        }
        client.end();
    });
}

/// The time from a daemon's start, with an empty kernel and no apiserver, to the first client that is served from
/// saved state.
fn measure_cold(shape: Shape) {
    let all = sized(5, 1);
    if !is_root() {
        println!("a cold start needs root");
        return;
    }
    let bed = Bed::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let backend = "127.0.0.9:8080".parse().unwrap();
    let _server = bed.serve(Location::NODE, Role::Accept, "pod", backend).unwrap();
    let bytes = remember(&folder.path().join("state"), shape, backend);
    let mut rounds: Vec<[f64; 2]> = (0..all).map(|round| start_cold(&bed, folder.path(), round)).collect();
    rounds.sort_by(|one, other| one[0].total_cmp(&other[0]));
    println!(
        "a start with {} services of {} endpoints from a file of {:.0} MB, nothing in the kernel and no apiserver: a client is served after {:.2} s, at most {:.2} s; ready after {:.2} s",
        shape.services,
        shape.endpoints,
        f64::from(u32::try_from(bytes).unwrap()) / 1e6,
        rounds[all / 2][0],
        rounds[all - 1][0],
        rounds[all / 2][1],
    );
}

/// Writes the state of a daemon that has seen all of this.
fn remember(path: &Path, shape: Shape, backend: std::net::SocketAddr) -> u64 {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(7), &[Source::Kubernetes]).unwrap();
    shape.events().into_iter().chain(worlds::served_by(backend)).for_each(|event| engine.apply(event));
    for kind in [WatchKind::Services, WatchKind::Slices] {
        engine.apply(Event::Progress(kind, "1000".into()));
    }
    engine.apply(Event::Synced(Source::Kubernetes));
    let snapshot = step_whole(
        &mut engine,
        ClockReading { wall: Timestamp(1_800_000_000), mono: Duration::ZERO },
        &mut drop,
    );
    let context = state::SnapshotContext {
        boot: holdfast_agent::recorder::boot_id(),
        ..state::SnapshotContext::default()
    };
    state::StateFolder::new(path).store(&context, &snapshot).unwrap().bytes
}

/// The seconds until a client is served, and until the daemon reports ready.
fn start_cold(bed: &Bed, folder: &Path, round: usize) -> [f64; 2] {
    let (config, socket) = (folder.join("config.toml"), folder.join("admin.sock"));
    let cgroup = bed.child_cgroup(&format!("daemon-{round}")).unwrap();
    std::fs::write(folder.join("ca.crt"), Authority::new().unwrap().pem()).unwrap();
    let text = format!(
        "[datapath]\ncgroup = {:?}\nbpffs = \"/sys/fs/bpf/cold-{round}\"\n[admin]\nsocket = {socket:?}\n[state]\npath = {:?}\n\
         [node]\nname = \"n1\"\nzone = \"z1\"\n\
         [apiserver]\nendpoints = [\"https://127.0.0.1:9\"]\ntls_server_name = \"kubernetes.default.svc\"\nca_file = {:?}\ndiscover = []\n",
        bed.cgroup(),
        folder.join("state"),
        folder.join("ca.crt"),
    );
    std::fs::write(&config, text).unwrap();
    let mut clients = bed.dial(Location::NODE, worlds::SERVED).unwrap();
    pause(FIRST_GRACE);
    assert_eq!(clients.tally().unwrap().connected, 0, "nobody serves yet");
    let mut command = bed.command_in(&cgroup, std::env::current_exe().unwrap());
    let log = std::fs::File::create(folder.join("log")).unwrap();
    command.args(["run", "--config"]).arg(&config).stdout(log.try_clone().unwrap()).stderr(log);
    let begun = Stopwatch::start();
    let mut child = command.spawn().unwrap();
    let (mut served, mut ready) = (None, None);
    let log = std::fmt::from_fn(|f| f.write_str(&std::fs::read_to_string(folder.join("log")).unwrap()));
    wait_until(log, || {
        let took = begun.read().as_secs_f64();
        served = served.or_else(|| (clients.tally().unwrap().connected > 0).then_some(took));
        ready = ready.or_else(|| is_ready(&socket).then_some(took));
        served.is_some() && ready.is_some()
    });
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    // The pins of an ended daemon keep serving, so they are removed before the next round.
    std::fs::remove_dir_all(bed.bpffs().join(format!("cold-{round}"))).unwrap();
    [served.unwrap(), ready.unwrap()]
}

fn is_ready(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut answer = String::new();
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
}

fn percentiles(times: &mut [i64]) -> String {
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 1_000] / 1_000;
    format!("p50 {} µs, p99 {} µs, p99.9 {} µs", at(500), at(990), at(999))
}

/// This thread's CPU time, which is that of the daemon's whole side.
fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap())
}
