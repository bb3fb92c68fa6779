//! A cluster from the start of its first machine to the end of its last.
//!
//! Invariant: a started cluster is ready: its nodes are ready and its DNS answers; without a pod network, its
//! apiserver is ready. Dropping it leaves only logs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cgroups::Cgroups;
use crate::credentials::Authority;
use crate::error::{at, write};
use crate::leftovers;
use crate::machine::Machine;
use crate::program::wait;
use crate::topology::{Cni, Family, Init, MachineName, Proxy, Topology};
use crate::wires::Wires;
use crate::{Built, ClusterError, control_plane, node, units, vpc};

/// An apiserver is ready in five seconds; on two processors with five clusters it takes longer.
const READY_LIMIT: Duration = Duration::from_secs(180);

/// kube-router's routers know each other after six seconds; on a busy machine their pods start late.
const ROUTES_LIMIT: Duration = Duration::from_secs(180);

const KUBECTL_LIMIT: Duration = Duration::from_secs(300);

/// How many clusters' logs are kept; each has a few megabytes.
const LOGS_MAX: usize = 20;

/// holdfast's permissions, as operators apply them.
const RBAC: &str = include_str!("../../../../contrib/kubernetes/rbac.yaml");

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    topology: Topology,
    built: Built,
    cgroups: Cgroups,
    machines: Vec<Machine>,
}

impl Cluster {
    /// Starts all machines and waits until nodes and DNS are ready, unless a test brings the pod network.
    pub fn start(topology: &Topology) -> Result<Self, ClusterError> {
        topology.check()?;
        let (built, cgroups) = (Built::find()?, Cgroups::find()?);
        leftovers::sweep(&cgroups, &built.folder.join("run"))?;
        let name = leftovers::new_name();
        let topology = built.with_layers(topology)?;
        let mut cluster = Self { name, topology, built, cgroups, machines: Vec::new() };
        // From here on, a failure removes what exists.
        cluster.equip()?;
        cluster.machines.iter().try_for_each(Machine::boot)?;
        cluster.settle()?;
        Ok(cluster)
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The parts of the cluster.
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// A machine by its name: `cp`, `n1` and so on, `out`.
    pub fn on(&self, machine: &str) -> Result<&Machine, ClusterError> {
        let name: MachineName = machine.parse()?;
        let found = self.machines.iter().find(|machine| machine.name() == name);
        found.ok_or_else(|| ClusterError::NoMachine(machine.to_owned()))
    }

    /// Runs kubectl as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        self.kubectl_with(arguments, "")
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) -> Result<String, ClusterError> {
        self.kubectl_with(&["apply", "-f", "-"], manifest)
    }

    /// Ends a service on every machine that has it, and waits until it has restarted: `etcd`, `apiserver`,
    /// `controller-manager`, `scheduler`, `load-balancer`, `containerd`, `kubelet`, `proxy`.
    pub fn restart(&self, service: &str) -> Result<(), ClusterError> {
        let with_it = self.machines.iter().filter(|machine| machine.has_service(service));
        with_it.into_iter().try_for_each(|machine| machine.restart(service))
    }

    /// Cuts a machine's power.
    pub fn stop_machine(&self, machine: &str) -> Result<(), ClusterError> {
        self.on(machine)?.halt()
    }

    /// Boots a stopped machine without waiting.
    pub fn boot_machine(&self, machine: &str) -> Result<(), ClusterError> {
        self.on(machine)?.boot()
    }

    /// Waits until every node is ready.
    pub fn wait_for_nodes(&self) -> Result<(), ClusterError> {
        self.kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=180s"]).map(drop)
    }

    /// Waits for the nodes and for cluster DNS.
    pub fn wait_until_ready(&self) -> Result<(), ClusterError> {
        self.wait_for_nodes()?;
        self.kubectl(&["-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s"])
            .map(drop)
    }

    /// The number of packets that a VPC has dropped, because a node sent them by a card that lacks their source.
    pub fn foreign_sources(&self) -> Result<u64, ClusterError> {
        Wires::find(&self.name, &self.topology).foreign_sources()
    }

    /// The folder of all machines' logs after the end, by machine and service.
    pub fn logs_after_end(&self) -> PathBuf {
        logs_folder(&self.folder())
    }

    fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, ClusterError> {
        let command: Vec<&str> = ["kubectl"].into_iter().chain(arguments.iter().copied()).collect();
        self.on("cp")?.said(&command, input, KUBECTL_LIMIT)
    }

    fn folder(&self) -> PathBuf {
        self.built.folder.join("run").join(&self.name)
    }

    /// Creates the network and writes the disks.
    fn equip(&mut self) -> Result<(), ClusterError> {
        let authority = Authority::create()?;
        let wires = Wires::lay(&self.name, &self.topology)?;
        for name in self.topology.machine_names() {
            let machine =
                Machine::new((name, &self.topology), &self.name, &self.cgroups, &wires, &self.built);
            self.equip_machine(&machine.disk(), name, &authority)?;
            self.machines.push(machine);
        }
        Ok(())
    }

    fn equip_machine(
        &self,
        disk: &Path,
        name: MachineName,
        authority: &Authority,
    ) -> Result<(), ClusterError> {
        write(&disk.join("etc/machine/init.sh"), include_str!("../machine/init.sh"))?;
        let [own, _] = name.addresses();
        write(&disk.join("etc/hosts"), format!("127.0.0.1 localhost\n::1 localhost\n{own} {name}\n"))?;
        write(&disk.join("etc/hostname"), format!("{name}\n"))?;
        write(&disk.join("etc/resolv.conf"), "")?;
        match name {
            MachineName::ControlPlane => control_plane::equip(disk, &self.topology, authority)?,
            MachineName::Node(_) => node::equip(disk, name, &self.topology, authority, &self.built)?,
            MachineName::Outside if self.topology.cni == Cni::Vpc => vpc::equip(disk, &self.topology)?,
            MachineName::Outside => {}
        }
        if self.topology.init_of(name) == Init::Systemd {
            units::equip(disk, name)?;
        }
        let files = self.topology.files.iter().filter(|(machine, _, _)| *machine == name);
        files
            .into_iter()
            .try_for_each(|(_, path, text)| write(&disk.join(path.trim_start_matches('/')), text))
    }

