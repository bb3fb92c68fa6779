//! One node with two proxies that serve kube-proxy's ports: holdfast, and the real kube-proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Location, succeed};
use holdfast_tests::peers::{Cluster, Kind, Part, until};
use serde_json::{Value, json};

use crate::stage::{self, ADDRESS};

/// The timeout of one request on a busy machine.
const ANSWER: Duration = Duration::from_secs(10);

/// The ports of each proxy: health, metrics, and Services' health checks.
struct ProxyPorts {
    health: &'static str,
    metrics: &'static str,
    checks: &'static str,
}

const OURS: ProxyPorts =
    ProxyPorts { health: "127.0.0.1:10356", metrics: "127.0.0.1:10349", checks: "127.0.0.1" };
const THEIRS: ProxyPorts =
    ProxyPorts { health: "127.0.0.1:10256", metrics: "127.0.0.1:10249", checks: ADDRESS };

const PORTS: &str = "[kube_proxy]\nhealth = \"127.0.0.1:10356\"\nmetrics = \"127.0.0.1:10349\"\n";

/// The health check port of a Service with both families.
const CHECK: u16 = 31_234;

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    status: String,
    headers: BTreeMap<String, String>,
    body: String,
}

fn ask(cluster: &Cluster, url: &str, more: &[&str]) -> Option<Answer> {
    let mut curl = cluster.bed().command(Location::OUTSIDE, "curl").unwrap();
    curl.args(["-sSi", "--max-time", "5"]).args(more).arg(format!("http://{url}"));
    let text = succeed(curl, ANSWER).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.to_owned();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    Some(Answer { status, headers: lines.filter_map(header).collect(), body: body.to_owned() })
}

/// Removes what may differ: times, and lengths that depend on them.
fn comparable(mut answer: Answer) -> Answer {
    answer.headers.iter_mut().filter(|(name, _)| *name == "Date").for_each(|(_, value)| value.clear());
    if let Ok(mut json) = serde_json::from_str::<Value>(&answer.body) {
        let has_times = json.get("currentTime").is_some();
        without_times(&mut json);
        if has_times {
            answer.headers.insert("Content-Length".to_owned(), String::new());
            answer.body = json.to_string();
        }
    }
    answer
}

fn without_times(json: &mut Value) {
    for (name, value) in json.as_object_mut().into_iter().flatten() {
        match name.as_str() {
            "lastUpdated" | "currentTime" => *value = "a time".into(),
            _ => without_times(value),
        }
    }
}

/// Checks that both answers are equal and have this status.
#[track_caller]
fn check_same(cluster: &Cluster, path: impl Fn(&ProxyPorts) -> String, more: &[&str], status: &str) {
    let mut last = Vec::new();
    let agreed = until(TEST_TIMEOUT, "agreement", || {
        last = [OURS, THEIRS].map(|who| ask(cluster, &path(&who), more).map(comparable)).to_vec();
        let same = last[0] == last[1];
        let expected = last[0].as_ref().is_some_and(|answer| answer.status.contains(status));
        Ok((same && expected).then_some(()))
    });
    agreed.unwrap_or_else(|error| panic!("{error}: {} {more:?}: {last:#?}", path(&OURS)));
}

fn check_health(cluster: &Cluster, healthz: &str, livez: &str) {
    for (path, status) in [("/healthz", healthz), ("/livez", livez)] {
        check_same(cluster, |who| format!("{}{path}", who.health), &[], status);
    }
}

fn check_service(cluster: &Cluster, status: &str) {
    for (path, more) in [("/", &[][..]), ("/healthz?x=1", &[]), ("/", &["-X", "POST", "-d", "x"])] {
        check_same(cluster, |who| format!("{}:{CHECK}{path}", who.checks), more, status);
    }
}

fn apply(cluster: &Cluster, object: &Value) {
    drop(cluster.api(0).unwrap().apply_object(object).unwrap());
}

/// The current time as the slice controller writes it.
fn now() -> String {
    holdfast_host::clock::now().to_string()
}

fn endpoints(cluster: &Cluster, endpoints: &[(&str, &str, bool)]) {
    let endpoint = |(address, node, ready): &(&str, &str, bool)| {
        json!({"addresses": [address], "nodeName": node,
               "conditions": {"ready": ready, "serving": true, "terminating": !ready}})
    };
    apply(
        cluster,
        &json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": now()},
            },
            "ports": [{"name": "a", "port": 8080}, {"name": "b", "port": 8081}],
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        }),
    );
}

