//! Nodes and pods as kubelet would report them: tests set a pod's state, and the real controllers react.
//!
//! Invariant: it writes only what kubelet and the scheduler write, and never slices. No server listens at the
//! addresses; a test that dials starts its own.

use serde_json::{Value, json};

use super::{Api, Kind, PeersError};

/// Longer than any test lets a pod terminate.
const GRACE_SECONDS: u32 = 600;

/// A pod with one label `app`.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// Namespace and name: `default/web-1`.
    pub name: &'a str,
    /// The label `app`, for the selector of a service.
    pub app: &'a str,
    /// Its node, which must exist, or no slice lists the pod.
    pub node: &'a str,
    pub address: &'a str,
}

impl Pod<'_> {
    /// Creates the pod, bound to its node. It gets its address with the first report.
    pub fn start(&self, api: &Api<'_>) -> Result<(), PeersError> {
        let (namespace, name) = self.name.split_once('/').unwrap_or(("default", self.name));
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": self.app}},
            "spec": {"nodeName": self.node, "containers": [{"name": "it", "image": "none"}]},
        });
        api.apply_object(&object).map(drop)
    }

    /// Reports the pod as running, ready or not.
    pub fn report(&self, api: &Api<'_>, ready: bool) -> Result<(), PeersError> {
        let status = json!({
            "phase": "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        });
        api.merge_status(Kind::Pod, self.name, &json!({"status": status})).map(drop)
    }

    /// Deletes the pod gracefully. It stays terminating, and as ready as before, until `gone`.
    pub fn terminate(&self, api: &Api<'_>) -> Result<(), PeersError> {
        api.delete_within(Kind::Pod, self.name, GRACE_SECONDS)
    }

    /// Deletes the pod at once: it has ended, or was removed by force.
    pub fn gone(&self, api: &Api<'_>) -> Result<(), PeersError> {
        api.delete(Kind::Pod, self.name)
    }
}

pub(super) fn add_node(api: &Api<'_>, name: &str, zone: &str) -> Result<(), PeersError> {
    let labels = json!({"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name});
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    api.apply_object(&object)?;
    let ready: Value = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    api.merge_status(Kind::Node, name, &ready).map(drop)
}
