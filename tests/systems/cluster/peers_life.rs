//! The control plane of these tests: it starts, its parts can be stopped and started, and a stopped apiserver empties
//! the slice of `default/kubernetes`, as in the incident.

use std::time::Duration;

use holdfast_fixtures::clock::Stopwatch;
use holdfast_tests::bed::Layout;
use holdfast_tests::peers::{ADVERTISED, Cluster, Kind, Part, PeersError, SOON, Watch, WatchEvent, until};
use serde_json::{Value, json};

/// How soon the empty slice appears: a stopping apiserver writes it before it ends.
const FLAPS_WITHIN: Duration = Duration::from_secs(5);

/// The most stops of an apiserver until the empty slice appears.
const STOPS: usize = 4;

/// The slice with the apiservers' own addresses.
const KUBERNETES: &str = "default/kubernetes";

fn addresses(slice: &Value) -> Vec<&str> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints.filter_map(|endpoint| endpoint["addresses"][0].as_str()).collect()
}

#[test]
fn a_cluster_comes_up_and_goes() {
    let begin = Stopwatch::start();
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    println!("one apiserver and its controllers: ready after {:?}", begin.read());
    let api = cluster.api(0).unwrap();
    let version = api.request("GET", "version", None).unwrap().object().unwrap();
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("37")));
    let ready = || Ok(api.get(Kind::Slice, KUBERNETES)?.filter(|slice| !addresses(slice).is_empty()));
    let slice = until(SOON, "endpoints of default/kubernetes", ready).unwrap();
    assert_eq!(addresses(&slice), [ADVERTISED.to_string()]);
    let folder = cluster.folder().to_owned();
    drop(cluster);
    assert!(!folder.exists());
}

#[test]
fn a_killed_part_stays_away_until_it_is_started() {
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    let api = cluster.api(0).unwrap();
    api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: kept, labels: {by: test}}}").unwrap();
    cluster.kill(Part::Apiserver(0)).unwrap();
    assert!(matches!(api.get(Kind::Namespace, "kept"), Err(PeersError::Unreached { .. })));
    assert!(matches!(cluster.kill(Part::Apiserver(0)), Err(PeersError::NoPart(Part::Apiserver(0)))));
    cluster.stop(Part::Etcd).unwrap();
    cluster.start_part(Part::Etcd).unwrap();
    cluster.start_part(Part::Apiserver(0)).unwrap();
    let kept = api.get(Kind::Namespace, "kept").unwrap().unwrap();
    assert_eq!(kept["metadata"]["managedFields"][0]["manager"], "holdfast-tests");
}

#[test]
fn a_cluster_has_the_requested_parts() {
    let none = Cluster::start(Layout::default(), 0).unwrap_err();
    assert_eq!(none.to_string(), "0 apiservers; a cluster has 1 to 3");
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    assert!(matches!(cluster.api(1), Err(PeersError::NoPart(Part::Apiserver(1)))));
}

fn is_full(seen: &WatchEvent) -> bool {
    addresses(&seen.object) == [ADVERTISED.to_string()]
}

/// Apiservers with one advertised address share a lease, which the other one renews every ten seconds. If it does so
/// at that moment, no empty slice appears, so another stop may be needed.
fn emptied_by_a_stop(cluster: &Cluster, watch: &Watch) -> Option<WatchEvent> {
    let took = cluster.stop(Part::Apiserver(0)).unwrap();
    println!("SIGTERM took {took:?}");
    let empty = watch.find(FLAPS_WITHIN, "empty slice", |seen| !is_full(seen)).ok();
    if empty.is_none() {
        cluster.start_part(Part::Apiserver(0)).unwrap();
    }
    empty
}

/// The cause of the incident, in upstream's own code: a stopping apiserver removes the address that all of them share.
#[test]
fn stopping_one_of_two_apiservers_empties_the_slice_of_default_kubernetes() {
    let begin = Stopwatch::start();
    let cluster = Cluster::start(Layout::default(), 2).unwrap();
    println!("two apiservers and their controllers: ready after {:?}", begin.read());
    let api = cluster.api(1).unwrap();
    let watch = api.watch(Kind::Slice, KUBERNETES).unwrap();
    watch.find(SOON, "full slice", is_full).unwrap();
    let empty = (0..STOPS).find_map(|_| emptied_by_a_stop(&cluster, &watch)).unwrap();
    let (endpoints, ports) = (empty.object.get("endpoints"), empty.object.get("ports"));
    assert_eq!((endpoints, ports), (Some(&Value::Null), Some(&Value::Null)), "{empty:?}");
    let writer = &empty.object["metadata"]["managedFields"][0];
    assert_eq!(writer["manager"], "kube-apiserver");
    let back = watch.find(SOON, "full slice again", is_full).unwrap();
    let gap = back.after - empty.after;
    // The other apiserver reconciles every ten seconds, so the gap lasts up to that.
    println!("endpoints were null for {gap:?}");
}
