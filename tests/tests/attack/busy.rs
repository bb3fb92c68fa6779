//! Diagnoses a daemon whose services change all the time.
//!
//! Invariant: the attacker changes services in a loop until the last answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use holdfast_fixtures::clock::wait_until;
use holdfast_tests::bed::Bed;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::fake::Cluster;
use serde_json::{Value, json};

use crate::stage::Apiserver;

const ANSWERS: usize = 20;

/// The diagnosed services: one that changes in a loop, and one that never does.
const NAMES: [&str; 2] = ["default/busy-0", "default/busy-200"];

/// How many services change one after the other.
const SERVICES: u8 = 200;

/// The service that never changes.
const CALM: u8 = SERVICES;

fn service(number: u8) -> Value {
    let address = format!("10.96.1.{}", number + 1);
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"namespace": "default", "name": format!("busy-{number}")},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                 "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]},
    })
}

fn slice(number: u8, backend: u8) -> Value {
    let name = format!("busy-{number}");
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "namespace": "default", "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": [format!("10.0.1.{backend}")], "conditions": {"ready": true}}],
    })
}

/// Ends the changes when it is dropped, so that a failing test ends as well.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives every service another backend again and again. The first service, which is diagnosed, changes at each turn.
fn change(cluster: &Cluster, ends: &AtomicBool, changes: &AtomicU64) {
    for turn in (1..=250_u8).cycle() {
        for number in [turn % SERVICES, 0] {
            cluster.apply(slice(number, turn)).unwrap();
            changes.fetch_add(1, Ordering::Relaxed);
        }
        if ends.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Diagnoses once, and returns what is wrong with the answer.
fn ask(daemon: &Daemon<'_>, name: &str) -> Vec<String> {
    let (_, said) = daemon.answer(&["diagnose", name, "--no-probe", "-o", "json"]).unwrap();
    let answer: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let is_of_the_table = |finding: &&Value| {
        let id = finding["id"].as_str().unwrap_or_default();
        ["view.", "verdict", "slices.counts", "self.maps", "self.ready"].iter().any(|it| id.starts_with(it))
    };
    let findings = answer["findings"].as_array().expect("findings");
    let wrong = findings.iter().filter(is_of_the_table).filter(|it| it["state"] == "error");
    wrong.map(|finding| format!("{name}: {finding}")).collect()
}

#[test]
fn diagnoses_are_answered_and_right_during_endless_changes() {
    let bed = Bed::new().unwrap();
    let apiserver = Apiserver::start(&bed);
    for number in 0..=CALM {
        apiserver.cluster.apply(service(number)).unwrap();
        apiserver.cluster.apply(slice(number, 1)).unwrap();
    }
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.configure(&apiserver.configure(&daemon)).unwrap();
    daemon.start().unwrap();
    wait_until("served", || NAMES.iter().all(|name| ask(&daemon, name).is_empty()));
    let (ends, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut wrong = Vec::new();
    thread::scope(|scope| {
        let _ending = Ending(&ends);
        scope.spawn(|| change(&apiserver.cluster, &ends, &changes));
        wait_until("at it", || changes.load(Ordering::Relaxed) > 1_000);
        let before = changes.load(Ordering::Relaxed);
        for number in 0..ANSWERS {
            wrong.extend(ask(&daemon, NAMES[number % NAMES.len()]));
        }
        let made = changes.load(Ordering::Relaxed) - before;
        assert!(made > ANSWERS as u64, "{made} changes during {ANSWERS} answers");
    });
    assert_eq!(wrong, Vec::<String>::new());
    assert!(daemon.is_ready(), "{}", daemon.logged());
}
