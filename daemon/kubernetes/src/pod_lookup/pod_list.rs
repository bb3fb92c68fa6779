//! What is asked of an apiserver, and what its answer says of an address.
//!
//! Invariant: a pod counts only if it runs and kubelet has given it this address as its own: none in its node's
//! network, because that address is the node's, and none that mirrors a static pod, because it gets another uid when
//! its mirror is made anew. An answer that is cut says nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::hold::PodsAt;
use serde::Deserialize;

/// The most pods of an answer: one, or a few while one of them ends. More share an address that is a node's.
const PODS_MAX: usize = 16;

/// What kubelet writes on the object that mirrors a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods that run at an address, from what the apiserver has in memory: it looks at each pod for that, and would
/// read all of them from its store without the version 0. Its selector compares the first address of a pod alone, so
/// the second family of a pod with two is not found.
pub(super) fn pod_list_path(address: IpAddr) -> String {
    let fields = format!("status.podIP%3D{},status.phase%3DRunning", encode_address(address));
    format!("/api/v1/pods?fieldSelector={fields}&limit={PODS_MAX}&resourceVersion=0")
}

/// Colons stand encoded in a query.
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

/// The pods that run at the address; `None`: the answer cannot be read, is cut, or names none.
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
    fn only_pods_that_run_with_an_address_of_their_own_count() {
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
    fn an_address_of_ipv6_stands_encoded() {
        let path = pod_list_path("fd00::1".parse().unwrap());
        assert!(path.contains("status.podIP%3Dfd00%3A%3A1,status.phase%3DRunning&"), "{path}");
    }
}
