//! A node in the middle of a fabric, at a real control plane, and the proxies that serve it one after another.
//!
//! Invariant: a proxy that has been measured leaves nothing to the next one.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, POD_CIDRS, Switches};
use holdfast_tests::bed::{Location, Server, succeed};
use holdfast_tests::packets::{Clients, Family, Service, changing, serve, sign};
use holdfast_tests::peers::{Api, Cluster, Kind, NODE, Part, PeersError, apiserver};
use holdfast_tests::size::sized;
use serde_json::{Value, json};

pub(crate) type Failed = Box<dyn std::error::Error>;

/// What an operator applies before the first daemon.
const MANIFEST: &str = include_str!("../../../contrib/kubernetes/rbac.yaml");

const USER: &str = "holdfast";

/// The longest that a peer may take until it serves, and a change until clients meet it.
const SERVED: Duration = Duration::from_secs(300);

/// Clients that write objects at once: an apiserver has as many processors as everything else here.
const WRITERS: u32 = 4;

const CHANGES: usize = 41;

/// The pause before a change, so that it meets a peer that has nothing else to do. It has no part in common with the
/// second for which kube-proxy lets changes wait.
const PAUSE: Duration = Duration::from_millis(1_370);

/// How long a peer is watched that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// Ticks of a second in the times of `/proc`.
const TICKS: f64 = 100.0;

/// A proxy of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Holdfast,
    KubeProxy(Part),
}

/// All of them, with their names.
pub(crate) const PEERS: [(&str, Peer); 3] = [
    ("holdfast", Peer::Holdfast),
    ("kube-proxy, nftables", Peer::KubeProxy(Part::Proxy)),
    ("kube-proxy, iptables", Peer::KubeProxy(Part::IptablesProxy)),
];

/// What a peer did.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) start: Duration,
    /// Of a processor, for the start, with that of programs that the peer calls.
    pub(crate) cpu: Duration,
    pub(crate) changes: Vec<Duration>,
    pub(crate) megabytes: f64,
    /// Of a processor.
    pub(crate) idle: f64,
}

/// The control plane with its services. Fields are dropped in this order.
pub(crate) struct Stage {
    _servers: Vec<Server>,
    cluster: Cluster,
}

impl Stage {
    /// `None`: Kubernetes' own programs were never built.
    pub(crate) fn start(services: u32) -> Result<Option<Self>, Failed> {
        let cluster = match Cluster::of_pods(fabric::layout(), 1, POD_CIDRS) {
            Err(PeersError::NotBuilt { .. }) => return Ok(None),
            started => started?,
        };
        cluster.kill(Part::Controllers)?;
        fabric::lay(cluster.bed(), Switches::default())?;
        let api = cluster.api(0)?;
        api.apply(MANIFEST)?;
        api.add_node(NODE, "zone-a")?;
        let addresses = NODE_ADDRESSES.map(|address| json!({"type": "InternalIP", "address": address}));
        api.merge_status(Kind::Node, NODE, &json!({"status": {"addresses": addresses}}))?;
        write_others(&cluster, services)?;
        for service in [changing().with(&["a"]), sign()] {
            write(&api, &service)?;
        }
        Ok(Some(Self { _servers: serve(cluster.bed())?, cluster }))
    }

    /// Starts a peer, measures it, and removes what it leaves.
    pub(crate) fn measure(&self, peer: Peer) -> Result<Measured, Failed> {
        write(&self.cluster.api(0)?, &changing().with(&["a"]))?;
        match peer {
            Peer::Holdfast => self.measure_holdfast(),
            Peer::KubeProxy(part) => self.measure_kube_proxy(part),
        }
    }

    fn measure_holdfast(&self) -> Result<Measured, Failed> {
        let mut daemon = Daemon::new(self.cluster.bed(), &self.configuration()?)?;
        let begun = Instant::now();
        daemon.launch()?;
        let pid = daemon.pid().ok_or("holdfast does not run")?;
        let measured = self.measure_process(pid, begun)?;
        daemon.stop()?;
        daemon.cleanup()?;
        Ok(measured)
    }

    fn measure_kube_proxy(&self, part: Part) -> Result<Measured, Failed> {
        let begun = Instant::now();
        self.cluster.start_part(part)?;
        let pid = self.cluster.pid(part).ok_or("kube-proxy does not run")?;
        let measured = self.measure_process(pid, begun)?;
        self.cluster.kill(part)?;
        let mut nft = self.cluster.bed().command(Location::OUTSIDE, "nft")?;
        nft.args(["flush", "ruleset"]);
        succeed(nft, SERVED)?;
        Ok(measured)
    }

