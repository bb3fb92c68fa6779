//! A cluster with the parts of k3s: Flannel with VXLAN, kube-router's network policies, servicelb, and on each node an
//! agent's balancer for the apiserver. `k3s` itself, which has them all in one program, does not run here.
//!
//! Invariant: holdfast's configuration is the one of the runbook.

use holdfast_conformance::{Cluster, Cni, Family, MachineName, Proxy, Topology, layer};

use super::guide::blocks;
use super::servicelb;
use super::typing::{eventually, typed};

/// The addresses in the runbook, and of the apiserver here.
const RUNBOOK_SERVER: &str = "10.0.0.10";
pub(crate) const SERVER: &str = "172.30.0.10";

/// A server that is gone: the configuration of `n1` names it, and only its agent has heard of the other one.
const GONE: &str = "172.30.0.200";

/// The balancer of an agent of k3s, `--lb-server-port`.
pub(crate) const BALANCER: &str = "127.0.0.1:6444";

/// systemd's forwarder of TCP stands in for that balancer; nothing else on a node's disk forwards.
const FORWARDER: &str = "exec systemd-socket-activate --listen=BALANCER \
     /usr/lib/systemd/systemd-socket-proxyd SERVER:6443\n";

const CONFIG: &str = "/etc/holdfast/config.toml";

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

/// The topology of such a cluster. holdfast gets the runbook's configuration in place of its own.
pub(crate) fn topology(proxy: Proxy, family: Family) -> Topology {
    let mut files = Vec::new();
    for (node, server) in [(MachineName::Node(1), GONE), (MachineName::Node(2), SERVER)] {
        let mut file = |path: &str, text: String| files.push((node, path.to_owned(), text));
        let (path, rules) = servicelb::RULES;
        file(path, rules.to_owned());
        file("/etc/machine/services/agent-balancer", forwarder());
        file(&kubeconfig_path(), kubeconfig("kube-proxy"));
        file("/etc/kubernetes/kubelet.conf", kubeconfig("kubelet"));
        if matches!(proxy, Proxy::Holdfast { .. }) {
            file(CONFIG, runbook_config(server));
        }
    }
    let layers = vec![layer("kube-router").unwrap()];
    Topology { nodes: 2, cni: Cni::Flannel, family, proxy, files, layers, ..Topology::default() }
}

/// What `k3s` writes for kubelet and kube-proxy on an agent: both use its balancer.
const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: Default\n\
     clusters: [{name: local, cluster: {server: 'https://BALANCER', \
     certificate-authority: /etc/kubernetes/ca.pem}}]\n\
     users: [{name: user, user: {client-certificate: /etc/kubernetes/USER.pem, \
     client-key: /etc/kubernetes/USER.key}}]\n\
     contexts: [{name: Default, context: {cluster: local, namespace: default, user: user}}]\n";

fn kubeconfig(user: &str) -> String {
    KUBECONFIG.replace("BALANCER", BALANCER).replace("USER", user)
}

fn forwarder() -> String {
    FORWARDER.replace("BALANCER", BALANCER).replace("SERVER", SERVER)
}

/// The file, the commands and the key of k3s that the runbook has.
fn runbook() -> [String; 3] {
    blocks("runbooks.md", "k3s")
}

fn runbook_config(server: &str) -> String {
    let [config, _, _] = runbook();
    assert!(config.contains(RUNBOOK_SERVER) && config.contains(BALANCER), "{config}");
    config.replace(RUNBOOK_SERVER, server)
}

fn kubeconfig_path() -> String {
    let [config, _, _] = runbook();
    let line = config.lines().find_map(|line| line.strip_prefix("kubeconfig = ")).unwrap();
    line.trim_matches('"').to_owned()
}

/// Runs the runbook's command that gives kube-proxy's user the rights; the roles are there already.
pub(crate) fn grant_rights(cluster: &Cluster) {
    let [_, commands, _] = runbook();
    let [roles, binding]: [&str; 2] = commands.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(roles, "kubectl apply -f contrib/kubernetes/rbac.yaml");
    typed(cluster, "cp", binding);
}

/// Starts holdfast anew on all nodes, with `vip` in the section of the apiserver and further sections.
pub(crate) fn restart_with(cluster: &Cluster, vip: &str, sections: &str) {
    for node in NODES {
        let old = typed(cluster, node, &format!("cat {CONFIG}"));
        let new = old.replacen("[apiserver]\n", &format!("[apiserver]\nvip = \"{vip}\"\n"), 1) + sections;
        cluster.on(node).unwrap().write(CONFIG, new).unwrap();
    }
    cluster.restart("proxy").unwrap();
    eventually("holdfast is ready again", || NODES.iter().all(|node| is_ready(cluster, node)));
}

fn is_ready(cluster: &Cluster, node: &str) -> bool {
    let status = cluster.on(node).unwrap().run(&["holdfast", "status"]).unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    status.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == ["ready", "yes"])
}

/// Checks that Flannel's rule keeps all packets in the stack, before kube-router has come.
#[track_caller]
pub(crate) fn assert_served_by_the_stack(cluster: &Cluster) {
    for node in NODES {
        let datapath = typed(cluster, node, "holdfast datapath");
        assert!(datapath.contains("chain FLANNEL-POSTRTG "), "{datapath}");
        assert!(!datapath.contains("bypass the stack"), "{datapath}");
    }
}
