//! A cluster of three nodes with backends on each, and clients that connect in a loop: from the host and from a pod of
//! every node, and from the machine outside.
//!
//! Invariant: after the setup and before each drill, every client is answered.

use std::cell::{Cell, RefCell};
use std::fs;
use std::time::Duration;

use holdfast_conformance::{
    Cluster, ClusterError, Cni, Family, Machine, MachineName, Proxy, Running, Topology,
};
use holdfast_fixtures::clock::{Deadline, Stopwatch, pause};

use crate::Failure;
use crate::attempts::{Absence, Client, Tally};
use crate::client::now;
use crate::kubernetes;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// The nodes of every cluster here; the environment may set fewer, for a shorter drill.
pub(crate) fn nodes() -> &'static [&'static str] {
    let asked = std::env::var("NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(NODES.len());
    NODES.get(..asked.max(1)).unwrap_or(&NODES)
}

/// A cluster of this size, with the pod network that the environment may set. Some of holdfast's packet settings need
/// links like network cards.
pub(crate) fn topology(proxy: &Proxy) -> Result<Topology, ClusterError> {
    let nodes = u8::try_from(nodes().len()).unwrap_or(u8::MAX);
    let cni = std::env::var("CNI").map_or(Ok(Cni::Bridge), |text| text.parse())?;
    let cards = matches!(proxy, Proxy::Holdfast { config } if !config.is_empty());
    Ok(Topology { nodes, cni, proxy: proxy.clone(), balancer: false, cards, ..Topology::default() })
}

/// The program's path in the machines.
pub(crate) const PROGRAM: &str = "/opt/drill/drill";

const MANIFEST: &str = include_str!("../../../manifests/drills.yaml");

/// The ClusterIP, the NodePort of the client's own node, and cluster DNS.
const INSIDE: [&str; 3] = ["name:10.96.77.1:80", "name:NODE:30777", "dns:10.96.0.10:53"];

const ACROSS: [&str; 3] = ["name:172.30.0.11:30777", "name:172.30.0.12:30777", "name:172.30.0.13:30777"];

/// The NodePorts of all nodes: clients without a route to the Services' addresses have only these. For nodes that dial
/// them too, a node is both client and router.
fn across() -> &'static [&'static str] {
    ACROSS.get(..nodes().len()).unwrap_or(&ACROSS)
}

/// How long no client may fail before all counts as healthy, and the limit of that wait.
const QUIET: Duration = Duration::from_secs(3);
pub(crate) const SETTLE_MAX: Duration = Duration::from_secs(180);

/// The cluster, its clients, and the absences of its machines.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    hosts: RefCell<Vec<(String, Running)>>,
    launched: Cell<u32>,
    absences: RefCell<Vec<Absence>>,
    followed: Cell<u8>,
}

impl Stage {
    /// Starts the cluster, the backends and the clients.
    pub(crate) fn set(proxy: &Proxy) -> Result<Self, Failure> {
        let cluster = Cluster::start(&Topology { family: Family::Ipv4, ..topology(proxy)? })?;
        let stage = Self {
            cluster,
            hosts: RefCell::default(),
            launched: Cell::new(0),
            absences: RefCell::default(),
            followed: Cell::new(0),
        };
        stage.fill()?;
        Ok(stage)
    }

    fn fill(&self) -> Result<(), Failure> {
        for machine in ["cp", "out"].iter().chain(nodes()) {
            equip(self.cluster.on(machine)?)?;
        }
        self.cluster.kubectl(&["-n", "kube-system", "scale", "deployment/coredns", "--replicas=2"])?;
        let inside = INSIDE.join(" ").replace("NODE", "$(NODE)");
        self.cluster.apply(&MANIFEST.replace("TARGETS", &inside))?;
        kubernetes::rolled_out(&self.cluster)?;
        nodes().iter().chain(&["out"]).try_for_each(|machine| self.launch(machine))?;
        self.settle()
    }

    /// Starts the client on a machine's host.
    fn launch(&self, machine: &str) -> Result<(), Failure> {
        let number = self.launched.replace(self.launched.get() + 1);
        let [address, _] = machine.parse::<MachineName>()?.addresses();
        let targets = if machine == "out" { across() } else { &INSIDE };
        let targets: Vec<String> = targets.iter().map(|target| target.replace("NODE", &address)).collect();
        let command: Vec<&str> =
            [PROGRAM, "client"].into_iter().chain(targets.iter().map(String::as_str)).collect();
        let client = self.cluster.on(machine)?.spawn(&format!("drill-host-{number}"), &command)?;
        self.hosts.borrow_mut().push((machine.to_owned(), client));
        Ok(())
    }

