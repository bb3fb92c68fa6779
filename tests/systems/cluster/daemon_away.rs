//! Both apiservers are down while the daemon restarts: the node keeps serving.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause, wait_for};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Dialer, Layout, Location, Role, Server, Tally};
use holdfast_tests::peers::{Api, Cluster, Kind, Part, SOON, until};

use crate::stage::{self, check_served, expect, rows, stale, watched, word};

const SERVICE: &str = "default/web";

const SERVING: &str = "serving 10.1.0.1:8080 10.1.0.2:8080";

/// Long enough for every backoff of the daemon to reach its maximum.
const AWAY: Duration = Duration::from_secs(20);

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]
";

struct ServedService {
    cluster: Cluster,
    frontend: SocketAddr,
    _servers: Vec<Server>,
}

fn start_service() -> ServedService {
    let layout = Layout { local: vec!["10.1.0.1/32", "10.1.0.2/32"], ..Layout::default() };
    let cluster = Cluster::start(layout, 2).unwrap();
    let serve = |address: &str| {
        cluster.bed().serve(Location::OUTSIDE, Role::Accept, "pod", address.parse().unwrap()).unwrap()
    };
    let servers = ["10.1.0.1:8080", "10.1.0.2:8080"].map(serve).into();
    let api = cluster.api(1).unwrap();
    stage::prepare(&cluster, 2);
    api.apply(WEB).unwrap();
    let frontend = cluster_ip(&api);
    ServedService { cluster, frontend, _servers: servers }
}

fn cluster_ip(api: &Api<'_>) -> SocketAddr {
    let service = api.get(Kind::Service, SERVICE).unwrap().unwrap();
    format!("{}:80", service["spec"]["clusterIP"].as_str().unwrap()).parse().unwrap()
}

/// Checks that the daemon is ready, healthy, and reports that its table is saved state.
#[track_caller]
fn check_remembered(daemon: &Daemon<'_>) {
    let status = daemon.ask(&["status"]).expect("exit code 0: ready, and nothing is wrong");
    assert_eq!(status["ready"], true, "{status}");
    assert!(status["stale_since"].is_string(), "{status}");
    expect(daemon, SERVICE, SERVING);
}

/// Checks that each apiserver is retried, and that its error is reported.
pub(crate) fn check_tried(daemon: &Daemon<'_>) {
    let refused = || {
        let rows = rows(daemon, &["apiserver"], "endpoints");
        let configured = rows.iter().filter(|row| row["tier"] == "configured");
        let errors: Vec<String> = configured.map(|row| word(row, "last_error")).collect();
        Ok((errors == ["connection refused", "connection refused"]).then_some(()))
    };
    until(SOON, "both refused", refused).unwrap();
    assert_eq!(watched(daemon), []);
}

/// A freshly started apiserver has no older versions, so a former version can be too old for it. That costs one list
/// of each kind.
#[track_caller]
fn check_lists(before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) {
    println!("asked before: {before:?}; in all: {after:?}");
    for list in ["list services", "list endpointslices"] {
        assert!(after[list] <= before[list] + 1, "{list}");
    }
}

/// Simulates a reboot: the kernel's state is gone, the disk's is not.
fn reboot(daemon: &mut Daemon<'_>, clients: &mut Dialer) {
    daemon.stop().unwrap();
    daemon.cleanup().unwrap();
    clients.tally().unwrap();
    let attempts = || Some(clients.tally().unwrap()).filter(|tally| *tally != Tally::default());
    assert_eq!(wait_for("a client that dials", attempts).connected, 0, "nobody serves");
    let begun = Stopwatch::start();
    daemon.launch().unwrap();
    until(SOON, "a served client", || Ok((clients.tally().unwrap().connected > 0).then_some(()))).unwrap();
    let cold = begun.read();
    println!("started with empty maps and no apiserver: a client is served after {cold:?}");
    daemon.wait_until(|daemon| Ok(daemon.is_ready())).unwrap();
}

#[test]
fn a_node_serves_through_restarts_while_both_apiservers_are_away() {
    let ServedService { cluster, frontend, _servers } = start_service();
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(&cluster, 2)).unwrap();
    daemon.start().unwrap();
    expect(&daemon, SERVICE, SERVING);
    let mut clients = cluster.bed().dial(Location::NODE, frontend).unwrap();
    // The snapshot is saved within a second, and nothing tells that it has this service.
    pause(Duration::from_secs(2));
    check_served(&mut clients, "before");
    let before = cluster.requests_by_user(stage::USER).unwrap();

    let away = Stopwatch::start();
    cluster.kill(Part::Apiserver(0)).unwrap();
    cluster.kill(Part::Apiserver(1)).unwrap();
    check_tried(&daemon);
    check_served(&mut clients, "while both apiservers went away");
    assert!(daemon.is_ready());
    assert_eq!(stale(&daemon), None, "all of it was confirmed by this very daemon");
    daemon.kill().unwrap();
    check_served(&mut clients, "while there is no daemon");
    daemon.start().unwrap();
    check_remembered(&daemon);
    check_tried(&daemon);
    check_served(&mut clients, "while the daemon was killed and started");
    let confirmed = stale(&daemon);
    reboot(&mut daemon, &mut clients);
    check_remembered(&daemon);
    assert_eq!(stale(&daemon), confirmed, "remembering it twice makes it no younger");
    // Nothing tells how long the backoffs are.
    pause(AWAY.saturating_sub(away.read()));
    check_served(&mut clients, "while nothing but the snapshot was there");

    println!("away for {:?}", away.read());
    cluster.start_part(Part::Apiserver(0)).unwrap();
    let back = Stopwatch::start();
    until(SOON, "a confirmed table", || Ok(stale(&daemon).is_none().then_some(()))).unwrap();
    let synced = back.read();
    println!("confirmed {synced:?} after an apiserver was ready");
    cluster.start_part(Part::Apiserver(1)).unwrap();
    check_lists(&before, &cluster.requests_by_user(stage::USER).unwrap());
    check_served(&mut clients, "while the apiservers came back");
}
