//! The part of a kubelet that a Service notices: pods that the controllers make get addresses and become ready, those
//! that are asked to end do, and the node's lease is renewed.
//!
//! Invariant: it writes what a kubelet writes, and only of the nodes that it stands for; a node that it stops standing
//! for is as lost as one without power. It works when it is asked to, in the test's own thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use holdfast_host::clock;
use serde_json::{Value, json};

use super::{Api, Kind, PeersError};

/// A pod that is asked to end takes so long: time for the controllers to write that it is terminating.
const ENDS_AFTER: Duration = Duration::from_millis(600);

/// As often as a real one does, by a fifth of what it may miss.
const RENEWED_EVERY: Duration = Duration::from_secs(1);

/// The annotation of pods that never become ready.
const BROKEN: &str = "/metadata/annotations/test~1broken";

/// The kubelets of some nodes.
#[derive(Debug, Default)]
pub struct Kubelet {
    nodes: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    given: u8,
    ending: BTreeMap<String, Instant>,
    renewed: Option<Instant>,
}

fn word<'a>(pod: &'a Value, pointer: &str) -> &'a str {
    pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl Kubelet {
    /// A kubelet for each of these nodes, in one.
    pub fn of(nodes: &[&str]) -> Self {
        Self { nodes: nodes.iter().map(|node| (*node).to_owned()).collect(), ..Self::default() }
    }

    /// Looks after the pods of a namespace too.
    pub fn serve(&mut self, namespace: &str) {
        self.namespaces.insert(namespace.to_owned());
    }

    /// A node loses its power.
    pub fn lose(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// Does what is to be done now.
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
        if self.renewed.is_some_and(|at| at.elapsed() < RENEWED_EVERY) {
            return Ok(());
        }
        self.renewed = Some(Instant::now());
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
            let since = self.ending.entry(word(pod, "/metadata/uid").to_owned()).or_insert_with(Instant::now);
            return if since.elapsed() < ENDS_AFTER { Ok(()) } else { gone(api, &name) };
        }
        if !word(pod, "/status/podIP").is_empty() {
            return Ok(());
        }
        self.given += 1;
        let ready = word(pod, BROKEN).is_empty();
        report(api, &name, &format!("10.1.0.{}", self.given), ready)
    }
}

/// Deletes a pod. It may have gone meanwhile, as a controller was faster.
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

/// As Kubernetes writes micro times.
fn now() -> String {
    clock::now().to_string().replace('Z', "000Z")
}
