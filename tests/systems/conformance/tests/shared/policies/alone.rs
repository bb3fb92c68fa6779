//! kube-router for policies alone, in a cluster with another pod network, as k3s has it.
//!
//! Invariant: once it is gone, no rule of it is left on a node.

use holdfast_conformance::Cluster;

use crate::typing::typed;

const MANIFEST: &str = include_str!("../../../manifests/kube-router.yaml");

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

pub(crate) fn start(cluster: &Cluster) {
    cluster.apply(&manifest()).unwrap();
    let rollout = ["-n", "kube-system", "rollout", "status", "daemonset/kube-router", "--timeout=180s"];
    cluster.kubectl(&rollout).unwrap();
}

/// Ends it, and takes its rules away, which `--cleanup-config` of 2.1.0 leaves.
pub(crate) fn end(cluster: &Cluster) {
    cluster.kubectl(&["-n", "kube-system", "delete", "daemonset/kube-router"]).unwrap();
    let pods = ["-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=kube-router"];
    let gone = [pods.as_slice(), &["--timeout=180s"]].concat();
    cluster.kubectl(&gone).unwrap();
    let without =
        "iptables-save | grep -vE 'KUBE-(ROUTER|POD-FW|NWPLCY)' | iptables-restore && ipset destroy";
    for node in NODES {
        typed(cluster, node, without);
    }
}

/// The manifest without what makes it the pod network.
fn manifest() -> String {
    let (before, rest) = MANIFEST.split_once("      initContainers:\n").unwrap();
    let (_, after) = rest.split_once("      containers:\n").unwrap();
    let (_, image) = MANIFEST.split_once("image: &image ").unwrap();
    let after = after.replacen("*image", image.lines().next().unwrap(), 1);
    format!("{before}      containers:\n{after}")
        .replace("--run-router=true", "--run-router=false")
        .replace("=DUAL\n", "=false\n")
        .replace("=SERVICES\n", "=10.96.0.0/16\n")
}
