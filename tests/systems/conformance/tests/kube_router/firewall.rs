//! kube-router for policies alone, in a cluster with another pod network, as k3s has it: it comes while connections are
//! open, and goes again.
//!
//! Invariant: once it is gone, no rule of it is left on a node.

use std::time::Instant;

use super::policies::stage::Stage;
use super::typing::{eventually, typed};

const MANIFEST: &str = include_str!("../../manifests/kube-router.yaml");

const NODES: [&str; 2] = ["n1", "n2"];

pub(crate) fn start(stage: &Stage) {
    stage.cluster.apply(&manifest()).unwrap();
    let rollout = ["-n", "kube-system", "rollout", "status", "daemonset/kube-router", "--timeout=180s"];
    stage.cluster.kubectl(&rollout).unwrap();
}

/// Ends it, and takes its rules away, which `--cleanup-config` of 2.1.0 leaves.
pub(crate) fn end(stage: &Stage) {
    stage.cluster.kubectl(&["-n", "kube-system", "delete", "daemonset/kube-router"]).unwrap();
    let pods = ["-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=kube-router"];
    let gone = [pods.as_slice(), &["--timeout=180s"]].concat();
    stage.cluster.kubectl(&gone).unwrap();
    let without =
        "iptables-save | grep -vE 'KUBE-(ROUTER|POD-FW|NWPLCY)' | iptables-restore && ipset destroy";
    for node in NODES {
        typed(&stage.cluster, node, without);
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

/// Waits until holdfast's packets bypass the stack of each node, to the other node and to pods.
pub(crate) fn wait_for_shortcuts(stage: &Stage) {
    let words = ["packets to other nodes bypass the stack", "packets to its pods bypass the stack"];
    for node in NODES {
        eventually("packets bypass the stack", || {
            let datapath = typed(&stage.cluster, node, "holdfast datapath");
            words.iter().all(|words| datapath.contains(words))
        });
    }
}

/// Checks that connections from outside bypass the stack: most, because one that needs a neighbour first does not.
pub(crate) fn assert_shortcuts(stage: &Stage) {
    let flows = typed(&stage.cluster, "n1", "holdfast -o wide flows");
    let open: Vec<Vec<&str>> = flows
        .lines()
        .map(|row| row.split_whitespace().collect())
        .filter(|row: &Vec<&str>| row.get(3) == Some(&"open") && row[0].starts_with("172.30.0.100:"))
        .collect();
    let short = open.iter().filter(|row| row.contains(&"yes")).count();
    assert!(short >= 4 && short * 2 > open.len(), "{flows}");
}

/// Waits until holdfast names the rules for which no packet bypasses the stack, which takes it up to a second.
pub(crate) fn wait_for_the_stack(stage: &Stage) {
    let begun = Instant::now();
    for node in NODES {
        eventually("packets go through the stack", || {
            let datapath = typed(&stage.cluster, node, "holdfast datapath");
            !datapath.contains("bypass the stack")
                && datapath.contains("packets go through the stack: table ip")
        });
    }
    println!("no packet bypasses the rules after {} ms", begun.elapsed().as_millis());
}
