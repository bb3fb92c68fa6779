//! From an apiserver's bytes to realized: what the watch of a cluster costs this daemon.
//!
//! The apiserver is the fake one, in a process of its own, so that CPU and memory here are the client's alone: TLS, decoding,
//! the rules and memory maps. Objects carry what real ones do: managed fields, owners, targets, zones, hints.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast::apiserver::{self, Access};
use holdfast::config::Config;
use holdfast::engine::{Engine, Now};
use holdfast::sources::kubernetes::{Kubernetes, Settings};
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_datapath::MemoryMaps;
use holdfast_tests::fake::{Authority, Cluster, Names, Server};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Changes whose way is timed.
const CHANGES: u32 = 5_000;

/// Between two of them, so that each finds an idle daemon.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs one part, named by the arguments, or each part in a process of its own, so that none inherits another's heap.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let number = |at: usize| arguments[at].parse().unwrap();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(Path::new(&arguments[1]), number(2), number(3), number(4)),
        Some("list") => measure_list(2_000, 3_000, 100),
        Some("change") => measure_change(10_000, 10_000, 5),
        _ => ["list", "change"].into_iter().for_each(run_alone),
    }
}

fn run_alone(name: &str) {
    let status = Command::new(std::env::current_exe().unwrap()).arg(name).status().unwrap();
    assert!(status.success(), "{name}: {status}");
}

// === The apiserver's side

/// Serves until its input ends; each line is a service whose slice changes, stamped with the time.
fn serve(folder: &Path, services: u32, slices: u32, endpoints: u32) {
    let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-000000000001");
    let objects = (0..services).map(service);
    for object in objects.chain((0..slices).map(|at| slice(at % services, at, endpoints, 1))) {
        cluster.apply(object).unwrap();
    }
    let authority = Authority::new().unwrap();
    std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    let server = Server::start(&cluster, &authority.server(&Names::Kubernetes).unwrap()).unwrap();
    println!("{}", server.url());
    for line in std::io::stdin().lines() {
        let at: u32 = line.unwrap().parse().unwrap();
        cluster.apply(slice(at % services, at % slices, endpoints - at % 2, nanoseconds())).unwrap();
    }
}

/// The same clock in both processes.
fn nanoseconds() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().num_nanoseconds()
}

fn metadata(name: &str, generation: i64, labels: &Value) -> Value {
    json!({"name": name, "namespace": "default", "uid": format!("uid-of-{name}-0000-4000-8000"), "generation": generation,
        "creationTimestamp": "2026-01-08T11:11:55Z", "labels": labels,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "7c8d4a2e", "controller": true}],
        "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "time": "2026-01-08T11:11:55Z",
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:addressType": {}, "f:endpoints": {},
            "f:metadata": {"f:annotations": {".": {}}, "f:labels": {".": {}, "f:kubernetes.io/service-name": {}}}}}]})
}

fn service(at: u32) -> Value {
    let [_, b, c, d] = at.to_be_bytes();
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(&format!("web-{at}"), 1, &json!({"app": "web"})),
        "spec": {"type": "ClusterIP", "clusterIP": format!("10.{}.{c}.{d}", 96 + b), "clusterIPs": [format!("10.{}.{c}.{d}", 96 + b)],
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
        "selector": {"app": "web"}, "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]},
        "status": {"loadBalancer": {}}})
}

