//! Holds at a real control plane: mistaken losses, lists of dead backends, and intended ends.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, wait_until};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Dialer, Layout, Location, Role, Tally};
use holdfast_tests::peers::{Api, Cluster, Kind, Pod, SOON};
use serde_json::{Value, json};

use crate::stage::{self, expect};

const LIVE: &str = "default/live";
const DEAD: &str = "default/dead";
const WEB: &str = "default/web";

/// Two services with slices that the test writes, and one with pods.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: live}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: dead}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
";

const LISTENING: &str = "10.1.0.1:8080";
const CLOSED: &str = "10.1.0.2:8080";

const PODS: [Pod<'static>; 2] = [
    Pod { name: "default/web-1", app: "web", node: stage::NODE, address: "10.1.0.3" },
    Pod { name: "default/web-2", app: "web", node: stage::NODE, address: "10.1.0.4" },
];

fn cluster() -> Cluster {
    let local = vec!["10.1.0.1/32", "10.1.0.2/32", "10.1.0.3/32", "10.1.0.4/32"];
    let cluster = Cluster::start(Layout { local, ..Layout::default() }, 1).unwrap();
    let api = cluster.api(0).unwrap();
    stage::prepare(&cluster, 1);
    api.apply(SERVICES).unwrap();
    write_slice(&api, "live", LISTENING);
    write_slice(&api, "dead", CLOSED);
    for pod in &PODS {
        pod.start(&api).unwrap();
        pod.report(&api, true).unwrap();
    }
    cluster
}

fn write_slice(api: &Api<'_>, service: &str, to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    let labels = json!({"kubernetes.io/service-name": service});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": to.port()}],
        "endpoints": [{"addresses": [to.ip().to_string()]}],
    });
    api.apply_object(&slice).unwrap();
}

fn address(api: &Api<'_>, service: &str) -> SocketAddr {
    let object = api.get(Kind::Service, service).unwrap().unwrap();
    format!("{}:80", object["spec"]["clusterIP"].as_str().unwrap()).parse().unwrap()
}

/// A client's tally with at least one connection.
fn tally_of_some(client: &mut Dialer) -> Tally {
    let mut all = Tally::default();
    wait_until("a client that dials", || {
        let more = client.tally().unwrap();
        all.connected += more.connected;
        more.failed.into_iter().for_each(|(why, count)| *all.failed.entry(why).or_default() += count);
        all.connected > 0 || !all.failed.is_empty()
    });
    all
}

#[test]
fn a_mistaken_loss_is_held_and_the_host_is_not_probed() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let _listening =
        cluster.bed().serve(Location::OUTSIDE, Role::Accept, "live", LISTENING.parse().unwrap()).unwrap();
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(&cluster, 1)).unwrap();
    daemon.start().unwrap();
    expect(&daemon, LIVE, &format!("serving {LISTENING}"));
    expect(&daemon, DEAD, &format!("serving {CLOSED}"));
    let mut client = cluster.bed().dial(Location::NODE, address(&api, LIVE)).unwrap();
    tally_of_some(&mut client);

    let begun = Stopwatch::start();
    api.delete(Kind::Slice, "default/live-1").unwrap();
    api.delete(Kind::Slice, "default/dead-1").unwrap();
    expect(&daemon, LIVE, &format!("held {LISTENING}"));
    expect(&daemon, DEAD, &format!("held {CLOSED}"));
    // Both addresses are this host's own, so a probe would show a tenant which ports are open.
    for service in [LIVE, DEAD] {
        let explained = daemon.tell(&["explain", service]).unwrap();
        let says = ["no pod can have", "at the latest at"];
        assert!(says.iter().all(|it| explained.contains(it)), "{explained}");
    }

    write_slice(&api, "live", LISTENING);
    expect(&daemon, LIVE, &format!("serving {LISTENING}"));
    let tally = tally_of_some(&mut client);
    println!("without its slice for {:?}: {tally}", begun.read());
    assert!(tally.failed.is_empty() && tally.connected > 0, "{tally:?}");
}

/// How long a client got anything but a refusal after the apiserver reported the slice's deletion.
fn refused_after(cluster: &Cluster, api: &Api<'_>) -> Duration {
    let watch = api.watch(Kind::Slice, &name_of_slice(api)).unwrap();
    let mut client = cluster.bed().dial(Location::NODE, address(api, WEB)).unwrap();
    for pod in &PODS {
        pod.gone(api).unwrap();
    }
    watch
        .find(SOON, "empty slice", |seen| seen.object["endpoints"].as_array().is_none_or(Vec::is_empty))
        .unwrap();
    let begun = Stopwatch::start();
    client.tally().unwrap();
    wait_until("a client that is only refused", || {
        let tally = client.tally().unwrap();
        tally.connected == 0 && tally.failed.contains_key("ECONNREFUSED")
    });
    begun.read()
}

fn name_of_slice(api: &Api<'_>) -> String {
    let slices = api.service_slices(WEB).unwrap();
    format!("default/{}", slices[0]["metadata"]["name"].as_str().unwrap())
}

#[test]
fn a_scale_down_is_refused_and_never_held() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let serve = |pod: &Pod<'_>| {
        let to = format!("{}:8080", pod.address).parse().unwrap();
        cluster.bed().serve(Location::OUTSIDE, Role::Accept, "web", to).unwrap()
    };
    let _pods: Vec<_> = PODS.iter().map(serve).collect();
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(&cluster, 1)).unwrap();
    daemon.start().unwrap();
    expect(&daemon, WEB, "serving 10.1.0.3:8080 10.1.0.4:8080");
    for pod in &PODS {
        pod.terminate(&api).unwrap();
    }
    expect(&daemon, WEB, "draining 10.1.0.3:8080 10.1.0.4:8080");
    println!("refused {:?} after the last slice update was told", refused_after(&cluster, &api));
    expect(&daemon, WEB, "refusing");
    let row: Value = stage::rows(&daemon, &["frontends", WEB], "frontends").remove(0);
    assert_eq!(row["reason"], "scaled-down", "{row}");
    assert!(!daemon.tell(&["history", WEB]).unwrap().contains("held"));
}
