//! Events about Services' address and port ranges, each provoked by a real change.
//!
//! Invariant: as in [`crate::provoked`]. A range changes by a restart of the apiserver with other flags, as when an
//! operator edits its manifest.

use holdfast_tests::peers::{Api, Cluster, Kind, Part, SOON, until};
use serde_json::{Value, json};

use crate::diagnosed::{apply_at, events};
use crate::provoked::{expect, rewrite, service};
use crate::stage;

/// The controller of the flags' range, and the one of all ranges.
const OF_FLAGS: &str = "kubernetes-service-cidr-controller";

const OF_OBJECTS: &str = "service-cidr-controller";

const CIDRS: &str = "apis/networking.k8s.io/v1/servicecidrs";

/// Restarts the apiserver with another range.
fn restart(cluster: &Cluster, flag: &str) {
    cluster.kill(Part::Apiserver(0)).unwrap();
    cluster.start_part_with(Part::Apiserver(0), &[flag]).unwrap();
}

/// A webhook without a server for each status of a range.
fn hook(api: &Api<'_>) {
    let rule = json!({"apiGroups": ["networking.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["servicecidrs/status"]});
    let hook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "ranges"},
        "webhooks": [{
            "name": "ranges.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "rules": [rule],
        }],
    });
    apply_at(api, "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/ranges", &hook);
}

#[test]
fn range_controllers_events_explain_wrong_service_ranges() {
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    hook(&api);
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"}, "spec": {"cidrs": ["192.169.0.0/24"]}});
    apply_at(&api, &format!("{CIDRS}/more"), &range);
    let no_status = |object: &mut Value| object["status"] = json!({});
    cluster.overwrite(Kind::ServiceCidr, "kubernetes", no_status).unwrap();
    expect(
        &api,
        "default",
        &[
            ("more", "KubernetesServiceCIDRError", OF_OBJECTS, "ServiceCIDR", "ip.cidr_not_ready"),
            ("kubernetes", "KubernetesDefaultServiceCIDRError", OF_FLAGS, "ServiceCIDR", "ip.cidr_not_ready"),
        ],
    );
    restart(&cluster, "--service-cluster-ip-range=192.170.0.0/24");
    expect(
        &api,
        "default",
        &[(
            "kubernetes",
            "KubernetesDefaultServiceCIDRInconsistent",
            OF_FLAGS,
            "ServiceCIDR",
            "ip.flags_differ",
        )],
    );
}

/// Creates Services with a node port until one is rejected, and returns the error.
fn fill(api: &Api<'_>) -> String {
    let mut made = (0..4).map(|number| {
        let object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("port-{number}")},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]},
        });
        let body = Some(("application/json", object.to_string()));
        api.request("POST", "api/v1/namespaces/default/services", body).unwrap()
    });
    made.find(|reply| reply.status >= 300).map(|reply| reply.text).expect("a range that is full")
}

/// Upstream has an Event for that, but its repair controller never writes it: a Service that finds no port is
/// rejected.
#[test]
fn a_full_port_range_is_reported_to_the_client_without_an_event() {
    let range = "--service-node-port-range=20000-20001";
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    service(&api, "default", "web", &json!({"type": "NodePort"}));
    restart(&cluster, range);
    let refused = fill(&api);
    assert!(refused.contains("failed to allocate a nodePort: range is full"), "{refused}");
    // The controller checks Services by name, and reports this one last.
    rewrite(&cluster, "web", "/spec/ports/0/nodePort", &json!(20_009));
    restart(&cluster, range);
    let is_last = |event: &Value| event["message"].as_str().is_some_and(|it| it.contains("20009"));
    until(SOON, "a look", || Ok(events(&api, "default", "web").iter().any(is_last).then_some(()))).unwrap();
    // The controller of addresses may report a repair for any new Service.
    let is_of_ports = |event: &Value| event["reportingComponent"] != "ipallocator-repair-controller";
    for name in ["port-0", "port-1"] {
        let said: Vec<Value> = events(&api, "default", name).into_iter().filter(is_of_ports).collect();
        assert_eq!(said, Vec::<Value>::new());
    }
}
