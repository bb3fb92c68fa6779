//! A node in the middle of a fabric, at a real control plane, and the proxies that serve it one after another.
//!
//! Invariant: a measured proxy leaves nothing to the next one.

use std::fs;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, Stopwatch, pause};
use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, POD_CIDRS, Switches};
use holdfast_tests::bed::{Location, Server, succeed};
use holdfast_tests::memory;
use holdfast_tests::packets::{Clients, Family, Service, changing, serve, sign, write_node, write_others};
use holdfast_tests::peers::{Cluster, NODE, Part, PeersError, apiserver};
use holdfast_tests::size::sized;

pub(crate) type Failed = Box<dyn std::error::Error>;

/// The manifest that an operator applies before the first daemon.
const MANIFEST: &str = include_str!("../../../contrib/kubernetes/rbac.yaml");

const USER: &str = "holdfast";

/// The longest time until a peer serves, and until clients see a change.
const SERVED: Duration = Duration::from_secs(300);

const CHANGES: usize = 41;

/// The pause before a change, so that the peer is idle. It shares no divisor with kube-proxy's period of one second.
const PAUSE: Duration = Duration::from_millis(1_370);

/// How long an idle peer is measured.
const IDLE: Duration = Duration::from_secs(10);

/// The clock ticks per second in `/proc`.
const TICKS: f64 = 100.0;

/// A proxy of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Holdfast,
    KubeProxy(Part),
}

/// All peers with their names.
pub(crate) const PEERS: [(&str, Peer); 3] = [
    ("holdfast", Peer::Holdfast),
    ("kube-proxy, nftables", Peer::KubeProxy(Part::Proxy)),
    ("kube-proxy, iptables", Peer::KubeProxy(Part::IptablesProxy)),
];

/// The results of a peer.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) start: Duration,
    /// The processor time of the start, including programs that the peer calls.
    pub(crate) cpu: Duration,
    pub(crate) changes: Vec<Duration>,
    pub(crate) megabytes: f64,
    /// The share of a processor.
    pub(crate) idle: f64,
}

/// The control plane with its services. Fields are dropped in this order.
pub(crate) struct Stage {
    _servers: Vec<Server>,
    cluster: Cluster,
}

impl Stage {
    /// `None`: Kubernetes' programs were not built.
    pub(crate) fn start(services: u32) -> Result<Option<Self>, Failed> {
        let cluster = match Cluster::start_with_pod_ranges(fabric::layout(), 1, POD_CIDRS) {
            Err(PeersError::NotBuilt { .. }) => return Ok(None),
            started => started?,
        };
        cluster.kill(Part::Controllers)?;
        fabric::lay(cluster.bed(), Switches::default())?;
        let api = cluster.api(0)?;
        api.apply(MANIFEST)?;
        write_node(&api)?;
        write_others(&cluster, services)?;
        changing().with(&["a"]).write(&api)?;
        sign().write(&api)?;
        Ok(Some(Self { _servers: serve(cluster.bed())?, cluster }))
    }

    /// Starts a peer, measures it, and removes its state.
    pub(crate) fn measure(&self, peer: Peer) -> Result<Measured, Failed> {
        changing().with(&["a"]).write(&self.cluster.api(0)?)?;
        match peer {
            Peer::Holdfast => self.measure_holdfast(),
            Peer::KubeProxy(part) => self.measure_kube_proxy(part),
        }
    }

    fn measure_holdfast(&self) -> Result<Measured, Failed> {
        let mut daemon = Daemon::new(self.cluster.bed(), &self.configuration()?)?;
        let begun = Stopwatch::start();
        daemon.launch()?;
        let pid = daemon.pid().ok_or("holdfast does not run")?;
        let measured = self.measure_process(pid, begun)?;
        daemon.stop()?;
        daemon.cleanup()?;
        Ok(measured)
    }

    fn measure_kube_proxy(&self, part: Part) -> Result<Measured, Failed> {
        let begun = Stopwatch::start();
        self.cluster.start_part(part)?;
        let pid = self.cluster.pid(part).ok_or("kube-proxy does not run")?;
        let measured = self.measure_process(pid, begun)?;
        self.cluster.kill(part)?;
        let mut nft = self.cluster.bed().command(Location::OUTSIDE, "nft")?;
        nft.args(["flush", "ruleset"]);
        succeed(nft, SERVED)?;
        Ok(measured)
    }

    fn measure_process(&self, pid: u32, begun: Stopwatch) -> Result<Measured, Failed> {
        let mut clients = Clients::start(self.cluster.bed())?;
        wait_for(&mut clients, &sign(), "b")?;
        let start = begun.read();
        let cpu = Duration::from_secs_f64(cpu(pid)?);
        wait_for(&mut clients, &changing(), "a")?;
        let changes = (0..sized(CHANGES, 2)).map(|number| self.change(&mut clients, number));
        let changes = changes.collect::<Result<_, _>>()?;
        let before = self::cpu(pid)?;
        let idle = sized(IDLE, Duration::from_millis(200));
        pause(idle);
        let idle = (self::cpu(pid)? - before) / idle.as_secs_f64();
        Ok(Measured { start, cpu, changes, megabytes: memory::resident(pid)?, idle })
    }

    /// Replaces the only endpoint. The time includes the apiserver's own part.
    fn change(&self, clients: &mut Clients, number: usize) -> Result<Duration, Failed> {
        let (to, name): (&'static [&'static str], _) =
            if number.is_multiple_of(2) { (&["b"], "b") } else { (&["a"], "a") };
        let api = self.cluster.api(0)?;
        let slice = changing().with(to).objects().into_iter().nth(1).ok_or("no slice")?;
        pause(sized(PAUSE, Duration::from_millis(1)));
        let begun = Stopwatch::start();
        api.apply_object(&slice)?;
        wait_for(clients, &changing(), name)?;
        Ok(begun.read())
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

/// Waits until an outside client reaches this server at the load balancer's IPv4 address.
fn wait_for(clients: &mut Clients, service: &Service, server: &str) -> Result<(), Failed> {
    let to = service.frontend("balancer", Family::V4).ok_or("the service has no address")?;
    let question = Question { patience: Duration::from_millis(200), ..Question::new(Transport::Tcp, to) };
    let until = Deadline::after(SERVED);
    let mut last = None;
    while !until.is_over() {
        last = clients.client("outside")?.ask_all(std::slice::from_ref(&question))?.pop();
        if matches!(&last, Some(Outcome::Answered { by, .. }) if by == server) {
            return Ok(());
        }
    }
    Err(format!("{} is not answered by {server}: {last:?}", service.name).into())
}

/// The processor seconds of a process, including programs that it has called.
fn cpu(pid: u32) -> Result<f64, Failed> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the last bracket may contain anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(4);
    let ticks: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS)
}