    /// Makes the host of every node dial the NodePorts of all nodes too, during a closure.
    pub(crate) fn across(&self, lasts: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let command: Vec<&str> = [PROGRAM, "client"].into_iter().chain(across().iter().copied()).collect();
        let start = |node: &&str| Ok::<_, Failure>(self.cluster.on(node)?.spawn("drill-across-0", &command)?);
        let clients = nodes().iter().map(start).collect::<Result<Vec<_>, Failure>>()?;
        let done = lasts();
        drop(clients);
        done
    }

    /// Waits until no client fails.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        let end = Deadline::after(SETTLE_MAX);
        loop {
            let from = now();
            pause(QUIET);
            let tally = self.tally([from, now()])?;
            if tally.failed() == 0 && tally.attempts() > 0 {
                return Ok(());
            }
            if end.is_over() {
                return Err(format!("clients still fail: {tally}; {}", tally.worst(5).join(", ")).into());
            }
        }
    }

    /// The results of all machines' clients in a time span.
    pub(crate) fn tally(&self, span: [u64; 2]) -> Result<Tally, Failure> {
        let mut tally = Tally::default();
        for machine in nodes().iter().chain(&["out"]) {
            let logs = self.cluster.on(machine)?.logs();
            for file in fs::read_dir(&logs)?.filter_map(Result::ok) {
                let name = file.file_name().to_string_lossy().into_owned();
                let Some((kind, _)) = name.strip_prefix("drill-").and_then(|name| name.split_once('-'))
                else {
                    continue;
                };
                let client = Client { name: &format!("{kind} of {machine}"), machine };
                // A power cut may leave half a line that is no text.
                let lines = String::from_utf8_lossy(&fs::read(file.path())?).into_owned();
                tally.add(client, &lines, span, &self.absences.borrow());
            }
        }
        Ok(tally)
    }

    /// Marks a machine as absent during a closure and until it is back.
    pub(crate) fn without<T>(
        &self,
        machine: &str,
        away: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let [address, _] = machine.parse::<MachineName>()?.addresses();
        let from = now();
        let absent = |to| Absence { machine: machine.to_owned(), address: address.clone(), from, to };
        self.absences.borrow_mut().push(absent(u64::MAX));
        let done = away();
        self.absences.borrow_mut().pop();
        self.absences.borrow_mut().push(absent(now()));
        done
    }

    /// Cuts a machine's power and boots it; its client starts again.
    pub(crate) fn reboot(&self, machine: &str) -> Result<(), Failure> {
        self.cluster.stop_machine(machine)?;
        self.hosts.borrow_mut().retain(|(of, _)| of != machine);
        self.cluster.boot_machine(machine)?;
        self.launch(machine)
    }

    /// How long a new Service takes until a process of every node reaches it. A proxy that has lost the apiserver for
    /// good keeps serving, but does not follow.
    pub(crate) fn follows(&self) -> Result<Duration, Failure> {
        let number = self.followed.replace(self.followed.get() + 1);
        let address = format!("10.96.88.{number}");
        kubernetes::make_service(&self.cluster, &format!("follow-{number}"), &address)?;
        let (begun, until) = (Stopwatch::start(), format!("{address}:80"));
        let script =
            format!("for i in $(seq 600); do {PROGRAM} ask {until} && exit; sleep 0.1; done; exit 1");
        for node in nodes() {
            self.cluster.on(node)?.said(&["bash", "-c", &script], "", SETTLE_MAX)?;
        }
        Ok(begun.read())
    }
}

/// Copies the program into a machine.
pub(crate) fn equip(machine: &Machine) -> Result<(), Failure> {
    let program = fs::read(std::env::current_exe()?)?;
    machine.write(PROGRAM, program)?;
    machine.said(&["chmod", "755", PROGRAM], "", Duration::from_secs(30))?;
    Ok(())
}

/// Repeats a check until it succeeds.
pub(crate) fn eventually(
    what: &str,
    mut attempt: impl FnMut() -> Result<(), ClusterError>,
) -> Result<(), Failure> {
    let end = Deadline::after(SETTLE_MAX);
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) if end.is_over() => return Err(format!("never {what}: {error}").into()),
            Err(_) => pause(Duration::from_millis(500)),
        }
    }
}
