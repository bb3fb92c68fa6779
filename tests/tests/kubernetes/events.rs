//! Events that the daemon writes to the cluster: one per trouble, a count for repetitions, none for ordinary changes.
//! No change waits for them.

use std::sync::Arc;

use holdfast_kubernetes::event_recorder::{EventCounts, Outcome};
use holdfast_tests::fake::{Fault, Kind, RequestFilter};
use serde_json::{Value, json};

use super::node::{Node, backend, service_object, slice_object, vip, web};

/// A node that writes Events, and their counters.
fn announcing(services: u8) -> (Node, Arc<EventCounts>) {
    let node = Node::serving(services);
    let counts = node.announce();
    (node, counts)
}

fn count(counts: &EventCounts, wanted: Outcome) -> u64 {
    counts.totals().find(|(outcome, _)| *outcome == wanted).map_or(0, |(_, count)| count)
}

/// Removes the endpoints without a sign of intent.
fn lose(node: &Node, number: u8) {
    node.cluster().apply(slice_object(&web(number), &[])).unwrap();
}

fn restore(node: &Node, number: u8) {
    node.cluster().apply(slice_object(&web(number), &[backend(number)])).unwrap();
}

/// The cluster's Events with this reason.
fn events(node: &Node, reason: &str) -> Vec<Value> {
    let all = node.cluster().objects(Kind::Events);
    all.into_iter().filter(|event| event["reason"] == reason).collect()
}

#[test]
fn a_hold_is_one_event_and_its_end_another() {
    let (mut node, counts) = announcing(2);
    lose(&node, 0);
    node.wait("the hold is told", |node| events(node, "BackendsHeld").len() == 1);
    let held = events(&node, "BackendsHeld").remove(0);
    assert_eq!(held["type"], "Warning");
    assert_eq!(
        held["regarding"],
        json!({"apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "web-0",
               "uid": "uid-of-default.web-0"})
    );
    let note = held["note"].as_str().unwrap();
    // The source has just reconnected, because it started.
    let expected = "its endpoints are gone (resync); connections still go to the last 1 backends, until ";
    assert!(note.starts_with(expected), "{note}");
    restore(&node, 0);
    node.wait("its end is told", |node| events(node, "BackendsReturned").len() == 1);
    assert_eq!(node.cluster().objects(Kind::Events).len(), 2);
    node.wait("both are counted", |_| count(&counts, Outcome::Written) == 2);
    node.check();
}

#[test]
fn the_same_hold_again_is_a_count_of_the_same_event() {
    let (mut node, counts) = announcing(1);
    for round in 1..=3 {
        lose(&node, 0);
        node.wait("the hold is told", |_| count(&counts, Outcome::Written) == 2 * round - 1);
        restore(&node, 0);
        node.wait("its end is told", |_| count(&counts, Outcome::Written) == 2 * round);
    }
    let held = events(&node, "BackendsHeld");
    assert_eq!(held.len(), 1);
    assert_eq!(held[0]["series"]["count"], 3);
    let (first, last) = (&held[0]["eventTime"], &held[0]["series"]["lastObservedTime"]);
    assert!(last.as_str() > first.as_str(), "{first} {last}");
}

#[test]
fn ordinary_changes_write_no_event() {
    let (mut node, counts) = announcing(2);
    for round in 0..4_u8 {
        node.cluster().apply(slice_object(&web(0), &[backend(round + 10), backend(round + 20)])).unwrap();
        node.cluster().apply(service_object(&web(2 + round), vip(2 + round))).unwrap();
        node.wait("both changes are served", |node| {
            node.serves(0, &[backend(round + 10), backend(round + 20)]) && node.has(2 + round)
        });
    }
    node.check();
    assert!(counts.totals().all(|(_, count)| count == 0));
    lose(&node, 0);
    node.wait("the hold is told", |_| count(&counts, Outcome::Written) == 1);
    assert_eq!(node.server().request_count(RequestFilter::for_kind(Kind::Events)), 1);
}

#[test]
fn a_rejected_event_is_counted_and_dropped() {
    let (mut node, counts) = announcing(2);
    node.server().once(RequestFilter::create(Kind::Events), Fault::status(403, "Forbidden"));
    lose(&node, 0);
    node.wait("it is refused", |_| count(&counts, Outcome::Failed) == 1);
    assert!(node.log().contains("the cluster does not take Events"), "{}", node.log());
    node.server().always(RequestFilter::create(Kind::Events), Fault::Close);
    restore(&node, 0);
    node.wait("nobody answers", |_| count(&counts, Outcome::Failed) == 2);
    node.server().heal();
    lose(&node, 1);
    node.wait("one is taken", |_| count(&counts, Outcome::Written) == 1);
    let all = node.cluster().objects(Kind::Events);
    assert_eq!(all.len(), 1, "what was lost is not written later: {all:?}");
    assert_eq!(all[0]["regarding"]["name"], "web-1");
}

#[test]
fn a_malformed_object_gets_an_event_with_the_reason() {
    let (mut node, _) = announcing(1);
    let mut slice = slice_object(&web(0), &[backend(1)]);
    slice["metadata"]["name"] = "web-0-broken".into();
    slice["addressType"] = "IPv9".into();
    node.cluster().apply(slice).unwrap();
    node.wait("it is told", |node| events(node, "NotUnderstood").len() == 1);
    let told = events(&node, "NotUnderstood").remove(0);
    assert_eq!(told["regarding"]["kind"], "EndpointSlice");
    assert!(told["note"].as_str().unwrap().contains("IPv9"), "{told}");
}

/// A tenant's conflict is enough to cause an Event, and only the server of Events may be at fault.
#[test]
fn a_failed_event_marks_no_apiserver_as_unhealthy() {
    let patience = Fault::Status { code: 503, reason: "ServiceUnavailable", retry_after: Some(60) };
    for fault in
        [patience, Fault::status(504, "Timeout"), Fault::status(429, "TooManyRequests"), Fault::Close]
    {
        let (mut node, counts) = announcing(1);
        node.server().always(RequestFilter::create(Kind::Events), fault.clone());
        lose(&node, 0);
        node.wait("it is not taken", |_| count(&counts, Outcome::Failed) == 1);
        let row = node.access.view().endpoints.remove(0);
        assert_eq!(row.state.as_str(), "healthy", "{fault:?}");
        assert_eq!(node.access.view().failovers, 0, "{fault:?}");
        restore(&node, 0);
        node.check();
    }
}