    /// Applies what every cluster has, and waits for it.
    fn settle(&self) -> Result<(), ClusterError> {
        self.wait_for_apiserver()?;
        let rights = if matches!(self.topology.proxy, Proxy::Holdfast { .. }) { RBAC } else { "" };
        let (network, dns) = (node::network_objects(&self.topology), node::cluster_dns(&self.topology));
        self.make_kinds()?;
        self.apply(&[&node::objects(&self.topology), rights].join("\n---\n"))?;
        if self.topology.cni == Cni::KubeRouter {
            self.wait_for_addresses()?;
        }
        self.apply(&[network, dns].join("\n---\n"))?;
        if self.topology.cni == Cni::Nobody {
            return Ok(());
        }
        self.wait_until_ready()?;
        if self.topology.cni == Cni::KubeRouter { self.wait_for_routes() } else { Ok(()) }
    }

    /// Makes the kinds of objects that the pod network has.
    fn make_kinds(&self) -> Result<(), ClusterError> {
        if self.topology.cni != Cni::Calico {
            return Ok(());
        }
        self.kubectl(&["apply", "--server-side", "-f", "/opt/calico/crds.yaml"])?;
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).map(drop)
    }

    /// Waits until each kubelet has written its node's addresses. kube-router reads them when a Node object comes, and
    /// looks again after five minutes only. Elsewhere kubelet makes the object, with the addresses.
    fn wait_for_addresses(&self) -> Result<(), ClusterError> {
        let written = "--for=jsonpath={.status.addresses}";
        self.kubectl(&["wait", written, "node", "--all", "--timeout=180s"]).map(drop)
    }

    /// Waits until kube-router leads from each node to the pods of the others.
    fn wait_for_routes(&self) -> Result<(), ClusterError> {
        let nodes = || self.topology.node_names();
        let pairs: Vec<_> = nodes().flat_map(|from| nodes().map(move |to| (from, to))).collect();
        if wait(ROUTES_LIMIT, || pairs.iter().all(|(from, to)| from == to || self.leads(*from, *to))) {
            return Ok(());
        }
        let logs = ["--namespace=kube-system", "logs", "--selector=k8s-app=kube-router", "--prefix"];
        let last = format!("; last: {}", self.kubectl(&logs)?);
        let (awaited, logs) = ("routes of kube-router".to_owned(), self.logs_after_end());
        Err(ClusterError::Late { awaited, limit: ROUTES_LIMIT, logs, last })
    }

    fn leads(&self, from: MachineName, to: MachineName) -> bool {
        let families = if self.topology.family == Family::Dual { 2 } else { 1 };
        ["-4", "-6"].into_iter().zip(to.pods()).take(families).all(|(family, range)| {
            // Without its family, `ip` finds no route of IPv6.
            let asked = ["ip", family, "route", "show", &range];
            let route = self.on(from.as_str()).and_then(|node| node.run(&asked));
            route.is_ok_and(|route| !route.stdout.is_empty())
        })
    }

    /// Waits also for the first roles and namespaces.
    fn wait_for_apiserver(&self) -> Result<(), ClusterError> {
        let mut last = String::new();
        let is_ready = wait(READY_LIMIT, || {
            let asked = self.kubectl(&["get", "--raw", "/readyz"]);
            let asked = asked.and_then(|_| self.kubectl(&["get", "namespace", "kube-system"]));
            asked.map_err(|error| last = format!("; last: {error}")).is_ok()
        });
        if is_ready {
            return Ok(());
        }
        let logs = self.logs_after_end();
        Err(ClusterError::Late { awaited: "apiserver".to_owned(), limit: READY_LIMIT, logs, last })
    }
}

/// `drop` cannot report a failure; the next start tries again.
impl Drop for Cluster {
    fn drop(&mut self) {
        for machine in &self.machines {
            let _ = machine.halt();
        }
        let _ = self.cgroups.remove(&self.name);
        leftovers::remove_networks(&self.name);
        keep_logs(&self.folder());
    }
}

/// Moves the logs of a cluster's machines to their final folder, and removes the rest.
pub(crate) fn keep_logs(folder: &Path) {
    let kept = logs_folder(folder);
    let _ = fs::create_dir_all(&kept);
    for machine in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let _ = fs::rename(machine.path().join("log"), kept.join(machine.file_name()));
    }
    let _ = fs::remove_dir_all(folder);
    let _ = forget_old_logs(&kept);
}

fn forget_old_logs(kept: &Path) -> Result<(), ClusterError> {
    let all = kept.parent().unwrap_or(kept);
    let entries = fs::read_dir(all).map_err(at("read", all))?.filter_map(Result::ok);
    let mut ages: Vec<_> =
        entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    ages.sort();
    let surplus = ages.len().saturating_sub(LOGS_MAX);
    ages.iter().take(surplus).try_for_each(|(_, path)| fs::remove_dir_all(path).map_err(at("remove", path)))
}

/// `run/NAME` becomes `logs/NAME`.
fn logs_folder(folder: &Path) -> PathBuf {
    let base = folder.parent().and_then(Path::parent).unwrap_or(folder);
    base.join("logs").join(folder.file_name().unwrap_or_default())
}
