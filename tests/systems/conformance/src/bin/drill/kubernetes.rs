//! Requests of drills to Kubernetes.
//!
//! Invariant: each request is awaited, with a limit.

use holdfast_conformance::Cluster;

use crate::Failure;
use crate::stage::eventually;

/// Waits until all deployments and clients are rolled out.
pub(crate) fn rolled_out(cluster: &Cluster) -> Result<(), Failure> {
    for (namespace, what) in
        [("drill", "deployment/web"), ("drill", "daemonset/client"), ("kube-system", "deployment/coredns")]
    {
        let asked = ["-n", namespace, "rollout", "status", what, "--timeout=120s"];
        eventually(&format!("{what} rolled out"), || cluster.kubectl(&asked).map(drop))?;
    }
    Ok(())
}

/// Replaces the backends one after another; each old one serves for ten more seconds.
pub(crate) fn replace_backends(cluster: &Cluster) -> Result<(), Failure> {
    cluster.kubectl(&["-n", "drill", "rollout", "restart", "deployment/web"])?;
    Ok(())
}

/// Creates a Service with the same backends.
pub(crate) fn make_service(cluster: &Cluster, name: &str, address: &str) -> Result<(), Failure> {
    let manifest = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: drill}}, spec: {{clusterIP: {address}, \
         selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}}}"
    );
    eventually(&format!("a Service {name}"), || cluster.apply(&manifest).map(drop))
}

/// Moves everything except the clients off a node, as before a reboot.
pub(crate) fn drain(cluster: &Cluster, node: &str) -> Result<(), Failure> {
    cluster.kubectl(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s"])?;
    Ok(())
}

/// Makes a node schedulable again.
pub(crate) fn uncordon(cluster: &Cluster, node: &str) -> Result<(), Failure> {
    cluster.kubectl(&["uncordon", node])?;
    Ok(())
}

/// Waits for a booted node's kubelet: the node is still marked ready from before.
pub(crate) fn wait_for_node(cluster: &Cluster, node: &str) -> Result<(), Failure> {
    let ready = ["wait", "--for=condition=Ready", &format!("node/{node}"), "--timeout=120s"];
    eventually(&format!("node {node} ready"), || cluster.kubectl(&ready).map(drop))?;
    rolled_out(cluster)
}
