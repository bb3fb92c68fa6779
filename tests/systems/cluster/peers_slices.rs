//! The real EndpointSlice controller's slices while pods start, terminate and end.

use holdfast_tests::bed::Layout;
use holdfast_tests::peers::{Api, Cluster, Kind, Pod, SOON, until};
use serde_json::{Value, json};

const SERVICE: &str = "default/web";

const PODS: [Pod<'static>; 3] = [
    Pod { name: "default/web-1", app: "web", node: "n1", address: "10.1.0.1" },
    Pod { name: "default/web-2", app: "web", node: "n1", address: "10.1.0.2" },
    Pod { name: "default/web-3", app: "web", node: "n2", address: "10.1.0.3" },
];

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

/// A cluster with two nodes and a service without pods.
fn cluster() -> Cluster {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    let api = cluster.api(0).unwrap();
    api.add_node("n1", "a").unwrap();
    api.add_node("n2", "b").unwrap();
    api.apply(WEB).unwrap();
    cluster
}

fn start_all(api: &Api<'_>) {
    for pod in &PODS {
        pod.start(api).unwrap();
        pod.report(api, true).unwrap();
    }
}

/// `10.1.0.1 ready serving n1 a`, in the order of the addresses.
fn shown(slice: &Value) -> Vec<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let mut rows: Vec<String> = endpoints.map(endpoint).collect();
    rows.sort();
    rows
}

fn endpoint(endpoint: &Value) -> String {
    let conditions =
        ["ready", "serving", "terminating"].into_iter().filter(|name| endpoint["conditions"][name] == true);
    let mut words = vec![endpoint["addresses"][0].as_str().unwrap()];
    words.extend(conditions);
    words.extend([&endpoint["nodeName"], &endpoint["zone"]].map(|word| word.as_str().unwrap_or("-")));
    words.join(" ")
}

/// Waits until the service's one slice has these endpoints.
#[track_caller]
fn expect(api: &Api<'_>, expected: &[&str]) -> Value {
    let mut last = Vec::new();
    let found = until(SOON, "expected slice", || {
        last = api.service_slices(SERVICE)?;
        let [slice] = last.as_slice() else { return Ok(None) };
        Ok((shown(slice) == expected).then(|| slice.clone()))
    });
    found.unwrap_or_else(|error| panic!("{error}: {expected:?} from {last:?}"))
}

#[test]
fn three_ready_pods_make_one_slice() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let service = api.get(Kind::Service, SERVICE).unwrap().unwrap();
    assert!(service["spec"]["clusterIP"].as_str().unwrap().starts_with("192.168."), "{service}");
    start_all(&api);
    let all = ["10.1.0.1 ready serving n1 a", "10.1.0.2 ready serving n1 a", "10.1.0.3 ready serving n2 b"];
    let slice = expect(&api, &all);
    assert_eq!(slice["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(slice["endpoints"][0]["targetRef"]["kind"], "Pod");
    PODS[1].report(&api, false).unwrap();
    expect(&api, &[all[0], "10.1.0.2 n1 a", all[2]]);
}

#[test]
fn a_deleted_pod_is_listed_as_terminating() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    start_all(&api);
    let two = ["10.1.0.1 ready serving n1 a", "10.1.0.2 ready serving n1 a"];
    expect(&api, &[two[0], two[1], "10.1.0.3 ready serving n2 b"]);
    PODS[2].terminate(&api).unwrap();
    expect(&api, &[two[0], two[1], "10.1.0.3 serving terminating n2 b"]);
    PODS[2].report(&api, false).unwrap();
    expect(&api, &[two[0], two[1], "10.1.0.3 terminating n2 b"]);
    PODS[2].gone(&api).unwrap();
    expect(&api, &two);
}

#[test]
fn a_slice_without_endpoints_says_null() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    start_all(&api);
    expect(
        &api,
        &["10.1.0.1 ready serving n1 a", "10.1.0.2 ready serving n1 a", "10.1.0.3 ready serving n2 b"],
    );
    for pod in &PODS {
        pod.gone(&api).unwrap();
    }
    let slice = expect(&api, &[]);
    assert_eq!(
        (slice.get("endpoints"), slice.get("ports")),
        (Some(&Value::Null), Some(&Value::Null)),
        "{slice}"
    );
}
