//! The part of a kubelet that affects Services: it gives pods addresses and makes them ready, ends terminating pods,
//! and renews the node's lease.
//!
//! Invariant: it writes only what a kubelet writes, and only for its nodes; a node that it drops is as lost as one
//! without power. It works only on request, in the test's own thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_fixtures::clock::Deadline;
use holdfast_host::clock;
use serde_json::{Value, json};

use super::{Api, Kind, PeersError};

/// How long a terminating pod takes to end: long enough for controllers to write that it terminates.
const ENDS_AFTER: Duration = Duration::from_millis(600);

/// The interval of lease renewals, a fifth of the lease duration as in a real kubelet.
const RENEWED_EVERY: Duration = Duration::from_secs(1);

/// The annotation of pods that never become ready.
const BROKEN: &str = "/metadata/annotations/test~1broken";

/// The kubelet of several nodes.
#[derive(Debug, Default)]
pub struct Kubelet {
    nodes: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    given: u8,
    ending: BTreeMap<String, Deadline>,
    renew_after: Option<Deadline>,
}

fn word<'a>(pod: &'a Value, pointer: &str) -> &'a str {
    pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl Kubelet {
    /// A kubelet for these nodes.
    pub fn for_nodes(nodes: &[&str]) -> Self {
        Self { nodes: nodes.iter().map(|node| (*node).to_owned()).collect(), ..Self::default() }
    }

    /// Also runs the pods of this namespace.
    pub fn serve(&mut self, namespace: &str) {
        self.namespaces.insert(namespace.to_owned());
    }

    /// Stops running a node, as after a power loss.
    pub fn lose(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// Does all pending work.
    pub fn work(&mut self, api: &Api<'_>) -> Result<(), PeersError> {
        self.renew(api)?;
        for namespace in self.namespaces.clone() {
            for pod in api.pods(&namespace)? {
                if self.nodes.contains(word(&pod, "/spec/nodeName")) {
                    self.tend(api, &namespace, &pod)?;
                }
            }
        }
        Ok(())
    }

    fn renew(&mut self, api: &Api<'_>) -> Result<(), PeersError> {
        if self.renew_after.is_some_and(|time| !time.is_over()) {
            return Ok(());
        }
        self.renew_after = Some(Deadline::after(RENEWED_EVERY));
        for node in &self.nodes {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": "kube-node-lease", "name": node},
                "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now()},
            });
            api.apply_object(&lease)?;
        }
        Ok(())
    }

    fn tend(&mut self, api: &Api<'_>, namespace: &str, pod: &Value) -> Result<(), PeersError> {
        let name = format!("{namespace}/{}", word(pod, "/metadata/name"));
        if !word(pod, "/metadata/deletionTimestamp").is_empty() {
            let uid = word(pod, "/metadata/uid").to_owned();
            let end = self.ending.entry(uid).or_insert_with(|| Deadline::after(ENDS_AFTER));
            return if end.is_over() { gone(api, &name) } else { Ok(()) };
        }
        if !word(pod, "/status/podIP").is_empty() {
            return Ok(());
        }
        self.given += 1;
        let ready = word(pod, BROKEN).is_empty();
        report(api, &name, &format!("10.1.0.{}", self.given), ready)
    }
}

/// Deletes a pod that a controller may have deleted already.
fn gone(api: &Api<'_>, name: &str) -> Result<(), PeersError> {
    match api.delete(Kind::Pod, name) {
        Err(PeersError::Refused { status: 404, .. }) => Ok(()),
        other => other,
    }
}

fn report(api: &Api<'_>, name: &str, address: &str, ready: bool) -> Result<(), PeersError> {
    let ready = if ready { "True" } else { "False" };
    let status = json!({
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": ready}],
    });
    match api.merge_status(Kind::Pod, name, &json!({"status": status})) {
        Err(PeersError::Refused { status: 404, .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// The current time as a Kubernetes MicroTime.
fn now() -> String {
    clock::now().to_string().replace('Z', "000Z")
}
