//! Diagnoses a daemon whose services change all the time.
//!
//! Invariant: the attacker changes services in a loop until the last answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_tests::bed::Bed;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::fake::Cluster;
use serde_json::{Value, json};

use crate::stage::{Apiserver, until};

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

/// Far longer than all answers may take, so that a failing test still ends.
const CHANGING: Duration = Duration::from_secs(180);

/// Gives every service another backend again and again. The first service, which is diagnosed, changes at each turn.
fn change(cluster: &Cluster, ends: &AtomicBool, changes: &AtomicU64) {
    let begun = Instant::now();
    for turn in (1..=250_u8).cycle() {
        for number in [turn % SERVICES, 0] {
            cluster.apply(slice(number, turn)).unwrap();
            changes.fetch_add(1, Ordering::Relaxed);
        }
        if ends.load(Ordering::Relaxed) || begun.elapsed() > CHANGING {
            return;
        }
    }
}

/// Diagnoses once: returns how long it took, and what is wrong with the answer.
fn ask(daemon: &Daemon<'_>, name: &str) -> (Duration, Vec<String>) {
    let begun = Instant::now();
    let (_, said) = daemon.answer(&["diagnose", name, "--no-probe", "-o", "json"]).unwrap();
    let took = begun.elapsed();
    let answer: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let is_of_the_table = |finding: &&Value| {
        let id = finding["id"].as_str().unwrap_or_default();
        ["view.", "verdict", "slices.counts", "self.maps", "self.ready"].iter().any(|it| id.starts_with(it))
    };
    let findings = answer["findings"].as_array().expect("findings");
    let wrong = findings.iter().filter(is_of_the_table).filter(|it| it["state"] == "error");
    (took, wrong.map(|finding| format!("{name}: {finding}")).collect())
}

#[test]
fn diagnoses_stay_right_and_timely_during_thousands_of_changes_a_second() {
    let bed = Bed::new().unwrap();
    let apiserver = Apiserver::start(&bed);
    for number in 0..=CALM {
        apiserver.cluster.apply(service(number)).unwrap();
        apiserver.cluster.apply(slice(number, 1)).unwrap();
    }
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.configure(&apiserver.configure(&daemon)).unwrap();
    daemon.start().unwrap();
    until("served", || NAMES.iter().all(|name| ask(&daemon, name).1.is_empty()));
    let (ends, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut slowest, mut wrong) = (Duration::ZERO, Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| change(&apiserver.cluster, &ends, &changes));
        until("at it", || changes.load(Ordering::Relaxed) > 1_000);
        let (begun, before) = (Instant::now(), changes.load(Ordering::Relaxed));
        for number in 0..ANSWERS {
            let (took, found) = ask(&daemon, NAMES[number % NAMES.len()]);
            slowest = slowest.max(took);
            wrong.extend(found);
        }
        let made = changes.load(Ordering::Relaxed) - before;
        ends.store(true, Ordering::Relaxed);
        println!("{made} changes in {:?}; the slowest answer took {slowest:?}", begun.elapsed());
    });
    assert!(slowest <= TEST_TIMEOUT, "{slowest:?}");
    assert_eq!(wrong, Vec::<String>::new());
    assert!(daemon.is_ready(), "{}", daemon.logged());
}
