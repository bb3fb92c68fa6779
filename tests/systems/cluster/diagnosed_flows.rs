//! Outside clients with UDP and TCP flows whose backends disappear, and DNS servers that do not answer.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_fixtures::clock::pause;
use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location, Neighbour, Role};
use holdfast_tests::peers::{Cluster, Pod, SOON, until};
use serde_json::json;

use crate::diagnosed::{self, ExpectedDiagnosis, WELL, expect, expect_unprobed, service};
use crate::stage::{self, NODE};

const fn pod<'a>(name: &'a str, app: &'a str, address: &'a str) -> Pod<'a> {
    Pod { name, app, node: NODE, address }
}

const PODS: [Pod<'static>; 2] =
    [pod("default/web-1", "web", "10.1.0.2"), pod("default/web-2", "web", "10.1.0.4")];

/// The outside clients' location, and the address that they dial.
const OUTSIDE: Location<'static> = Location::far("outside");
const CLIENT: &str = "198.51.100.9:40000";
const DIALLED: &str = "203.0.113.7:80";

/// Enough connections for each of two backends to have some.
const HELD: usize = 20;

/// After this time conntrack treats a UDP flow as a stream, with a timeout of two minutes.
const STREAM: Duration = Duration::from_millis(3_100);

/// A control plane and a node with a network of clients, next to that of its pods.
fn cluster() -> Cluster {
    let outside = Neighbour { name: "outside", near: vec!["198.51.100.1/24"], far: vec!["198.51.100.9/24"] };
    diagnosed::cluster_beside(vec![outside])
}

fn daemon(cluster: &Cluster) -> Daemon<'_> {
    let config = format!("{}[packets]\ndevices = [\"outside\"]\n", stage::by_certificate(cluster, 1));
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    daemon
}

/// The name of the server that replies to a datagram from the one port.
fn answered(bed: &Bed) -> Option<String> {
    let (from, to) = (CLIENT.parse().unwrap(), DIALLED.parse().unwrap());
    let question = Question::new(Transport::Udp, to).from(from);
    match bed.asker(OUTSIDE).unwrap().ask(question).unwrap() {
        Outcome::Answered { by, .. } => Some(by),
        _ => None,
    }
}

#[test]
fn flows_without_a_backend_are_reported_by_their_fate() {
    let cluster = cluster();
    let (api, bed) = (cluster.api(0).unwrap(), cluster.bed());
    let ports = json!([{"name": "tcp", "port": 80, "targetPort": 8080}, {"name": "udp", "protocol": "UDP", "port": 80, "targetPort": 8080}]);
    service(
        &api,
        "web",
        &json!({"selector": {"app": "web"}, "externalIPs": ["203.0.113.7"], "ports": ports}),
    );
    diagnosed::pods(&api, &PODS);
    let at = |pod: &Pod<'_>| -> SocketAddr { format!("{}:8080", pod.address).parse().unwrap() };
    let _servers =
        PODS.map(|pod| bed.serve_seen_source(Location::far("pod"), pod.name, &[at(&pod)]).unwrap());
    let daemon = daemon(&cluster);
    let by = until(SOON, "an answer", || Ok(answered(bed))).unwrap();
    let mut client = bed.asker(OUTSIDE).unwrap();
    let held = client.hold(DIALLED.parse().unwrap(), None, HELD).unwrap();
    assert_eq!(held, HeldConnections { alive: HELD, ..HeldConnections::default() });
    pause(STREAM);
    assert_eq!(answered(bed).as_deref(), Some(&*by), "it stays with one");
    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis { service: "default/web", findings: &["flows.stale ok"], ..WELL },
    );
    let gone = PODS.iter().find(|pod| pod.name == by).unwrap();
    gone.gone(&api).unwrap();
    let said = format!("former backends: {}", at(gone));
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            findings: &["flows.stale info"],
            says: &[
                "Nothing is wrong",
                &said,
                "1 by UDP get another one within a second, with their next datagram",
            ],
            ..WELL
        },
    );
    assert!(!text.contains("slices.stale"), "{text}");
    // The stated effect is real: from the same port, another server replies.
    until(SOON, "an answer of somebody else", || Ok(answered(bed).filter(|name| *name != by))).unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            findings: &["flows.stale info"],
            says: &[&said],
            ..WELL
        },
    );
    assert!(!text.contains("by UDP"), "its conversation has moved on: {text}");
    assert_eq!(
        client.try_held().unwrap(),
        HeldConnections { alive: HELD, ..HeldConnections::default() },
        "connections are not ended"
    );
}

#[test]
fn silent_dns_servers_are_reported_by_address() {
    let cluster = cluster();
    let (api, bed) = (cluster.api(0).unwrap(), cluster.bed());
    let ports = json!([{"protocol": "UDP", "port": 53, "targetPort": 5353}]);
    service(&api, "names", &json!({"selector": {"app": "names"}, "ports": ports}));
    diagnosed::pods(
        &api,
        &[pod("default/names-1", "names", "10.1.0.2"), pod("default/names-2", "names", "10.1.0.4")],
    );
    let name_server =
        |at: &str| bed.serve(Location::far("pod"), Role::Dns, "10.96.0.1", at.parse().unwrap()).unwrap();
    let first = name_server("10.1.0.2:5353");
    let second = name_server("10.1.0.4:5353");
    let daemon = daemon(&cluster);
    expect(&daemon, &ExpectedDiagnosis { service: "default/names", findings: &["probe.udp ok"], ..WELL });
    drop(second);
    expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/names",
            first: "probe.udp",
            exit: 1,
            next: "Look at the log of those pods",
            findings: &["probe.udp warning", "verdict ok"],
            says: &["1 of 2 backends do not answer as name servers: 10.1.0.4:5353 refuses"],
        },
    );
    drop(first);
    expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/names",
            first: "probe.udp",
            exit: 3,
            next: "Look at the log of those pods",
            findings: &["probe.udp error", "verdict ok"],
            says: &["2 of 2 backends do not answer as name servers"],
        },
    );
}
