//! The real daemon at a real apiserver: its output, and the backends that clients reach.

use holdfast_fixtures::clock::Stopwatch;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Kind, Pod, SOON, apiserver, until};
use serde_json::{Value, json};

use crate::stage::{self, PodCluster, expect, frontends, rows, watched, word};

const SERVICE: &str = "default/web";

const PODS: [Pod<'static>; 3] = [
    Pod { name: "default/web-1", app: "web", node: stage::NODE, address: "10.1.0.1" },
    Pod { name: "default/web-2", app: "web", node: stage::NODE, address: "10.1.0.2" },
    Pod { name: "default/web-3", app: "web", node: stage::NODE, address: "10.1.0.3" },
];

const EXTERNAL_IP: &str = "203.0.113.7";

const LOAD_BALANCER: &str = "10.15.1.8";

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  selector: {app: web}
  externalIPs: [203.0.113.7]
  ports: [{name: http, port: 80, targetPort: 8080}]
";

/// Three pods that reply with their addresses; two are ready.
fn start_pods() -> PodCluster {
    let local = ["10.1.0.1/32", "10.1.0.2/32", "10.1.0.3/32", "192.0.2.7/32"];
    let pods = PodCluster::start(&local, &PODS.map(|pod| pod.address));
    let api = pods.cluster.api(0).unwrap();
    api.apply(WEB).unwrap();
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": LOAD_BALANCER}]}}});
    api.merge_status(Kind::Service, SERVICE, &ingress).unwrap();
    PODS[..2].iter().for_each(|pod| start(&api, pod));
    pods
}

fn start(api: &Api<'_>, pod: &Pod<'_>) {
    pod.start(api).unwrap();
    pod.report(api, true).unwrap();
}

/// The addresses that clients of the node dial, with the type of each frontend.
fn addresses(pods: &PodCluster) -> [(&'static str, String, u64); 4] {
    let service = pods.cluster.api(0).unwrap().get(Kind::Service, SERVICE).unwrap().unwrap();
    let cluster_ip = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let node_port = service["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    [
        ("ClusterIP", cluster_ip, 80),
        ("NodePort", "192.0.2.7".to_owned(), node_port),
        ("LoadBalancer", LOAD_BALANCER.to_owned(), 80),
        ("ExternalIP", EXTERNAL_IP.to_owned(), 80),
    ]
}

#[track_caller]
fn check_served(pods: &PodCluster, by: &[&str]) {
    for (kind, address, port) in addresses(pods) {
        let answer = pods.reply(&address, port);
        assert!(by.contains(&answer.as_str()), "{kind} {address}:{port}: {answer}");
    }
}

/// The only endpoint and the only credential in `holdfast apiserver`.
fn way(daemon: &Daemon<'_>) -> (Value, Value) {
    let rows = |table| rows(daemon, &["apiserver"], table);
    (rows("endpoints").remove(0), rows("credentials").remove(0))
}

#[track_caller]
fn check_way(daemon: &Daemon<'_>, credential: &str) {
    // ServiceImports are requested a few times over short connections, because this cluster has none.
    let are_three = || Ok((way(daemon).0["connections"] == 3).then_some(()));
    until(SOON, "three connections", are_three).unwrap();
    let (endpoint, own) = way(daemon);
    assert_eq!(word(&endpoint, "address"), apiserver(0).unwrap().to_string());
    let used =
        ["state", "active", "preferred", "connections", "last_error"].map(|field| endpoint[field].clone());
    assert_eq!(used, [json!("healthy"), json!(true), json!(true), json!(3), Value::Null], "{endpoint}");
    assert_eq!((word(&own, "kind").as_str(), &own["problem"]), (credential, &Value::Null), "{own}");
}

#[test]
fn clients_reach_the_pods_of_a_real_cluster_by_every_address() {
    let pods = start_pods();
    let api = pods.cluster.api(0).unwrap();
    let mut daemon = Daemon::new(pods.cluster.bed(), &stage::by_certificate(&pods.cluster, 1)).unwrap();
    daemon.start().unwrap();
    let begun = Stopwatch::start();
    expect(&daemon, SERVICE, "serving 10.1.0.1:8080 10.1.0.2:8080");
    let types: Vec<String> = frontends(&daemon, SERVICE).iter().map(|row| word_of(row)).collect();
    assert_eq!(types, ["ClusterIP", "NodePort", "LoadBalancer", "ExternalIP"]);
    check_served(&pods, &["10.1.0.1", "10.1.0.2"]);
    println!("ready and served by four addresses {:?} after the daemon was ready", begun.read());
    until(SOON, "three watches", || Ok((watched(&daemon).first().map(|it| it.1) == Some(3)).then_some(())))
        .unwrap();
    check_way(&daemon, "client certificate");

    start(&api, &PODS[2]);
    let up = expect(&daemon, SERVICE, "serving 10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080");
    PODS[0].gone(&api).unwrap();
    PODS[1].report(&api, false).unwrap();
    let down = expect(&daemon, SERVICE, "serving 10.1.0.3:8080");
    check_served(&pods, &["10.1.0.3"]);
    println!("from a pod's status to the table, the controllers' time included: up {up:?}, down {down:?}");

    let addresses = addresses(&pods);
    api.delete(Kind::Service, SERVICE).unwrap();
    until(SOON, "no frontend", || Ok(frontends(&daemon, SERVICE).is_empty().then_some(()))).unwrap();
    for (kind, address, port) in addresses {
        let answer = pods.reply(&address, port);
        assert!(answer == "ENETUNREACH" || answer == "ECONNREFUSED", "{kind} {address}:{port}: {answer}");
    }
}

/// The first word.
fn word_of(row: &str) -> String {
    row.split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn a_restart_with_another_credential_costs_the_apiserver_no_list() {
    let pods = start_pods();
    let token = pods.cluster.api(0).unwrap().token(stage::ACCOUNT).unwrap();
    let file = pods.cluster.folder().join("token");
    std::fs::write(&file, token + "\n").unwrap();
    let mut daemon = Daemon::new(pods.cluster.bed(), &stage::by_certificate(&pods.cluster, 1)).unwrap();
    daemon.start().unwrap();
    expect(&daemon, SERVICE, "serving 10.1.0.1:8080 10.1.0.2:8080");
    daemon.stop().unwrap();
    let first = pods.cluster.requests_by_user(stage::USER).unwrap();
    assert_eq!((first["list services"], first["list endpointslices"]), (1, 1), "{first:?}");

    daemon.configure(&stage::by_token(&pods.cluster, 1, &file)).unwrap();
    daemon.start().unwrap();
    expect(&daemon, SERVICE, "serving 10.1.0.1:8080 10.1.0.2:8080");
    until(SOON, "three watches", || Ok((watched(&daemon).first().map(|it| it.1) == Some(3)).then_some(())))
        .unwrap();
    check_way(&daemon, "token");
    let second = pods.cluster.requests_by_user(stage::ACCOUNT_USER).unwrap();
    println!("asked by the first daemon: {first:?}; by the second one: {second:?}");
    assert_eq!((second.get("list services"), second.get("list endpointslices")), (None, None), "{second:?}");
    check_served(&pods, &["10.1.0.1", "10.1.0.2"]);
}
