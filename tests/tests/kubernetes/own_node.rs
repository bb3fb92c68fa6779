//! The own Node gives the zone, and nothing waits for it.

use std::time::Duration;

use holdfast_config::NodeName;
use holdfast_kubernetes::source::{Resource, SourceSettings, Timing};
use holdfast_tests::fake::{Fault, Kind, RequestFilter};
use serde_json::json;

use crate::node::{Node, Setup, backend, ms, quick, slice_object, web};

/// A node whose Node object has this fault, with this interval of retries.
fn start(fault: Fault, node_wait: Duration) -> Node {
    let setup = Setup::new(1);
    setup.services(2);
    let labels = json!({"topology.kubernetes.io/zone": "z1"});
    setup.cluster.apply(json!({"kind": "Node", "metadata": {"name": "n1", "labels": labels}})).unwrap();
    setup.servers[0].always(RequestFilter::for_kind(Kind::Nodes), fault);
    let node = NodeName::from_host_name("n1").ok();
    let timing = Timing { absent_retry: node_wait, ..quick() };
    Node::start_with(setup, SourceSettings { timing, node, ..SourceSettings::default() })
}

/// Checks that services are served and followed meanwhile, that the log reports it once, and that the zone comes as
/// soon as it can.
#[track_caller]
fn check(name: &str, fault: Fault, words: &str) {
    let mut node = start(fault, ms(2_000));
    node.wait_until_synced();
    node.guard(0);
    node.cluster().apply(slice_object(&web(1), &[backend(9)])).unwrap();
    node.wait("followed", |node| node.serves(1, &[backend(9)]));
    node.wait("told", |node| node.last_error(Resource::Node).contains(words));
    let nodes = RequestFilter::for_kind(Kind::Nodes);
    node.wait("asked again", |node| node.server().request_count(nodes) >= 3);
    assert_eq!(node.log().matches("Node object cannot be read").count(), 1, "{name}: {}", node.log());
    assert!(node.zones().is_empty(), "{name}");
    node.server().heal();
    node.server().reset_connections();
    node.wait("the zone", |node| node.zones().last() == Some(&Some("z1".into())));
    node.wait("told again", |node| node.log().contains("Node object can be read"));
    node.check();
}

#[test]
fn an_unreadable_node_object_delays_nothing() {
    check("500", Fault::status(500, "InternalError"), "InternalError");
    let throttle = Fault::Status { code: 429, reason: "TooManyRequests", retry_after: Some(1) };
    check("429", throttle, "TooManyRequests");
}

#[test]
fn an_unanswered_node_request_delays_nothing() {
    check("silent", Fault::Silent, "accepts but does not answer");
    check("silent body", Fault::SilentBody, "nothing came");
}

#[test]
fn an_unreadable_node_object_is_retried_with_backoff() {
    let mut node = start(Fault::status(500, "InternalError"), Duration::from_secs(60));
    node.wait_until_synced();
    let nodes = RequestFilter::for_kind(Kind::Nodes);
    node.wait("asked again", |node| node.server().request_count(nodes) >= 2);
    // The waits double; without them hundreds would follow.
    node.live(ms(3_000));
    let asked = node.server().request_count(nodes);
    assert!(asked <= 7, "{asked} requests");
}

#[test]
fn services_wait_briefly_for_the_zone() {
    let setup = Setup::new(1);
    setup.services(1);
    let labels = json!({"topology.kubernetes.io/zone": "z1"});
    setup.cluster.apply(json!({"kind": "Node", "metadata": {"name": "n1", "labels": labels}})).unwrap();
    setup.servers[0].always(RequestFilter::list(Kind::Nodes), Fault::Slow(ms(200)));
    let node = NodeName::from_host_name("n1").ok();
    // Long enough for an answer on a busy machine.
    let timing = Timing { zone_wait_max: Duration::from_secs(10), ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, node, ..SourceSettings::default() });
    node.wait("something is served", |node| node.has(0));
    assert_eq!(node.zones(), [Some("z1".into())], "before anything was chosen by it");
}
