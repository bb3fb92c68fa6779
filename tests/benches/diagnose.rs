//! The cost of a diagnosis to its client, this node and the apiserver: a service with 50 pods among 10,000 others.
//!
//! The real daemon runs with the kernel's datapath in a bed, and its own CLI sends the requests. The fake apiserver
//! runs in a process of its own: first it answers, then it leaves clients without an answer. Each round is about
//! another service, and long enough after the one before for Events to be read again.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause, wait_until};
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server as Backends};
use holdfast_tests::fake::{Authority, Cluster, Greeting, Kind, Names, Server, Verb};
use holdfast_tests::memory::resident;
use holdfast_tests::program::command_line;
use holdfast_tests::size::{arguments, is_short, sized};
use serde_json::{Value, json};

/// The pods of each diagnosed service; their addresses are in this node's network.
const PODS: u8 = 50;
const NETWORK: &str = "10.128.0.1/24";

/// The limit of requests for one diagnosis.
const REQUESTS_MAX: u32 = 12;

/// The least interval of reading Events, and a little more.
const EVENTS_PACE: Duration = Duration::from_millis(5_100);

/// How many diagnoses are tried until one has all of its answers.
const TRIES_MAX: u32 = 5;

const UID: &str = "7c8d4a2e-0000-4000-8000-000000000001";

fn rounds() -> u32 {
    sized(7, 1)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    match words.first().map(String::as_str) {
        Some("serve") => serve(Path::new(&words[1])),
        Some("run" | "--socket") => return command_line(),
        _ if !nix::unistd::geteuid().is_root() => println!("a diagnosis by the daemon needs root"),
        _ => measure(),
    }
    ExitCode::SUCCESS
}

// === The apiserver's side

/// Serves and runs orders until its input ends.
fn serve(folder: &Path) {
    let cluster = Cluster::new(UID);
    objects(&cluster);
    let authority = Authority::new().unwrap();
    std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    let server = Server::start(&cluster, &authority.server(&Names::Kubernetes).unwrap()).unwrap();
    println!("{}", server.url());
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "count" => println!("{}", counted(&server)),
            order => {
                assert_eq!(order, "silence", "an order that nobody knows");
                server.greet(Greeting::Silent);
                println!("silent");
            }
        }
    }
}

/// Requests since the last count, except watches.
fn counted(server: &Server) -> usize {
    let requests = server.requests();
    server.forget_requests();
    requests.iter().filter(|it| it.verb != Verb::Watch && it.kind != Kind::Ready).count()
}

fn objects(cluster: &Cluster) {
    let apply = |object: Value| assert!(cluster.apply(object).is_ok());
    for other in 0..sized(10_000, 200) {
        let [_, b, c, d] = u32::to_be_bytes(other);
        apply(service(&format!("other-{other}"), [10, 97 + b, c, d].into()));
        apply(slice(&format!("other-{other}"), "10.0.0", 10));
    }
    for asked in 0..2 * rounds() {
        let name = format!("web-{asked}");
        apply(service(&name, [10, 96, 0, u8::try_from(asked).unwrap()].into()));
        apply(slice(&name, "10.128.0", PODS));
        (1..=PODS).for_each(|nth| apply(pod(&name, nth)));
        (0..5).for_each(|nth| apply(event(&name, nth)));
    }
    let ready = json!([{"type": "Ready", "status": "True"}]);
    apply(json!({"kind": "Node", "metadata": {"name": "n1"}, "status": {"conditions": ready}}));
    apply(json!({"kind": "Namespace", "metadata": {"name": "default"}, "status": {"phase": "Active"}}));
    for name in ["kube-controller-manager", "cloud-controller-manager"] {
        apply(json!({"kind": "Lease", "metadata": {"namespace": "kube-system", "name": name},
            "spec": {"holderIdentity": "one", "renewTime": "2026-11-20T13:57:02.000000Z"}}));
    }
}

fn service(name: &str, address: IpAddr) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "selector": {"app": name},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]}})
}

