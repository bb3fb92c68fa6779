//! etcd restored from a backup: versions are assigned a second time, and no apiserver reports that.

use std::net::SocketAddr;

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Layout, Location, Role, Server};
use holdfast_tests::peers::{Api, Cluster, Kind, PeersError, SOON, until};
use serde_json::json;

use crate::stage::{self, expect, frontends};

const OLD: &str = "default/old";
const NEW: &str = "default/new";
const HALF: &str = "default/half";

/// The writes since the backup, so that former versions are far ahead.
const WRITES: usize = 300;

const BACKENDS: [&str; 2] = ["10.1.0.1:8080", "10.1.0.2:8080"];

fn service(api: &Api<'_>, name: &str) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name}, "spec": {"ports": [{"port": 80}]},
    });
    api.apply_object(&service).unwrap();
}

fn slice(api: &Api<'_>, name: &str, addresses: &[&str]) {
    let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "default", "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name},
        },
        "ports": [{"name": "", "port": 8080}], "endpoints": endpoints,
    });
    api.apply_object(&slice).unwrap();
}

fn touch(api: &Api<'_>) {
    for write in 0..WRITES {
        let part = json!({"metadata": {"annotations": {"written": write.to_string()}}});
        api.merge(Kind::Service, OLD, &part).unwrap();
    }
}

fn world() -> (Cluster, Vec<Server>) {
    let layout = Layout { local: vec!["10.1.0.1/32", "10.1.0.2/32"], ..Layout::default() };
    let cluster = Cluster::start(layout, 1).unwrap();
    stage::prepare(&cluster, 1);
    let serve = |address: &str| {
        cluster.bed().serve(Location::OUTSIDE, Role::Accept, "pod", address.parse().unwrap()).unwrap()
    };
    let servers = BACKENDS.map(serve).into();
    (cluster, servers)
}

fn address(api: &Api<'_>, service: &str) -> SocketAddr {
    let object = api.get(Kind::Service, service).unwrap().unwrap();
    format!("{}:80", object["spec"]["clusterIP"].as_str().unwrap()).parse().unwrap()
}

/// Waits until a service is gone, and returns how long that took.
#[track_caller]
fn expect_gone(daemon: &Daemon<'_>, service: &str) {
    let gone = until(SOON, "end of a service", || Ok(frontends(daemon, service).is_empty().then_some(())));
    gone.unwrap_or_else(|error: PeersError| panic!("{error}: {:?}", frontends(daemon, service)));
}

#[test]
fn a_restored_backup_is_noticed_and_its_losses_reported() {
    let (cluster, _servers) = world();
    let api = cluster.api(0).unwrap();
    service(&api, "old");
    slice(&api, "old", &["10.1.0.1"]);
    service(&api, "half");
    let backup = cluster.back_up("backup").unwrap();

    // The restore removes what is written now.
    service(&api, "new");
    slice(&api, "new", &["10.1.0.1"]);
    slice(&api, "half", &["10.1.0.2"]);
    slice(&api, "old", &["10.1.0.1", "10.1.0.2"]);
    touch(&api);
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(&cluster, 1)).unwrap();
    daemon.start().unwrap();
    expect(&daemon, OLD, &format!("serving {}", BACKENDS.join(" ")));
    expect(&daemon, NEW, &format!("serving {}", BACKENDS[0]));
    expect(&daemon, HALF, &format!("serving {}", BACKENDS[1]));
    let mut clients = cluster.bed().dial(Location::NODE, address(&api, OLD)).unwrap();

    cluster.restore(&backup, 1).unwrap();
    let noticed = expect(&daemon, OLD, &format!("serving {}", BACKENDS[0]));
    println!("the table of the restored store is served {noticed:?} after its apiserver was ready");
    let tally = clients.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 0, "{tally:?}");

    // The Service is in no list any more; the other one's slice disappeared without a sign of intent.
    expect_gone(&daemon, NEW);
    expect(&daemon, HALF, &format!("held {}", BACKENDS[1]));
    check_told(&daemon);
}

/// Checks that the log reports the restored store, and the history its effect on each service.
#[track_caller]
fn check_told(daemon: &Daemon<'_>) {
    let logged = daemon.logged();
    assert!(logged.contains("went back from version"), "{logged}");
    let told = |service: &str| daemon.tell(&["history", service]).unwrap();
    assert!(told(NEW).contains("Service default/new") && told(NEW).contains("gone"), "{}", told(NEW));
    assert!(told(HALF).contains("resync"), "{}", told(HALF));
    assert!(told(OLD).contains(&format!("-{}", BACKENDS[1])), "{}", told(OLD));
    let status = daemon.status().unwrap();
    assert_eq!((&status["ready"], status["stale_since"].is_null()), (&json!(true), true), "{status}");
}
