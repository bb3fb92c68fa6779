//! Harm that a hostile or careless tenant's objects must not do to others.

use std::fmt::Write as _;
use std::time::Duration;

use holdfast_fixtures::clock::{pause, wait_until};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server};
use serde_json::Value;

use crate::stage::{nobody_dials, row, service, slice};

const BACKEND: &str = "192.0.2.1";
const VIP: &str = "10.96.0.10:80";

/// A bed with one server for backends.
fn bed_with_server() -> (Bed, Server) {
    let local = vec!["192.0.2.1/32"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let server = bed.serve(Location::NODE, Role::Tcp, "web", "192.0.2.1:8080".parse().unwrap()).unwrap();
    (bed, server)
}

/// The service's only port, with this name.
fn named_port(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{name: {name}, port: 80}}]}}\n"
    )
}

#[test]
fn a_port_renamed_before_its_slices_never_stops_answering() {
    let (bed, _server) = bed_with_server();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.write_manifest("service.yaml", &named_port("http")).unwrap();
    daemon.write_manifest("slice.yaml", &slice("web", "name: http, port: 8080", BACKEND)).unwrap();
    daemon.start().unwrap();
    let is = |port: &str, verdict: &str| {
        let row = row(&daemon, "10.96.0.10");
        (row["port_name"].as_str(), row["verdict"].as_str()) == (Some(port), Some(verdict))
    };
    wait_until("served", || is("http", "serving"));
    let mut client = bed.dial(Location::NODE, VIP.parse().unwrap()).unwrap();
    wait_until("dialled", || client.tally().unwrap().connected > 0);

    daemon.write_manifest("service.yaml", &named_port("web")).unwrap();
    wait_until("held", || is("web", "held"));
    // The slice controller may be this late.
    pause(Duration::from_secs(1));
    assert!(is("web", "held"), "{}", row(&daemon, "10.96.0.10"));
    daemon.write_manifest("slice.yaml", &slice("web", "name: web, port: 8080", BACKEND)).unwrap();
    wait_until("served again", || is("web", "serving"));
    let tally = client.tally().unwrap();
    assert!(tally.connected > 100 && tally.failed.is_empty(), "{tally:?}");
}

/// More than the API lists by name.
const NOISE: usize = 1_200;

/// Another tenant's services, with an annotation value that holdfast does not support.
fn noise() -> String {
    (0..NOISE).fold(String::new(), |mut text, number| {
        writeln!(
            text,
            "---\napiVersion: v1\nkind: Service\n\
             metadata: {{name: noise-{number}, namespace: tenant, annotations: {{holdfast.io/on-empty: loud}}}}\n\
             spec: {{clusterIP: 10.98.{}.{}, ports: [{{port: 80}}]}}",
            number / 250,
            number % 250 + 1
        )
        .unwrap();
        text
    })
}

fn rejected(daemon: &Daemon<'_>) -> Value {
    daemon.ask(&["services", "default/web"]).unwrap()
}

#[test]
fn a_tenants_noise_evicts_no_foreign_last_good_version_over_a_restart() {
    let (bed, _server) = bed_with_server();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let web = service("web", "10.96.0.10", BACKEND);
    daemon.write_manifest("web.yaml", &web).unwrap();
    daemon.start().unwrap();
    wait_until("served", || nobody_dials(&bed, VIP) == "web");
    daemon.write_manifest("noise.yaml", &noise()).unwrap();
    let bad = web.replace(&format!("[{{addresses: [{BACKEND}]}}]"), "nobody at all");
    assert_ne!(bad, web);
    daemon.write_manifest("web.yaml", &bad).unwrap();
    wait_until("rejected", || rejected(&daemon)["rejected_total"] == NOISE + 1);
    daemon.stop().unwrap();
    daemon.start().unwrap();
    wait_until("rejected again", || rejected(&daemon)["rejected_total"] == NOISE + 1);
    let row = row(&daemon, "10.96.0.10");
    assert_eq!((&row["verdict"], &row["reason"]), (&Value::from("serving"), &Value::Null), "{row}");
    assert_eq!(nobody_dials(&bed, VIP), "web");
}

/// Loopback, link-local and broadcast addresses.
const RESERVED: [&str; 3] = ["127.0.0.1", "169.254.169.254", "255.255.255.255"];

#[test]
fn a_tenant_takes_no_loopback_link_local_or_broadcast_address() {
    let (bed, _server) = bed_with_server();
    let _own = bed.serve(Location::NODE, Role::Tcp, "own", "127.0.0.1:9443".parse().unwrap()).unwrap();
    let claims = format!("externalIPs: [{}, 198.51.100.1], ports: [{{port: 9443}}]", RESERVED.join(", "));
    let thief = service("thief", "10.97.0.1", BACKEND).replace("ports: [{port: 80}]", &claims);
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.write_manifest("thief.yaml", &thief).unwrap();
    daemon.start().unwrap();
    wait_until("served where it may be", || nobody_dials(&bed, "198.51.100.1:9443") == "web");
    for address in RESERVED {
        let row = row(&daemon, address);
        assert_eq!((&row["verdict"], &row["reason"]), (&"unprogrammed".into(), &"address".into()), "{row}");
    }
    assert_eq!(nobody_dials(&bed, "127.0.0.1:9443"), "own");
}

#[test]
fn an_unsupported_kind_is_reported_once_for_all_its_objects() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let objects = |kind: &str| {
        format!(
            "apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: b}}\n"
        )
    };
    daemon.write_manifest("one.yaml", &objects("Endpoints")).unwrap();
    daemon.write_manifest("two.yaml", &objects("Endpoints")).unwrap();
    daemon.write_manifest("typo.yaml", &objects("Servise")).unwrap();
    daemon.start().unwrap();
    for kind in ["Endpoints", "Servise"] {
        let place = format!("{kind} (v1)");
        let is_it = |row: &&Value| row["place"] == *place;
        let named = || daemon.ask(&["services"]).unwrap()["rejected"].clone();
        wait_until("named", || named().as_array().unwrap().iter().any(|row| is_it(&row)));
        assert_eq!(named().as_array().unwrap().iter().filter(is_it).count(), 1, "{}", named());
        let logged = daemon.logged();
        let lines =
            logged.lines().filter(|line| line.contains(kind) && line.contains("a kind that is not read"));
        assert_eq!(lines.count(), 1, "{kind}: {logged}");
    }
}
