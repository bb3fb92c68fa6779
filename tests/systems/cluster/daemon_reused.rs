//! A held address that another pod gets at a real control plane: whose word counts, and the effect.

use std::time::Duration;

use holdfast_fixtures::clock::pause;
use holdfast_tests::bed::Layout;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Cluster, Kind, Pod};
use serde_json::{Value, json};

use crate::stage::{self, expect};

const LIVE: &str = "default/live";

/// One service with a slice that the test writes, and one with pods.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: live}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec:
  selector: {app: other}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: liar}
spec: {ports: [{port: 80}]}
";

const PODS: [Pod<'static>; 2] = [
    Pod { name: "default/live-1", app: "live", node: stage::NODE, address: "10.1.0.3" },
    Pod { name: "default/live-2", app: "live", node: stage::NODE, address: "10.1.0.4" },
];

/// The pod that gets the first one's address.
const HEIR: Pod<'static> =
    Pod { name: "default/other-1", app: "other", node: stage::NODE, address: "10.1.0.3" };

fn uid(api: &Api<'_>, pod: &Pod<'_>) -> String {
    let pod = api.get(Kind::Pod, pod.name).unwrap().unwrap();
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn endpoint(name: &str, address: &str, uid: &str) -> Value {
    let target = json!({"kind": "Pod", "namespace": "default", "name": name, "uid": uid});
    json!({"addresses": [address], "targetRef": target})
}

fn write_slice(api: &Api<'_>, service: &str, endpoints: &[Value]) {
    let labels = json!({"kubernetes.io/service-name": service});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080}],
        "endpoints": endpoints,
    });
    api.apply_object(&slice).unwrap();
}

/// Starts a pod in the host's network with this node address.
fn start_in_host_network(api: &Api<'_>, address: &str) {
    let spec = json!({
        "nodeName": stage::NODE,
        "hostNetwork": true,
        "containers": [{"name": "it", "image": "none"}],
    });
    let metadata = json!({"namespace": "default", "name": "host-1"});
    api.apply_object(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
        .unwrap();
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    api.merge_status(Kind::Pod, "default/host-1", &json!({"status": status})).unwrap();
}

#[test]
fn a_hold_ends_if_another_pod_gets_the_address_not_by_claims() {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    stage::prepare(&cluster, 1);
    let api = cluster.api(0).unwrap();
    api.apply(SERVICES).unwrap();
    for pod in &PODS {
        pod.start(&api).unwrap();
        pod.report(&api, true).unwrap();
    }
    let endpoints: Vec<_> = PODS.iter().map(|pod| endpoint("live", pod.address, &uid(&api, pod))).collect();
    write_slice(&api, "live", &endpoints);
    // The hold lasts longer than this test, although no probe is answered.
    let config = stage::by_certificate(&cluster, 1) + "[hold]\nprobe_interval = \"10m\"\n";
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    expect(&daemon, LIVE, "serving 10.1.0.3:8080 10.1.0.4:8080");
    api.delete(Kind::Slice, "default/live-1").unwrap();
    expect(&daemon, LIVE, "held 10.1.0.3:8080 10.1.0.4:8080");

    // Claims of objects do not count while the pods of the held endpoints run there.
    let lies: Vec<_> = PODS.iter().map(|pod| endpoint("liar", pod.address, "u-1")).collect();
    write_slice(&api, "liar", &lies);
    start_in_host_network(&api, PODS[1].address);
    // Nothing tells that the daemon has looked at the claims, so only time shows that they have no effect.
    pause(Duration::from_secs(5));
    expect(&daemon, LIVE, "held 10.1.0.3:8080 10.1.0.4:8080");

    PODS[0].gone(&api).unwrap();
    HEIR.start(&api).unwrap();
    HEIR.report(&api, true).unwrap();
    expect(&daemon, "default/other", "serving 10.1.0.3:8080");
    expect(&daemon, LIVE, "held 10.1.0.4:8080");
    let history = daemon.tell(&["history", LIVE]).unwrap();
    assert!(history.contains("another pod has 10.1.0.3 now, according to the apiserver"), "{history}");
}