/// The names and types of metrics.
fn metrics(cluster: &Cluster, who: &ProxyPorts) -> BTreeSet<String> {
    let text = ask(cluster, &format!("{}/metrics", who.metrics), &[]).unwrap().body;
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect()
}

/// How many changes of endpoints were counted, and how many of them within a minute.
fn programmed(cluster: &Cluster, who: &ProxyPorts) -> Option<[String; 2]> {
    let text = ask(cluster, &format!("{}/metrics", who.metrics), &[])?.body;
    let of_bucket = |most: &str| {
        let name = "kubeproxy_network_programming_duration_seconds_bucket";
        let start = format!("{name}{{ip_family=\"IPv4\",le=\"{most}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    Some([of_bucket("+Inf")?, of_bucket("60")?])
}

/// Checks that both have counted as many changes of endpoints, within a common bucket.
#[track_caller]
fn check_programmed(cluster: &Cluster, changes: u32) {
    let expected = Some([changes, changes].map(|count| count.to_string()));
    let mut last = Vec::new();
    let agreed = until(TEST_TIMEOUT, "agreement", || {
        last = [OURS, THEIRS].map(|who| programmed(cluster, &who)).to_vec();
        Ok(last.iter().all(|it| *it == expected).then_some(()))
    });
    agreed.unwrap_or_else(|error| panic!("{error}: {last:#?}"));
}

#[test]
fn kube_proxys_ports_give_its_answers() {
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    apply(
        &cluster,
        &json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {
                "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": CHECK,
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}],
            },
        }),
    );
    endpoints(&cluster, &[("10.9.0.1", stage::NODE, true), ("10.9.0.2", "n2", true)]);
    cluster.start_part(Part::Proxy).unwrap();
    let own = stage::by_certificate(&cluster, 1).replace("\"all\"", "\"localhost\"");
    let mut daemon = Daemon::new(cluster.bed(), &(own + PORTS)).unwrap();
    daemon.start().unwrap();

    check_health(&cluster, "200 OK", "200 OK");
    check_service(&cluster, "200 OK");
    endpoints(&cluster, &[("10.9.0.1", stage::NODE, false), ("10.9.0.2", "n2", true)]);
    check_service(&cluster, "503 Service Unavailable");
    endpoints(&cluster, &[("10.9.0.1", stage::NODE, true), ("10.9.0.3", stage::NODE, true)]);
    check_service(&cluster, "200 OK");
    // Initial endpoints are not counted.
    check_programmed(&cluster, 2);

    let taints = |taints: Value| json!({"spec": {"taints": taints}});
    let leaving = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    api.merge(Kind::Node, stage::NODE, &taints(leaving)).unwrap();
    check_health(&cluster, "503 Service Unavailable", "200 OK");
    check_service(&cluster, "200 OK");
    api.merge(Kind::Node, stage::NODE, &taints(json!([]))).unwrap();
    check_health(&cluster, "200 OK", "200 OK");

    check_same(&cluster, |who| format!("{}/nothing", who.health), &[], "404 Not Found");
    check_same(&cluster, |who| format!("{}/healthz", who.metrics), &[], "200 OK");
    let mode = [OURS, THEIRS].map(|who| ask(&cluster, &format!("{}/proxyMode", who.metrics), &[]).unwrap());
    let shape = |answer: &Answer| (answer.status.clone(), answer.headers.keys().cloned().collect::<Vec<_>>());
    assert_eq!(shape(&mode[0]), shape(&mode[1]), "{mode:?}");
    let (ours, theirs) = (metrics(&cluster, &OURS), metrics(&cluster, &THEIRS));
    let invented: Vec<_> = ours.difference(&theirs).collect();
    assert!(invented.is_empty() && ours.len() > 8, "{invented:?}");

    api.delete(Kind::Service, "default/web").unwrap();
    let gone = |who: &ProxyPorts| ask(&cluster, &format!("{}:{CHECK}/", who.checks), &[]).is_none();
    until(TEST_TIMEOUT, "both closed", || Ok((gone(&OURS) && gone(&THEIRS)).then_some(()))).unwrap();
    daemon.stop().unwrap();
}