fn slice(service: u32, at: u32, endpoints: u32, generation: i64) -> Value {
    let labels = json!({"kubernetes.io/service-name": format!("web-{service}"),
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"});
    let endpoints: Vec<Value> = (0..endpoints).map(|nth| endpoint(at * 128 + nth)).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": metadata(&format!("web-{service}-{at:05}"), generation, &labels), "addressType": "IPv4",
        "endpoints": endpoints, "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]})
}

fn endpoint(at: u32) -> Value {
    let [_, b, c, d] = at.to_be_bytes();
    json!({"addresses": [format!("10.{}.{c}.{d}", 128 + b % 64)], "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{}", at % 100), "zone": "europe-west1-b", "hints": {"forZones": [{"name": "europe-west1-b"}]},
        "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("web-7d4b9c6f5d-{at}"), "uid": format!("5f3c1a2e-0000-4000-8000-{at:012}")}})
}

// === The daemon's side

/// A served cluster and the daemon's parts, all on this thread.
struct Bed {
    child: Child,
    orders: ChildStdin,
    engine: Engine<MemoryMaps>,
    events: mpsc::Receiver<Vec<Event>>,
    started: Instant,
    _tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Bed {
    /// Waits until the apiserver serves; nothing is asked of it yet.
    fn new(services: u32, slices: u32, endpoints: u32) -> Self {
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
        tasks.spawn(
            Kubernetes::new(access(folder.path(), url.trim()), Settings::default()).run(events_in, zones),
        );
        let (engine, _) = Engine::start(MemoryMaps::default(), Seed(7), &[Source::Kubernetes]).unwrap();
        Self { child, orders, engine, events, started: Instant::now(), _tasks: tasks, _folder: folder }
    }

    /// Takes the next group as far as the maps. `true`: the source is synced. `made` gets the stamps of changed slices.
    async fn group(&mut self, made: &mut Vec<i64>) -> bool {
        let group = self.events.recv().await.unwrap();
        let is_synced = group.iter().any(|event| matches!(event, Event::Synced(_)));
        made.extend(group.iter().filter_map(|event| match event {
            Event::SliceApplied(facts) => facts.meta.generation,
            _ => None,
        }));
        group.into_iter().for_each(|event| self.engine.apply(event));
        let now = Now { wall: Timestamp(1_800_000_000), mono: self.started.elapsed() };
        self.engine.step(now, &mut drop);
        is_synced
    }

    async fn sync(&mut self) {
        while !self.group(&mut Vec::new()).await {}
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
    let sources = apiserver::Sources { apiserver: config.apiserver, kubelet: None, learns: false };
    let state = folder.to_owned();
    let settings = apiserver::Settings { sources, state, known_cluster: None, seed: 7 };
    Access::new(&settings).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The first lists: until everything is in the maps.
fn measure_list(services: u32, slices: u32, endpoints: u32) {
    runtime().block_on(async {
        let mut bed = Bed::new(services, slices, endpoints);
        let (before, begun) = (cpu(), Instant::now());
        bed.sync().await;
        let (spent, took) = (cpu() - before, begun.elapsed());
        println!(
            "lists of {services} services and {slices} slices of {endpoints} endpoints over TLS: {:.2} s CPU, {:.2} s, {:.0} MB resident, {:.0} MB at most",
            spent.as_secs_f64(),
            took.as_secs_f64(),
            resident("VmRSS"),
            resident("VmHWM")
        );
        bed.end();
    });
}

/// One change after another among many services: from the write at the apiserver to the maps.
fn measure_change(services: u32, slices: u32, endpoints: u32) {
    runtime().block_on(async {
        let mut bed = Bed::new(services, slices, endpoints);
        bed.sync().await;
        let (mut times, before) = (Vec::new(), cpu());
        for at in 0..CHANGES {
            writeln!(bed.orders, "{at}").unwrap();
            let mut made = Vec::new();
            while made.is_empty() {
                bed.group(&mut made).await;
            }
            times.extend(made.iter().map(|made| nanoseconds() - made));
            tokio::time::sleep(PAUSE).await;
        }
        let spent = (cpu() - before) / CHANGES;
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100] / 1_000;
        println!(
            "a change of a slice, among {services} services, from the apiserver to the maps: p50 {} µs, p99 {} µs; {} µs CPU each",
            at(50),
            at(99),
            spent.as_micros()
        );
        bed.end();
    });
}

/// What this thread has used; all of the daemon's side runs on it.
fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap())
}

/// Megabytes of this process's memory.
fn resident(what: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
