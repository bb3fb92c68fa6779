//! The balancer of an agent of k3s, by which holdfast reaches an apiserver that its configuration does not name.
//!
//! Invariant: `n1` is configured with a server that is gone, `n2` with the one that serves.

use holdfast_conformance::Cluster;

use super::shape::{BALANCER, SERVER};
use super::typing::{eventually, typed};

/// The address at which holdfast leads all programs of a node to an apiserver.
pub(crate) const VIP: &str = "169.254.20.1:6443";

const SERVICE: &str = "agent-balancer";

/// A Service that comes while the balancer is away.
const LATER: &str = "{apiVersion: v1, kind: Service, metadata: {name: later}, spec: {type: NodePort, \
     selector: {node: n1}, ports: [{port: 80, targetPort: 8080, nodePort: 30709}]}}";

/// Checks which apiserver each node uses, ends the balancer of `n1`, and starts it again.
pub(crate) fn check(cluster: &Cluster) {
    wait_for_use(cluster, "n1", (BALANCER, "configured"));
    wait_for_use(cluster, "n2", (&server(), "configured"));
    assert_vip_leads(cluster, "n1", BALANCER);
    assert_vip_leads(cluster, "n2", &server());
    cluster.on("n1").unwrap().stop(SERVICE).unwrap();
    wait_for_use(cluster, "n1", (&server(), "learned"));
    assert_vip_leads(cluster, "n1", &server());
    cluster.apply(LATER).unwrap();
    wait_for_answer(cluster, "172.30.0.11:30709");
    cluster.on("n1").unwrap().start(SERVICE).unwrap();
    wait_for_use(cluster, "n1", (BALANCER, "configured"));
    assert_vip_leads(cluster, "n1", BALANCER);
}

fn server() -> String {
    format!("{SERVER}:6443")
}

/// Waits until holdfast uses this endpoint, which it knows from this source.
#[track_caller]
fn wait_for_use(cluster: &Cluster, node: &str, (endpoint, tier): (&str, &str)) {
    eventually(&format!("{node} uses {endpoint}"), || {
        let said = ask(cluster, node);
        let endpoints = said["endpoints"].as_array().unwrap();
        endpoints.iter().any(|it| it["active"] == true && it["address"] == endpoint && it["tier"] == tier)
    });
}

/// The command ends with 1 while no apiserver is heard, as between two of them.
fn ask(cluster: &Cluster, node: &str) -> serde_json::Value {
    let answer = typed(cluster, node, "holdfast apiserver -o json || test $? -eq 1");
    serde_json::from_str(&answer).unwrap()
}

#[track_caller]
fn assert_vip_leads(cluster: &Cluster, node: &str, endpoint: &str) {
    let what = format!("{VIP} of {node} leads to {endpoint}");
    eventually(&what, || ask(cluster, node)["vip"]["leads_to"] == endpoint);
    assert_eq!(typed(cluster, node, &format!("curl -sk https://{VIP}/readyz")), "ok", "{node}");
}

#[track_caller]
fn wait_for_answer(cluster: &Cluster, target: &str) {
    eventually(&format!("{target} answers"), || {
        let url = format!("http://{target}/clientip");
        let answer = cluster.on("out").unwrap().run(&["curl", "-s", "--max-time", "5", &url]).unwrap();
        answer.status.success()
    });
}
