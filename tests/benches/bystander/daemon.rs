//! The whole real daemon with memory maps, next to the fake apiserver.
//!
//! A change's time is from the write at the apiserver until a watcher of the daemon gets it; by then it is in the maps
//! and recorded. During the load, eight more of the bystander's services lose their backends: each must be held, with
//! its record and warning. Meanwhile served services stay served, and checks are answered.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Deadline, Stopwatch, pause, wait_until};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Layout, Location, Role};
use holdfast_tests::fake::{Authority, Cluster, Names, Server};
use holdfast_tests::memory;
use holdfast_tests::size::sized;
use serde_json::{Value, json};

use super::tenant::{Load, Tenant};

const CHANGES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// At this change the bystander's other services lose their backends.
const LOSS: u32 = 20;

/// The held services, and the network of their backends, which all answer probes.
pub(super) const HELD: u32 = 8;
const NETWORK: &str = "10.128.0.1/24";

/// The admin API, the node's health port, and a service's health port.
pub(super) const DOORS: [u16; 3] = [9_890, 10_256, 32_000];

pub(super) fn held_backend(number: u32) -> String {
    format!("10.128.0.{}", 10 + number)
}

/// Every row.
pub(super) fn measure() {
    if !nix::unistd::geteuid().is_root() {
        return println!("the daemon needs root");
    }
    for (what, load) in Load::ALL {
        measure_one(what, load);
    }
}

fn measure_one(what: &str, load: Load) {
    on_stage(load, |stage| {
        let times = beside(stage, |watcher| {
            let times = (0..sized(CHANGES, CHANGES / 10)).map(|change| {
                if change == LOSS {
                    (0..HELD).for_each(|number| _ = stage.cluster.apply(held(number, false)).unwrap());
                }
                pause(PAUSE);
                watcher.change(stage.cluster)
            });
            let times = times.collect();
            check(stage.bed, stage.daemon);
            times
        });
        super::report(what, times);
        println!("  {}", memory(stage.daemon));
    });
}

/// Prints the daemon's memory and the bystander's changes during a load and after it.
pub(super) fn series(what: &str, load: Load, whole: Duration, each: Duration) {
    if !nix::unistd::geteuid().is_root() {
        return println!("the daemon needs root");
    }
    println!("{what}, for {} s:", whole.as_secs());
    on_stage(load, |stage| {
        println!("  before: {}", memory(stage.daemon));
        let begun = Stopwatch::start();
        let window = |watcher: &mut Watcher, what: &str| {
            let (until, mut times) = (Deadline::after(each), Vec::new());
            while !until.is_over() {
                pause(PAUSE);
                times.push(watcher.change(stage.cluster));
            }
            super::report(
                &format!("  {what} {:4} s: {}", begun.read().as_secs(), memory(stage.daemon)),
                times,
            );
        };
        beside(stage, |watcher| {
            while begun.read() < whole {
                window(watcher, "after");
            }
        });
        let mut watcher = Watcher::arrive(stage.daemon);
        (0..3).for_each(|_| window(&mut watcher, "at rest since,"));
    });
}

/// The setup of a measurement.
#[derive(Clone, Copy)]
struct Stage<'a> {
    load: Load,
    bed: &'a Bed,
    cluster: &'a Cluster,
    daemon: &'a Daemon<'a>,
}

fn on_stage(load: Load, play: impl FnOnce(Stage<'_>)) {
    let bed = Bed::lay(&Layout { local: vec![NETWORK], ..Layout::default() }).unwrap();
    let everywhere = "0.0.0.0:8080".parse().unwrap();
    let _backends = bed.serve(Location::NODE, Role::Tcp, "backends", everywhere).unwrap();
    let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-00000000a77a");
    let authority = Authority::new().unwrap();
    let identity = authority.server(&Names::Kubernetes).unwrap();
    let server = bed.within(Location::NODE, || Server::start(&cluster, &identity).unwrap()).unwrap();
    residents(&cluster);
    let last = Tenant::new(&cluster, &bed, load).settle();
    let daemon = daemon(&bed, &authority, &server);
    let last = last.unwrap_or_else(|| "bystander/web".to_owned());
    wait_until("the crowd is served", || daemon.answer(&["services", &last]).unwrap().0 == Some(0));
    play(Stage { load, bed: &bed, cluster: &cluster, daemon: &daemon });
}

/// Runs a closure during the load.
fn beside<T>(stage: Stage<'_>, act: impl FnOnce(&mut Watcher) -> T) -> T {
    let mut watcher = Watcher::arrive(stage.daemon);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut tenant = Tenant::new(stage.cluster, stage.bed, stage.load);
            for round in 1.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                tenant.act(round);
                pause(stage.load.pause());
            }
        });
        let done = act(&mut watcher);
        ends.store(true, Ordering::Relaxed);
        done
    })
}

