//! Any number of Services and slices as real controllers write them: managed fields, owners, targets, zones and hints,
//! so that they take a realistic amount of memory and time.
//!
//! Invariant: numbers alone decide. No two of 16,384 slices share an address.

use serde_json::{Value, json};

fn metadata(name: &str, generation: i64, labels: &Value) -> Value {
    json!({"name": name, "namespace": "default", "uid": format!("uid-of-{name}-0000-4000-8000"), "generation": generation,
        "creationTimestamp": "2026-01-08T11:11:55Z", "labels": labels,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "7c8d4a2e", "controller": true}],
        "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "time": "2026-01-08T11:11:55Z",
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:addressType": {}, "f:endpoints": {},
            "f:metadata": {"f:annotations": {".": {}}, "f:labels": {".": {}, "f:kubernetes.io/service-name": {}}}}}]})
}

/// The service of this number, with a cluster IP and one port.
pub fn service(at: u32) -> Value {
    let [_, b, c, d] = at.to_be_bytes();
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(&format!("web-{at}"), 1, &json!({"app": "web"})),
        "spec": {"type": "ClusterIP", "clusterIP": format!("10.{}.{c}.{d}", 96 + b), "clusterIPs": [format!("10.{}.{c}.{d}", 96 + b)],
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
        "selector": {"app": "web"}, "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]},
        "status": {"loadBalancer": {}}})
}

/// A slice of that service; `at` is its number among all slices, and makes its endpoints' addresses unique.
pub fn slice(service: u32, at: u32, endpoints: u32, generation: i64) -> Value {
    let labels = json!({"kubernetes.io/service-name": format!("web-{service}"),
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"});
    let endpoints: Vec<Value> = (0..endpoints).map(|nth| endpoint(at * 256 + nth)).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": metadata(&format!("web-{service}-{at:05}"), generation, &labels), "addressType": "IPv4",
        "endpoints": endpoints, "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]})
}

fn endpoint(at: u32) -> Value {
    let [_, b, c, d] = at.to_be_bytes();
    json!({"addresses": [format!("10.{}.{c}.{d}", 128 + b % 64)], "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{}", at % 100), "zone": "europe-west1-b", "hints": {"forZones": [{"name": "europe-west1-b"}]},
        "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("web-7d4b9c6f5d-{at}"), "uid": format!("5f3c1a2e-0000-4000-8000-{at:012}")}})
}
