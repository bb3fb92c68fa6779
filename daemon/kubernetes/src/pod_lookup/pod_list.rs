//! The request for the Pods at an address, and the parser of its reply.
//!
//! Invariant: a Pod counts only if it runs and kubelet assigned it this address: not a host-network Pod, which has the
//! node's address, and not a mirror Pod, which gets a new uid when kubelet re-creates it. An incomplete reply counts
//! for nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::hold::PodsAt;
use serde::Deserialize;

/// The most Pods of a reply: one, or a few while one ends. Only a node's address has more.
const PODS_MAX: usize = 16;

/// Kubelet's annotation of a mirror Pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Lists running Pods at an address from the apiserver's cache; without version 0 it would read all Pods from its
/// store. The selector compares only a Pod's first address, so the second family of a dual-stack Pod is not found.
pub(super) fn pod_list_path(address: IpAddr) -> String {
    let fields = format!("status.podIP%3D{},status.phase%3DRunning", encode_address(address));
    format!("/api/v1/pods?fieldSelector={fields}&limit={PODS_MAX}&resourceVersion=0")
}

/// Encodes the colons for a query.
fn encode_address(address: IpAddr) -> String {
    address.to_string().replace(':', "%3A")
}

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Pod>>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Meta {
    uid: Arc<str>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    host_network: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: Option<String>,
    #[serde(default, rename = "podIP")]
    pod_ip: Option<IpAddr>,
}

impl Pod {
    fn has_address(&self, address: IpAddr) -> bool {
        let is_mirror = self.metadata.annotations.as_ref().is_some_and(|it| it.contains_key(MIRROR));
        let is_of_node = self.spec.host_network == Some(true);
        let is_running = self.status.phase.as_deref() == Some("Running");
        is_running && self.status.pod_ip == Some(address) && !is_of_node && !is_mirror
    }
}

/// The running Pods at the address; `None`: the reply is invalid, incomplete or empty.
pub(super) fn parse_pods(address: IpAddr, body: &[u8]) -> Option<PodsAt> {
    let list: PodList = serde_json::from_slice(body).ok()?;
    let pods = list.items.unwrap_or_default();
    let is_cut = list.metadata.next.is_some_and(|next| !next.is_empty()) || pods.len() > PODS_MAX;
    let there = pods.into_iter().filter(|pod| pod.has_address(address));
    let uids: Vec<_> = there.map(|pod| pod.metadata.uid).filter(|uid| !uid.is_empty()).collect();
    (!is_cut && !uids.is_empty()).then_some(PodsAt { address, uids })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ADDRESS: &str = "10.1.0.5";

    fn pod(uid: &str) -> Value {
        let status = json!({"phase": "Running", "podIP": ADDRESS});
        json!({"metadata": {"uid": uid, "name": "b"}, "spec": {}, "status": status})
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut pod = pod("b");
        let (table, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(table).unwrap()[key] = value;
        pod
    }

    #[track_caller]
    fn check(rule: &str, list: &Value, expected: Option<&[&str]>) {
        let found = parse_pods(ADDRESS.parse().unwrap(), list.to_string().as_bytes());
        let found = found.map(|it| it.uids.iter().map(ToString::to_string).collect::<Vec<_>>());
        let expected = expected.map(|uids| uids.iter().map(ToString::to_string).collect());
        assert_eq!(found, expected, "{rule}");
    }

    #[test]
    fn only_running_pods_with_their_own_address_count() {
        let list = |pods: Vec<Value>| json!({"items": pods});
        check("one", &list(vec![pod("b")]), Some(&["b"]));
        check("two", &list(vec![pod("a"), pod("b")]), Some(&["a", "b"]));
        check("none", &list(vec![]), None);
        check("null", &json!({"items": null}), None);
        check("in its node's network", &list(vec![with("/spec/hostNetwork", json!(true))]), None);
        check("has ended", &list(vec![with("/status/phase", json!("Succeeded"))]), None);
        check("another address", &list(vec![with("/status/podIP", json!("10.1.0.50"))]), None);
        check("no address", &list(vec![with("/status/podIP", Value::Null)]), None);
        let mirror = json!({MIRROR: "1"});
        check("a mirror of a static pod", &list(vec![with("/metadata/annotations", mirror)]), None);
        check("is being deleted", &list(vec![with("/metadata/deletionTimestamp", json!("x"))]), Some(&["b"]));
        let cut = json!({"metadata": {"continue": "x"}, "items": [pod("b")]});
        check("cut", &cut, None);
        check("more than were asked for", &list(vec![pod("b"); PODS_MAX + 1]), None);
        check("no list", &json!({"kind": "Status"}), None);
        check("garbage", &json!({"items": [{"metadata": {}}]}), None);
    }

    #[test]
    fn an_ipv6_address_is_percent_encoded() {
        let path = pod_list_path("fd00::1".parse().unwrap());
        assert!(path.contains("status.podIP%3Dfd00%3A%3A1,status.phase%3DRunning&"), "{path}");
    }
}
