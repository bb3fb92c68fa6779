//! Drills of nodes: their runtime, their cable, their power, their pods' network.
//!
//! Invariant: a machine is drained before it goes, so that failures are the proxies' and not from the 40 s in which
//! Kubernetes still lists a dead node's pods.

use std::process::Command;

use holdfast_conformance::Proxy;
use holdfast_fixtures::clock::pause;

use super::seconds;
use crate::Failure;
use crate::kubernetes::{drain, replace_backends, rolled_out, uncordon, wait_for_node};
use crate::stage::{Stage, nodes};

/// A separate link for each pod; the address ranges stay.
const POINT_TO_POINT: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam",
		"ranges": [[{"subnet": "RANGE"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
]}
"#;

pub(super) fn kubelet(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    restarted(stage, "kubelet")
}

pub(super) fn containerd(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    restarted(stage, "containerd")
}

fn restarted(stage: &Stage, service: &str) -> Result<(), Failure> {
    replace_backends(&stage.cluster)?;
    for node in nodes() {
        stage.cluster.on(node)?.restart(service)?;
        wait_for_node(&stage.cluster, node)?;
    }
    Ok(())
}

/// A node that dials remote backends directly uses the same source ports as for that node's NodePort.
pub(super) fn across(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    stage.across(|| {
        pause(seconds("ACROSS", 90));
        Ok(())
    })
}

/// Cuts the link at the far end.
pub(super) fn cut(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let node = "n2";
    drain(&stage.cluster, node)?;
    rolled_out(&stage.cluster)?;
    stage.without(node, || {
        link(stage, node, "down")?;
        // The other nodes go on, and their backends change; the cut-off one gets that when it is back.
        let changed = replace_backends(&stage.cluster);
        pause(seconds("CUT", 20));
        link(stage, node, "up")?;
        changed?;
        wait_for_node(&stage.cluster, node)
    })?;
    uncordon(&stage.cluster, node)
}

fn link(stage: &Stage, node: &str, to: &str) -> Result<(), Failure> {
    let logs = stage.cluster.logs_after_end();
    let name = logs.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut ip = Command::new("ip");
    let set = ip.args(["-netns", &format!("{name}-segment"), "link", "set", &format!("v-{node}"), to]);
    let status = set.status()?;
    if status.success() { Ok(()) } else { Err(format!("the cable of {node} cannot be set {to}").into()) }
}

/// Recreates pods on another kind of link.
pub(super) fn network(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    for (node, number) in nodes().iter().zip(1..) {
        drain(&stage.cluster, node)?;
        let machine = stage.cluster.on(node)?;
        let range = format!("10.244.{number}.0/24");
        machine.write("/etc/cni/net.d/10-pods.conflist", POINT_TO_POINT.replace("RANGE", &range))?;
        stage.cluster.kubectl(&[
            "-n",
            "drill",
            "delete",
            "pod",
            "-l",
            "app=client",
            "--field-selector",
            &format!("spec.nodeName={node}"),
        ])?;
        // The bridge has the node's range; the new links have a route each.
        machine.said(&["ip", "link", "del", "cni0"], "", crate::stage::SETTLE_MAX)?;
        uncordon(&stage.cluster, node)?;
        wait_for_node(&stage.cluster, node)?;
    }
    replace_backends(&stage.cluster)?;
    rolled_out(&stage.cluster)
}

pub(super) fn reboot(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    for node in nodes() {
        drain(&stage.cluster, node)?;
        stage.without(node, || {
            stage.reboot(node)?;
            wait_for_kubelet(stage, node)
        })?;
        uncordon(&stage.cluster, node)?;
    }
    Ok(())
}

/// That node's client pod is recreated only after kubelet has returned and synced it.
fn wait_for_kubelet(stage: &Stage, node: &str) -> Result<(), Failure> {
    let machine = stage.cluster.on(node)?;
    crate::stage::eventually(&format!("{node} reaches a Service"), || {
        machine.said(&[crate::stage::PROGRAM, "ask", "10.96.77.1:80"], "", crate::stage::SETTLE_MAX).map(drop)
    })?;
    wait_for_node(&stage.cluster, node)
}