fn slice(service: &str, network: &str, endpoints: u8) -> Value {
    let endpoints: Vec<Value> = (1..=endpoints)
        .map(|nth| {
            let target = json!({"kind": "Pod", "namespace": "default", "name": format!("{service}-{nth}")});
            json!({"addresses": [format!("{network}.{nth}")], "conditions": {"ready": true, "serving": true},
                "nodeName": "n1", "targetRef": target})
        })
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"namespace": "default",
        "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
        "endpoints": endpoints, "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]})
}

fn pod(app: &str, nth: u8) -> Value {
    json!({"kind": "Pod", "metadata": {"namespace": "default", "name": format!("{app}-{nth}"), "labels": {"app": app}},
        "spec": {"nodeName": "n1", "containers": [{"name": "web", "ports": [{"containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": format!("10.128.0.{nth}")}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T13:57:02Z"}]}})
}

fn event(service: &str, nth: u8) -> Value {
    json!({"kind": "Event", "metadata": {"namespace": "default", "name": format!("{service}.{nth}")},
        "involvedObject": {"kind": "Service", "namespace": "default", "name": service}, "type": "Warning",
        "reason": "SyncLoadBalancerFailed", "message": "RequestLimitExceeded", "count": 3,
        "lastTimestamp": "2026-11-20T13:58:02Z", "source": {"component": "service-controller"}})
}

// === The node's side

/// The processes of a measurement.
struct Stage {
    daemon: Child,
    apiserver: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    _backends: Backends,
    bed: Bed,
}

impl Stage {
    fn new() -> Self {
        let bed = Bed::lay(&Layout { local: vec![NETWORK], ..Layout::default() }).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let backends: SocketAddr = "0.0.0.0:8080".parse().unwrap();
        let backends = bed.serve(Location::NODE, Role::Tcp, "pods", backends).unwrap();
        let mut command = bed.command(Location::OUTSIDE, std::env::current_exe().unwrap()).unwrap();
        let path = folder.path().to_str().unwrap();
        command.arg("serve").arg(path).args(arguments("").into_iter().skip(1));
        let mut apiserver = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut answers = BufReader::new(apiserver.stdout.take().unwrap());
        let orders = apiserver.stdin.take().unwrap();
        let url = line(&mut answers);
        let daemon = daemon(&bed, folder.path(), &url);
        Self { daemon, apiserver, orders, answers, folder, _backends: backends, bed }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn wait_until_ready(&mut self) {
        wait_until("the daemon is ready", || {
            assert!(self.daemon.try_wait().unwrap().is_none(), "{}", self.log());
            is_ready(&self.socket())
        });
    }

    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        line(&mut self.answers)
    }

    /// One diagnosis through the CLI: the answer, its time, the daemon's CPU time, and the requests that it sent.
    fn ask(&mut self, service: u32) -> DiagnosisCost {
        self.order("count");
        let had = resident(self.daemon.id()).unwrap();
        let (before, begun) = (cpu_of(self.daemon.id()), Stopwatch::start());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--socket").arg(self.socket());
        let answer =
            command.args(["diagnose", &format!("default/web-{service}"), "-o", "json"]).output().unwrap();
        let (took, spent) = (begun.read(), cpu_of(self.daemon.id()).saturating_sub(before));
        let said: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        assert!(said.is_object(), "{answer:?}\n{}", self.log());
        let grown = resident(self.daemon.id()).unwrap() - had;
        DiagnosisCost { said, took, spent, grown, requests: self.order("count").parse().unwrap() }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in [&mut self.daemon, &mut self.apiserver] {
            let _ = child.kill();
            let _ = child.wait();
        }
        // The pins of an ended daemon keep serving, so they are removed.
        let _ = std::fs::remove_dir_all(self.bed.bpffs().join("diagnose"));
    }
}

struct DiagnosisCost {
    said: Value,
    took: Duration,
    spent: Duration,
    grown: f64,
    requests: u32,
}

fn line(from: &mut impl BufRead) -> String {
    let mut text = String::new();
    from.read_line(&mut text).unwrap();
    text.trim().to_owned()
}

fn daemon(bed: &Bed, folder: &Path, url: &str) -> Child {
    let path = |name: &str| folder.join(name);
    let text = format!(
        "[datapath]\ncgroup = {:?}\nbpffs = \"/sys/fs/bpf/diagnose\"\n[admin]\nsocket = {:?}\n[state]\npath = {:?}\n\
         [node]\nname = \"n1\"\nzone = \"z1\"\n\
         [apiserver]\nendpoints = [\"{url}\"]\ntls_server_name = \"kubernetes.default.svc\"\nca_file = {:?}\ndiscover = []\n",
        bed.cgroup(),
        path("admin.sock"),
        path("state"),
        path("ca.crt"),
    );
    std::fs::write(path("config.toml"), text).unwrap();
    let cgroup = bed.child_cgroup("daemon").unwrap();
    let mut command = bed.command_in(&cgroup, std::env::current_exe().unwrap());
    let log = File::create(path("log")).unwrap();
    command.args(["run", "--config"]).arg(path("config.toml")).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

fn is_ready(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut answer = String::new();
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
}

fn measure() {
    let mut stage = Stage::new();
    stage.wait_until_ready();
    let healthy: Vec<DiagnosisCost> = (0..rounds()).map(|round| answered(&mut stage, round)).collect();
    report("an apiserver that answers", &healthy);
    let grown = |asked: &[DiagnosisCost]| asked.iter().map(|it| it.grown).sum::<f64>();
    println!(
        "  the daemon had {:.1} MB more after the first one, the knowledge among it, and {:.1} MB more after the others",
        grown(&healthy[..1]),
        grown(&healthy[1..])
    );
    stage.order("silence");
    let silent: Vec<DiagnosisCost> = (rounds()..2 * rounds()).map(|round| paced(&mut stage, round)).collect();
    for asked in &silent {
        assert!(asked.said["api"]["service"].is_null(), "{:#}", asked.said);
        assert_eq!(asked.said["endpoints"]["ready"], PODS, "what the node knows is said: {:#}", asked.said);
    }
    report("one that is silent", &silent);
}

/// A complete diagnosis. On a busy machine a request may time out, or the daemon may send requests of its own; then it
/// tries again and reports that.
fn answered(stage: &mut Stage, round: u32) -> DiagnosisCost {
    let mut tries = 0;
    loop {
        let asked = paced(stage, round);
        let said = &asked.said;
        assert_eq!(said["endpoints"]["ready"], PODS, "{said:#}");
        let dialled = said["findings"].as_array().unwrap().iter().any(|it| it["id"] == "probe.backend");
        let has_pods = said["api"]["pods"].as_array().is_some_and(|pods| !pods.is_empty());
        if dialled && has_pods && (2..=REQUESTS_MAX).contains(&asked.requests) {
            return asked;
        }
        tries += 1;
        assert!(tries < TRIES_MAX, "{} requests, and not all heard: {said:#}", asked.requests);
        println!("  not counted: {} requests, {} ms", asked.requests, asked.took.as_millis());
    }
}

fn paced(stage: &mut Stage, round: u32) -> DiagnosisCost {
    if !is_short() {
        pause(EVENTS_PACE);
    }
    stage.ask(round)
}

fn report(which: &str, all: &[DiagnosisCost]) {
    let mut took: Vec<Duration> = all.iter().map(|it| it.took).collect();
    let mut spent: Vec<Duration> = all.iter().map(|it| it.spent).collect();
    took.sort_unstable();
    spent.sort_unstable();
    println!(
        "diagnose, {} services, {PODS} pods, {which}: median {} ms, most {} ms; the daemon's CPU time {} ms, most {} ms; at most {} requests",
        sized(10_000, 200),
        took[took.len() / 2].as_millis(),
        took[took.len() - 1].as_millis(),
        spent[spent.len() / 2].as_millis(),
        spent[spent.len() - 1].as_millis(),
        all.iter().map(|it| it.requests).max().unwrap_or_default(),
    );
}

/// The CPU time of a process's threads.
fn cpu_of(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let used = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).ok());
    Duration::from_nanos(used.map(|it| it.split(' ').next().unwrap().parse::<u64>().unwrap()).sum())
}
