//! Two nodes with Cilium's network and Services, and what the page's reader has: holdfast as installed by a package,
//! and dialled pods.
//!
//! Invariant: the agent's programs are attached to the cgroup of its own node, and it writes no setting that all nodes
//! share.

use std::path::PathBuf;
use std::{env, fs};

use holdfast_conformance::{Cluster, Cni, Family, Init, Proxy, Topology};

use super::clients::{Client, HELD, INSIDE, NEW, PROGRAM};
use super::typing::typed;

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

const CILIUM: &str = include_str!("cilium.yaml");
const SERVICES: &str = include_str!("objects.yaml");
const PODS: &str = include_str!("pods.yaml");
const RIGHTS: &str = include_str!("../../../../../contrib/kubernetes/rbac.yaml");

/// The files of a package besides the program.
const PACKAGED: [(&str, &str); 3] = [
    (
        "/usr/lib/systemd/system/holdfast.service",
        include_str!("../../../../../contrib/systemd/holdfast.service"),
    ),
    ("/usr/lib/sysusers.d/holdfast.conf", include_str!("../../../../../contrib/systemd/holdfast.sysusers")),
    ("/usr/lib/tmpfiles.d/holdfast.conf", include_str!("../../../../../contrib/systemd/holdfast.tmpfiles")),
];

pub(crate) const CONFIG: &str = "/etc/holdfast/holdfast.toml";

/// The keys that install.md fills in.
pub(crate) const APISERVER: &str = "[apiserver]\nendpoints = [\"https://172.30.0.10:6443\"]\nkubeconfig = \"/etc/kubernetes/holdfast.conf\"\n";

/// Settings of the whole kernel that an agent changes if it can.
const SHARED: [&str; 2] = ["/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/kernel/timer_migration"];

/// The settings of Cilium in which users differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// `bpf.masquerade`: whether its programs masquerade, or iptables.
    pub(crate) masquerades_by_bpf: bool,
    /// Whether its agent listens for gops.
    pub(crate) gops: bool,
}

pub(crate) fn shared_settings() -> [String; 2] {
    SHARED.map(|path| fs::read_to_string(path).unwrap())
}

/// Starts the cluster with Cilium alone.
pub(crate) fn start(setup: Setup) -> Cluster {
    let cluster = Cluster::start(&Topology {
        nodes: 2,
        cni: Cni::Nobody,
        family: Family::Ipv4,
        proxy: Proxy::Nobody,
        init: Init::Systemd,
        balancer: false,
        layers: vec![from_environment("HOLDFAST_CILIUM")],
        ..Topology::default()
    });
    let cluster = cluster.unwrap();
    install_cilium(&cluster, setup);
    NODES.iter().for_each(|node| install_holdfast(&cluster, node));
    cluster.apply(RIGHTS).unwrap();
    fill(&cluster);
    cluster
}

fn from_environment(name: &str) -> PathBuf {
    env::var_os(name)
        .map_or_else(|| panic!("{name} is not set: make part PART=cilium sets it"), PathBuf::from)
}

fn install_cilium(cluster: &Cluster, setup: Setup) {
    // `apply` would store each kind in an annotation, for which some are too large.
    typed(cluster, "cp", "kubectl create -f /opt/cilium/crds.yaml");
    let cgroup = typed(cluster, "n1", "ls -d /sys/fs/cgroup/unified 2>/dev/null || echo /sys/fs/cgroup");
    let filled = CILIUM
        .replace("MASQUERADE\"", &format!("{}\"", setup.masquerades_by_bpf))
        .replace("GOPS\"", &format!("{}\"", setup.gops))
        .replace("path: CGROUP", &format!("path: {}", cgroup.trim()));
    cluster.apply(&filled).unwrap();
    cluster.wait_until_ready().unwrap();
    cluster
        .kubectl(&["-n", "kube-system", "rollout", "status", "daemonset/cilium", "--timeout=180s"])
        .unwrap();
}

/// Installs as the package does: enabled, not started.
fn install_holdfast(cluster: &Cluster, node: &str) {
    for (path, text) in PACKAGED {
        cluster.on(node).unwrap().write(path, text).unwrap();
    }
    configure(cluster, node, "");
    typed(cluster, node, "install -m 755 /opt/holdfast/holdfast /usr/bin/holdfast");
    typed(
        cluster,
        node,
        "systemd-sysusers holdfast.conf && systemctl daemon-reload && systemctl enable holdfast",
    );
}

/// Writes holdfast's configuration with the apiserver's address and `more`.
pub(crate) fn configure(cluster: &Cluster, node: &str, more: &str) {
    cluster.on(node).unwrap().write(CONFIG, format!("{APISERVER}\n{more}")).unwrap();
}

fn fill(cluster: &Cluster) {
    for machine in NODES.into_iter().chain(["out"]) {
        cluster.on(machine).unwrap().write(PROGRAM, fs::read(env!("CARGO_BIN_EXE_drill")).unwrap()).unwrap();
        typed(cluster, machine, &format!("chmod 755 {PROGRAM}"));
    }
    let pods = PODS.replace("TARGETS", &INSIDE.join(" "));
    let objects: Vec<String> =
        [SERVICES.to_owned()].into_iter().chain(NODES.map(|node| pods.replace("NODE", node))).collect();
    cluster.apply(&objects.join("\n---\n")).unwrap();
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]).unwrap();
}

/// The pod of a node's agent.
#[track_caller]
pub(crate) fn agent(cluster: &Cluster, node: &str) -> String {
    let ask = format!(
        "kubectl -n kube-system get pods -l k8s-app=cilium --field-selector spec.nodeName={node} \
         -o 'jsonpath={{.items[0].metadata.name}}'"
    );
    typed(cluster, "cp", &ask)
}

/// Clients that never leave: a pod and a process of each node.
pub(crate) fn inside(cluster: &Cluster) -> Vec<Client> {
    let targets = INSIDE.map(str::to_owned);
    let of = |node: &str| {
        let process = Client::start(cluster, node, &format!("process-of-{node}"), &targets);
        [Client::in_pod(cluster, node), process]
    };
    NODES.into_iter().flat_map(of).collect()
}

/// An outside client of a node's NodePorts.
pub(crate) fn outside(cluster: &Cluster, name: &str, node: &str) -> Client {
    let [address, _] = node.parse::<holdfast_conformance::MachineName>().unwrap().addresses();
    let targets: Vec<String> =
        NEW.iter().chain(&HELD).map(|target| target.replace("NODE", &address)).collect();
    Client::start(cluster, "out", &format!("{name}-at-{node}"), &targets)
}