    fn measure_process(&self, pid: u32, begun: Instant) -> Result<Measured, Failed> {
        let mut clients = Clients::start(self.cluster.bed())?;
        wait_for(&mut clients, &sign(), "b")?;
        let start = begun.elapsed();
        let cpu = Duration::from_secs_f64(cpu(pid)?);
        wait_for(&mut clients, &changing(), "a")?;
        let changes = (0..sized(CHANGES, 2)).map(|number| self.change(&mut clients, number));
        let changes = changes.collect::<Result<_, _>>()?;
        let before = self::cpu(pid)?;
        let idle = sized(IDLE, Duration::from_millis(200));
        thread::sleep(idle);
        let idle = (self::cpu(pid)? - before) / idle.as_secs_f64();
        Ok(Measured { start, cpu, changes, megabytes: megabytes(pid)?, idle })
    }

    /// Another endpoint takes the place of the only one. The apiserver's own part is in the time.
    fn change(&self, clients: &mut Clients, number: usize) -> Result<Duration, Failed> {
        let (to, name): (&'static [&'static str], _) =
            if number.is_multiple_of(2) { (&["b"], "b") } else { (&["a"], "a") };
        let api = self.cluster.api(0)?;
        let slice = changing().with(to).objects().into_iter().nth(1).ok_or("no slice")?;
        thread::sleep(sized(PAUSE, Duration::from_millis(1)));
        let begun = Instant::now();
        api.apply_object(&slice)?;
        wait_for(clients, &changing(), name)?;
        Ok(begun.elapsed())
    }

    fn configuration(&self) -> Result<String, Failed> {
        let authority = self.cluster.authority();
        let own = authority.client(USER, &[])?;
        let (ca, certificate, key) = (authority.file(), own.certificate, own.key);
        Ok(format!(
            "[node]\nname = \"{NODE}\"\n[apiserver]\nendpoints = [\"https://{}\"]\nca_file = {ca:?}\n\
             client_certificate_file = {certificate:?}\nclient_key_file = {key:?}\n",
            apiserver(0)?
        ))
    }
}

/// Waits until a client outside gets this server, at the load balancer's address over IPv4.
fn wait_for(clients: &mut Clients, service: &Service, server: &str) -> Result<(), Failed> {
    let to = service.frontend("balancer", Family::V4).ok_or("the service has no address")?;
    let question = Question { patience: Duration::from_millis(200), ..Question::new(Transport::Tcp, to) };
    let until = Instant::now() + SERVED;
    let mut last = None;
    while Instant::now() < until {
        last = clients.of("outside")?.ask_all(std::slice::from_ref(&question))?.pop();
        if matches!(&last, Some(Outcome::Answered { by, .. }) if by == server) {
            return Ok(());
        }
    }
    Err(format!("{} is not answered by {server}: {last:?}", service.name).into())
}

fn write(api: &Api<'_>, service: &Service) -> Result<(), Failed> {
    for object in service.objects() {
        api.apply_object(&object)?;
        if let Some(status) = object.get("status") {
            let name = format!("default/{}", service.name);
            api.merge_status(Kind::Service, &name, &json!({"status": status}))?;
        }
    }
    Ok(())
}

/// Services that no client dials, with two endpoints each.
fn write_others(cluster: &Cluster, services: u32) -> Result<(), Failed> {
    thread::scope(|scope| {
        let writer = |first: u32| move || create(cluster, (first..services).step_by(WRITERS as usize));
        let writers: Vec<_> = (0..WRITERS).map(|first| scope.spawn(writer(first))).collect();
        let ended =
            writers.into_iter().map(|it| it.join().unwrap_or_else(|it| std::panic::resume_unwind(it)));
        ended.collect::<Result<(), String>>()
    })
    .map_err(Failed::from)
}

fn create(cluster: &Cluster, numbers: impl Iterator<Item = u32>) -> Result<(), String> {
    let api = cluster.api(0).map_err(|error| error.to_string())?;
    for number in numbers {
        for (path, object) in other(number) {
            let body = Some(("application/json", object.to_string()));
            let reply = api.request("POST", path, body).map_err(|error| error.to_string())?;
            if reply.status != 201 {
                return Err(format!("{path}: {}: {}", reply.status, reply.text));
            }
        }
    }
    Ok(())
}

fn other(number: u32) -> [(&'static str, Value); 2] {
    let name = format!("other-{number}");
    let address = |last: u32| format!("10.244.{}.{}", 100 + number / 100, 1 + number % 100 * 2 + last);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name},
        },
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {"addresses": [address(0)], "nodeName": "n2", "conditions": {"ready": true}},
            {"addresses": [address(1)], "nodeName": "n2", "conditions": {"ready": true}},
        ],
    });
    [
        ("api/v1/namespaces/default/services", service),
        ("apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice),
    ]
}

/// Seconds of a processor that a process has had, with the programs that it has called.
fn cpu(pid: u32) -> Result<f64, Failed> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // What stands before the last bracket is the name, which may have anything in it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(4);
    let ticks: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS)
}

fn megabytes(pid: u32) -> Result<f64, Failed> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