fn daemon<'a>(bed: &'a Bed, authority: &Authority, server: &Server) -> Daemon<'a> {
    let mut daemon = Daemon::new(bed, "").unwrap().started_as(std::env::current_exe().unwrap());
    let ca = daemon.folder().join("ca.pem");
    fs::write(&ca, authority.pem()).unwrap();
    let mut more = format!(
        "[node]\nname = \"n1\"\nnode_port_addresses = [\"10.128.0.0/24\"]\nzone = \"z\"\n[kube_proxy]\nhealth = \"0.0.0.0:{}\"\n",
        DOORS[1]
    );
    write!(
        more,
        "[apiserver]\nendpoints = [\"{}\"]\nca_file = {:?}\ndiscover = []\ntls_server_name = \"kubernetes.default.svc\"\n",
        server.url(),
        ca.display().to_string()
    )
    .unwrap();
    daemon.configure(&more).unwrap();
    let text = fs::read_to_string(daemon.config()).unwrap();
    fs::write(daemon.config(), text.replacen("[datapath]", "[datapath]\nkind = \"memory\"", 1)).unwrap();
    daemon.start().unwrap();
    daemon
}

/// The bystander's objects.
fn residents(cluster: &Cluster) {
    let apply = |object: Value| _ = cluster.apply(object).unwrap();
    let mut web = service("web", "10.96.255.1");
    web["spec"]["type"] = json!("LoadBalancer");
    web["spec"]["externalTrafficPolicy"] = json!("Local");
    web["spec"]["healthCheckNodePort"] = json!(DOORS[2]);
    apply(web);
    apply(slice("web", "192.0.2.1", true));
    for number in 0..HELD {
        apply(service(&format!("held-{number}"), &format!("10.96.254.{}", number + 1)));
        apply(held(number, true));
    }
}

fn service(name: &str, address: &str) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "bystander", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": [{"name": "", "protocol": "TCP", "port": 80}]},
    })
}

fn slice(service: &str, backend: &str, is_there: bool) -> Value {
    let endpoints = json!([{"addresses": [backend], "conditions": {"ready": true}, "nodeName": "n1"}]);
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "bystander", "name": format!("{service}-1"),
                     "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": if is_there { endpoints } else { json!([]) },
    })
}

fn held(number: u32, is_there: bool) -> Value {
    slice(&format!("held-{number}"), &held_backend(number), is_there)
}

/// Receives each change of the bystander.
struct Watcher {
    told: BufReader<UnixStream>,
    changes: u32,
}

impl Watcher {
    fn arrive(daemon: &Daemon<'_>) -> Self {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let request = "GET /watch?service=bystander/web HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut watcher = Self { told: BufReader::new(stream), changes: 1 };
        watcher.hear(": watching");
        watcher
    }

    fn change(&mut self, cluster: &Cluster) -> Duration {
        self.changes = self.changes % 250 + 1;
        let backend = format!("192.0.2.{}", self.changes);
        let object = slice("web", &backend, true);
        let begun = Stopwatch::start();
        cluster.apply(object).unwrap();
        self.hear(&format!("{backend}:8080"));
        begun.read()
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.told.read_line(&mut line).unwrap() > 0, "the watcher was sent away before {word}");
        }
    }
}

/// Checks that the bystander's frontends are its own.
fn check(bed: &Bed, daemon: &Daemon<'_>) {
    let row = |name: &str| daemon.ask(&["frontends", name]).unwrap()["frontends"][0].clone();
    assert_eq!(row("bystander/web")["verdict"], "serving");
    for number in 0..HELD {
        let name = format!("bystander/held-{number}");
        let row = row(&name);
        assert_eq!(
            row["verdict"],
            "held",
            "{name}: its hold: {row}\n{}",
            daemon.tell(&["history", &name]).unwrap()
        );
        let told = daemon.tell(&["history", &name]).unwrap();
        assert!(told.contains("serving -> held"), "{name}: its record: {told}");
        let is_warning = |line: &str| line.contains("WARN") && line.contains(&name) && line.contains("held");
        wait_until("the daemon warns", || daemon.logged().lines().any(is_warning));
    }
    for (port, path) in [(DOORS[1], "/healthz"), (DOORS[2], "/")] {
        assert_eq!(bed.within(Location::NODE, || checked(port, path)).unwrap(), "HTTP/1.1 200", "{port}");
    }
}

fn checked(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::new(10, 128, 0, 1), port))).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.chars().take("HTTP/1.1 200".len()).collect()
}

/// The daemon's resident memory, now and at its peak.
fn memory(daemon: &Daemon<'_>) -> String {
    let pid = daemon.pid().unwrap();
    let (now, most) = (memory::resident(pid).unwrap(), memory::most(pid).unwrap());
    format!("{now:.0} MB resident, {most:.0} MB at most")
}
