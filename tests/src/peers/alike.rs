//! Many similar services and slices for measurements.
//!
//! Invariant: they carry all parts of real ones that cost something: labels, targets, zones, conditions.

use serde_json::json;

use super::{Api, PeersError};

/// The endpoints of each slice.
pub const ENDPOINTS: u32 = 10;

/// Creates this many services and slices.
pub fn fill(api: &Api<'_>, services: u32, slices: u32) -> Result<(), PeersError> {
    (0..services).try_for_each(|at| service(api, at))?;
    (0..slices).try_for_each(|at| slice(api, at))
}

/// Creates or changes one service.
fn service(api: &Api<'_>, at: u32) -> Result<(), PeersError> {
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("web-{at}"), "labels": {"app": "web"}},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    api.apply_object(&object).map(drop)
}

fn slice(api: &Api<'_>, at: u32) -> Result<(), PeersError> {
    let endpoint = |nth: u32| {
        let [_, b, c, d] = (at * ENDPOINTS + nth).to_be_bytes();
        json!({"addresses": [format!("10.{b}.{c}.{d}")], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{nth}"), "zone": "europe-west1-b",
            "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("web-7d4b9c6f5d-{at}-{nth}"),
                "uid": format!("5f3c1a2e-0000-4000-8000-{at:012}")}})
    };
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("web-{at}-a"), "labels": {"kubernetes.io/service-name": format!("web-{at}"),
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
    });
    api.apply_object(&object).map(drop)
}
