//! Events at a real apiserver: with the shipped role, and its own validation.

use holdfast_tests::bed::Layout;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Cluster, SOON, until};
use serde_json::{Value, json};

use crate::stage::{self, expect};

const SERVICE: &str = "default/web";

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
";

/// The older API, which users' tools read.
const EVENTS: &str = "api/v1/namespaces/default/events?fieldSelector=reportingComponent=holdfast.io/holdfast";

fn write_slice(api: &Api<'_>, endpoints: &Value) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080}],
        "endpoints": endpoints,
    });
    api.apply_object(&slice).unwrap();
}

/// The Events in order, each as `BackendsHeld Service web 1` with its count.
fn events(api: &Api<'_>) -> Vec<String> {
    let list = api.request("GET", EVENTS, None).unwrap().object().unwrap();
    let words = |event: &Value| {
        let count = event["series"]["count"].as_u64().unwrap_or(1);
        let about = &event["involvedObject"];
        format!("{} {} {} {count}", event["reason"], about["kind"], about["name"]).replace('"', "")
    };
    let mut told: Vec<String> = list["items"].as_array().into_iter().flatten().map(words).collect();
    told.sort();
    told
}

#[track_caller]
fn expect_events(api: &Api<'_>, daemon: &Daemon<'_>, expected: &[&str]) {
    let mut last = Vec::new();
    let told = until(SOON, "expected Events", || {
        last = events(api);
        Ok((last == expected).then_some(()))
    });
    told.unwrap_or_else(|error| panic!("{error}: {expected:?}, not {last:?}; {}", daemon.logged()));
}

#[test]
fn a_real_apiserver_accepts_hold_events_and_counts_repetitions() {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    let api = cluster.api(0).unwrap();
    stage::prepare(&cluster, 1);
    api.apply(WEB).unwrap();
    let one = json!([{"addresses": ["10.1.0.1"]}]);
    write_slice(&api, &one);
    let config = stage::by_certificate(&cluster, 1) + "[kubernetes]\nevents = true\n";
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    expect(&daemon, SERVICE, "serving 10.1.0.1:8080");

    write_slice(&api, &json!([]));
    expect_events(&api, &daemon, &["BackendsHeld Service web 1"]);
    write_slice(&api, &one);
    expect_events(&api, &daemon, &["BackendsHeld Service web 1", "BackendsReturned Service web 1"]);
    write_slice(&api, &json!([]));
    expect_events(&api, &daemon, &["BackendsHeld Service web 2", "BackendsReturned Service web 1"]);
}
