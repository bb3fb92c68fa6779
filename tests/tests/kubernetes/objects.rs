//! Malformed objects in lists and watches: each is rejected alone, and harms no other.

use std::net::IpAddr;

use holdfast_host::logging::messages::OBJECT_NOT_UNDERSTOOD;
use holdfast_kubernetes::source::{Resource, SourceSettings};
use holdfast_tests::fake::{Fault, Kind, RequestFilter};
use serde_json::{Value, json};

use crate::node::{Node, Setup, backend, quick, service_object, slice_object, vip, web};

/// The slice of `web-0` with a wrong value at one path.
fn wrong(pointer: &str, value: Value) -> Value {
    let mut object = slice_object(&web(0), &[backend(0)]);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

/// Malformed slices, each with its error.
fn malformed() -> Vec<(&'static str, Value)> {
    vec![
        ("endpoints are text", wrong("/endpoints", json!("GARBAGE"))),
        ("ports are a number", wrong("/ports", json!(17))),
        ("an unknown family", wrong("/addressType", json!("GARBAGE"))),
        ("a port of 70000", wrong("/ports", json!([{"name": "http", "port": 70_000}]))),
        ("labels are a list", wrong("/metadata/labels", json!(["GARBAGE"]))),
        ("endpoints are nested too deep", wrong("/endpoints", json!([{"addresses": {"GARBAGE": []}}]))),
    ]
}

#[test]
fn a_malformed_object_in_a_list_rejects_itself() {
    for (name, object) in malformed() {
        let setup = Setup::new(1);
        setup.services(2);
        setup.cluster.apply(object).unwrap();
        let mut node = Node::start(setup);
        node.wait_until_synced();
        assert!(node.serves(1, &[backend(1)]), "{name}: the others are served");
        check_named(&mut node, name, "default/web-0-1");
        assert_eq!(
            node.server().request_count(RequestFilter::list(Kind::Slices)),
            1,
            "{name}: no other list"
        );
    }
}

#[test]
fn a_malformed_object_in_a_watch_keeps_its_last_good_version() {
    for (name, object) in malformed() {
        let mut node = Node::serving(2);
        node.guard(0);
        node.cluster().apply(object).unwrap();
        node.wait(name, |node| node.watch(Resource::Slices).bad == 1);
        node.cluster().apply(slice_object(&web(1), &[backend(9)])).unwrap();
        node.wait("the next event is served", |node| node.serves(1, &[backend(9)]));
        assert!(node.serves(0, &[backend(0)]), "{name}: the last good version is served");
        check_named(&mut node, name, "default/web-0-1");
        node.cluster().apply(slice_object(&web(0), &[backend(8)])).unwrap();
        node.wait("the corrected slice is served", |node| node.serves(0, &[backend(8)]));
        assert_eq!((node.watch(Resource::Slices).bad, node.rejected().len()), (0, 0), "{name}");
        node.check();
        assert_eq!(
            node.server().request_count(RequestFilter::watch(Kind::Slices)),
            1,
            "{name}: the watch goes on"
        );
    }
}

#[test]
fn a_last_good_version_survives_a_list() {
    let mut node = Node::serving(2);
    node.hold_nothing(0);
    node.guard(0);
    node.server().stop();
    node.cluster().apply(wrong("/endpoints", json!("GARBAGE"))).unwrap();
    node.cluster().apply(slice_object(&web(1), &[backend(9)])).unwrap();
    node.cluster().compact();
    node.server().start_again().unwrap();
    node.wait("the later list is served", |node| node.serves(1, &[backend(9)]));
    assert!(node.serves(0, &[backend(0)]), "the last good version is served");
    check_named(&mut node, "in a later list", "default/web-0-1");
    let watches = node.server().request_count(RequestFilter::watch(Kind::Slices));
    node.server().end_watches(Kind::Slices);
    node.wait("watched again", |node| {
        node.server().request_count(RequestFilter::watch(Kind::Slices)) > watches && node.is_watched()
    });
    assert!(node.serves(0, &[backend(0)]));
    node.cluster().delete(Kind::Slices, "default/web-0-1").unwrap();
    node.wait("the deleted slice has no effect", |node| node.serves(0, &[]));
    assert_eq!(node.rejected().len(), 0, "what is gone is not wrong any more");
}

#[test]
fn a_malformed_service_keeps_its_last_good_version() {
    let mut node = Node::serving(2);
    node.guard(0);
    let mut object = service_object(&web(0), vip(0));
    object["spec"]["ports"] = json!("GARBAGE");
    node.cluster().apply(object).unwrap();
    node.wait("the Service is rejected", |node| node.watch(Resource::Services).bad == 1);
    assert!(node.serves(0, &[backend(0)]));
    check_named(&mut node, "service", "default/web-0");
}

#[test]
fn a_bad_endpoint_is_left_out_alone() {
    let mut node = Node::serving(1);
    node.guard(0);
    let endpoints =
        json!([{"addresses": ["10.0.0.7"]}, {"addresses": ["GARBAGE"]}, {"addresses": ["10.0.0.8"]}]);
    node.cluster().apply(wrong("/endpoints", endpoints)).unwrap();
    node.wait("both good endpoints are served", |node| node.serves(0, &[backend(7), backend(8)]));
    check_named(&mut node, "an endpoint", "default/web-0-1");
}

#[test]
fn lists_that_are_null_are_empty() {
    let mut node = Node::serving(2);
    node.hold_nothing(0);
    node.guard(1);
    let mut object = wrong("/endpoints", Value::Null);
    object["ports"] = Value::Null;
    node.cluster().apply(object).unwrap();
    node.wait("the service has an empty list", |node| node.serves(0, &[]) && node.has(0));
    assert_eq!(node.rejected().len(), 0, "that is how apiservers write it");
    node.check_guard();
    let conditions =
        json!([{"addresses": ["10.0.0.7"], "conditions": null, "hints": null, "targetRef": null}]);
    node.cluster().apply(wrong("/endpoints", conditions)).unwrap();
    node.wait("the endpoint with null fields is served", |node| node.serves(0, &[backend(7)]));
    node.check();
}

#[test]
fn unknown_fields_are_ignored() {
    let mut node = Node::serving(1);
    node.guard(0);
    let mut object = wrong("/endpoints", json!([{"addresses": ["10.0.0.7"], "sinceVersion140": {"a": [1]}}]));
    object["newInVersion140"] = json!({"deep": [{"er": null}]});
    node.cluster().apply(object).unwrap();
    node.wait("the endpoint with unknown fields is served", |node| node.serves(0, &[backend(7)]));
    assert_eq!(node.rejected().len(), 0);
    node.check();
}

#[test]
fn a_huge_object_is_read() {
    let mut node = Node::serving(2);
    node.guard(1);
    let addresses: Vec<_> =
        (0..4_u8).flat_map(|high| (0..250_u8).map(move |low| IpAddr::from([10, 1, high, low]))).collect();
    let mut object = slice_object(&web(0), &addresses);
    object["metadata"]["annotations"] = json!({"note": "x".repeat(1 << 20)});
    node.cluster().apply(object).unwrap();
    node.wait("all endpoints of the huge slice are served", |node| node.backends(0).len() == 1_000);
    node.check();
}

#[test]
fn a_flood_of_malformed_objects_logs_a_few_lines() {
    let setup = Setup::new(1);
    setup.services(1);
    for number in 0..2_000 {
        let mut object = wrong("/endpoints", json!("GARBAGE"));
        object["metadata"]["name"] = json!(format!("bad-{number}"));
        setup.cluster.apply(object).unwrap();
    }
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert!(node.serves(0, &[backend(0)]));
    assert_eq!(node.watch(Resource::Slices).bad, 2_000);
    assert!(node.log().lines().count() < 40, "{}", node.log());
    assert!(node.log().len() < 10_000, "{}", node.log());
    assert_eq!(node.server().request_count(RequestFilter::watch(Kind::Slices)), 1);
}

#[test]
fn an_object_that_leaves_the_selector_is_removed() {
    let mut node = Node::serving(2);
    node.guard(1);
    let mut object = service_object(&web(0), vip(0));
    object["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    node.cluster().apply(object).unwrap();
    node.wait("the other proxy's service is gone", |node| !node.has(0));
    node.cluster().apply(service_object(&web(0), vip(0))).unwrap();
    node.wait("the service is back", |node| node.serves(0, &[backend(0)]));
    node.check();
}

#[test]
fn a_recreated_service_is_a_new_one() {
    let mut node = Node::serving(2);
    node.guard(1);
    node.server().stop();
    node.cluster().delete(Kind::Services, "default/web-0").unwrap();
    let mut object = service_object(&web(0), vip(7));
    object["metadata"]["uid"] = json!("another");
    node.cluster().apply(object).unwrap();
    node.server().start_again().unwrap();
    node.wait("the new service replaces the old one", |node| !node.has(0) && node.serves(7, &[backend(0)]));
    node.check();
}

#[test]
fn the_own_nodes_zone_is_read() {
    let setup = Setup::new(1);
    setup.services(1);
    let labels = |zone: &str| json!({"kind": "Node", "metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": zone}}});
    setup.cluster.apply(labels("zone-1")).unwrap();
    setup.cluster.apply(json!({"kind": "Node", "metadata": {"name": "node-b"}})).unwrap();
    let name = holdfast_config::NodeName::from_host_name("node-a").unwrap();
    let settings = SourceSettings { timing: quick(), node: Some(name), ..SourceSettings::default() };
    let mut node = Node::start_with(setup, settings);
    node.wait_until_synced();
    node.cluster().apply(labels("zone-2")).unwrap();
    node.wait("the node's new zone is told", |node| node.zones().len() == 2);
    assert_eq!(node.zones(), [Some("zone-1".into()), Some("zone-2".into())]);
}

#[test]
fn services_are_served_without_permission_to_read_nodes() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].always(RequestFilter::for_kind(Kind::Nodes), Fault::status(403, "Forbidden"));
    let name = holdfast_config::NodeName::from_host_name("node-a").unwrap();
    let settings = SourceSettings { timing: quick(), node: Some(name), ..SourceSettings::default() };
    let mut node = Node::start_with(setup, settings);
    node.wait_until_synced();
    assert!(node.log().contains("Node object cannot be read"), "{}", node.log());
    node.check();
}

/// Checks that the object is reported as rejected, and that the log names it once and without its body.
#[track_caller]
fn check_named(node: &mut Node, name: &str, object: &str) {
    let rejected = node.rejected();
    assert!(rejected.len() == 1 && rejected[0].0.contains(object), "{name}: {rejected:?}");
    assert_eq!(node.log().matches(OBJECT_NOT_UNDERSTOOD.text).count(), 1, "{name}: {}", node.log());
    let lines: Vec<String> =
        node.log().lines().filter(|line| line.contains("addressType\":")).map(str::to_owned).collect();
    assert!(lines.is_empty(), "{name}: a body is in the log: {lines:?}");
    assert!(node.log().len() < 5_000, "{name}: {}", node.log());
    node.check_guard();
}

crate::node::in_json_too! {
    a_malformed_object_in_a_list_rejects_itself,
    a_malformed_object_in_a_watch_keeps_its_last_good_version,
    a_last_good_version_survives_a_list,
    a_malformed_service_keeps_its_last_good_version,
    a_bad_endpoint_is_left_out_alone,
    lists_that_are_null_are_empty,
    unknown_fields_are_ignored,
    a_huge_object_is_read,
    a_flood_of_malformed_objects_logs_a_few_lines,
    an_object_that_leaves_the_selector_is_removed,
    a_recreated_service_is_a_new_one,
    the_own_nodes_zone_is_read,
    services_are_served_without_permission_to_read_nodes,
}
