//! Protobuf and JSON: the same objects lead to the same events. An object or a kind that cannot be read in protobuf is
//! read in JSON.

use std::collections::BTreeMap;

use holdfast_config::Encodings;
use holdfast_core::event::Event;
use holdfast_kubernetes::apiserver::Encoding;
use holdfast_kubernetes::source::{Kubernetes, Resource, SourceSettings};
use holdfast_tests::fake::{Fault, Kind, RequestFilter};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::node::{Node, Setup, backend, ms, quick, slice_object, web};

const SLICES: RequestFilter = RequestFilter::list(Kind::Slices);

fn settings(encodings: Encodings) -> SourceSettings {
    SourceSettings { timing: quick(), encodings, ..SourceSettings::default() }
}

/// A slice that only JSON can express.
fn only_in_json(nth: u8, address: std::net::IpAddr) -> Value {
    let mut object = slice_object(&web(nth), &[address]);
    object["onlyInJson"] = json!(true);
    object
}

fn encoding(node: &Node) -> Option<Encoding> {
    node.watch(Resource::Slices).encoding
}

#[test]
fn protobuf_is_used_if_the_server_has_it_and_json_otherwise() {
    for (wanted, has_protobuf, expected) in [
        (Encodings::Auto, true, Encoding::Protobuf),
        (Encodings::Auto, false, Encoding::Json),
        (Encodings::Protobuf, true, Encoding::Protobuf),
        (Encodings::Json, true, Encoding::Json),
    ] {
        let setup = Setup::new(1);
        setup.servers[0].speak_protobuf(has_protobuf);
        setup.services(2);
        let mut node = Node::start_with(setup, settings(wanted));
        node.wait_until_synced();
        node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
        node.wait("the change is served", |node| node.serves(0, &[backend(9)]));
        assert_eq!(encoding(&node), Some(expected), "{wanted} of a server with protobuf: {has_protobuf}");
        node.check();
    }
}

#[test]
fn a_client_of_protobuf_alone_reports_a_server_without_it() {
    let setup = Setup::new(1);
    setup.servers[0].speak_protobuf(false);
    setup.services(1);
    let mut node = Node::start_with(setup, settings(Encodings::Protobuf));
    node.wait("the refusal is shown", |node| {
        node.watch(Resource::Slices).last_error.is_some_and(|error| error.text.contains("406"))
    });
    node.server().speak_protobuf(true);
    node.wait_until_synced();
    node.check();
}

#[test]
fn an_object_unreadable_in_protobuf_is_fetched_as_json_and_served() {
    let setup = Setup::new(1);
    setup.services(3);
    setup.cluster.apply(only_in_json(1, backend(7))).unwrap();
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert!(node.serves(1, &[backend(7)]), "in a list");
    node.cluster().apply(only_in_json(2, backend(8))).unwrap();
    node.wait("in a watch", |node| node.serves(2, &[backend(8)]));
    let watch = node.watch(Resource::Slices);
    assert_eq!(
        (watch.refetched, watch.bad, watch.restarts, watch.encoding),
        (2, 0, 0, Some(Encoding::Protobuf))
    );
    let asked = |asked| node.server().request_count(asked);
    assert_eq!(
        (asked(SLICES), asked(RequestFilter::get(Kind::Slices))),
        (1, 2),
        "no other list, no other object"
    );
    node.check();
}

#[test]
fn an_unreadable_object_deleted_before_its_fetch_is_gone() {
    let mut node = Node::serving(2);
    node.server().once(RequestFilter::get(Kind::Slices), Fault::Slow(ms(300)));
    node.cluster().apply(only_in_json(1, backend(7))).unwrap();
    node.wait("it is asked for", |node| node.server().request_count(RequestFilter::get(Kind::Slices)) == 1);
    node.cluster().delete(Kind::Slices, "default/web-1-1").unwrap();
    node.wait("it goes", |node| node.watch(Resource::Slices).objects == 1);
    // All changes wait for the object that is being fetched.
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("the change is served", |node| node.serves(0, &[backend(9)]));
    let watch = node.watch(Resource::Slices);
    assert_eq!((watch.refetched, watch.bad, watch.objects, watch.restarts), (1, 0, 1, 0));
    assert!(node.rejected().is_empty() && encoding(&node) == Some(Encoding::Protobuf));
}

#[test]
fn an_object_without_a_name_switches_its_kind_to_json() {
    let mut node = Node::serving(2);
    node.server().say(Kind::Slices, "{\"type\":\"ADDED\",\"object\":{\"kind\":\"EndpointSlice\"}}\n");
    node.wait("JSON is asked for", |node| encoding(node) == Some(Encoding::Json));
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("the change is served", |node| node.serves(0, &[backend(9)]));
    node.check();
}

#[test]
fn an_object_whose_fetch_fails_switches_its_kind_to_json() {
    for fault in [Fault::status(403, "Forbidden"), Fault::Close, Fault::say("<html>"), Fault::Silent] {
        let mut node = Node::serving(2);
        node.server().always(RequestFilter::get(Kind::Slices), fault);
        node.cluster().apply(only_in_json(1, backend(7))).unwrap();
        node.wait("it is served", |node| node.serves(1, &[backend(7)]));
        assert_eq!(encoding(&node), Some(Encoding::Json));
        assert_eq!(node.watch(Resource::Services).encoding, Some(Encoding::Protobuf), "other kinds stay");
        node.check();
    }
}

#[test]
fn many_unreadable_objects_switch_their_kind_to_json() {
    let setup = Setup::new(1);
    setup.services(40);
    for nth in 0..40 {
        setup.cluster.apply(only_in_json(nth, backend(nth))).unwrap();
    }
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert!((0..40).all(|nth| node.serves(nth, &[backend(nth)])));
    assert_eq!(node.server().request_count(RequestFilter::get(Kind::Slices)), 0);
    assert_eq!(encoding(&node), Some(Encoding::Json));
}

#[test]
fn a_client_of_protobuf_alone_rejects_unreadable_objects_by_name() {
    let setup = Setup::new(1);
    setup.services(2);
    setup.cluster.apply(only_in_json(1, backend(7))).unwrap();
    setup.servers[0].always(RequestFilter::get(Kind::Slices), Fault::status(403, "Forbidden"));
    let mut node = Node::start_with(setup, settings(Encodings::Protobuf));
    node.wait_until_synced();
    assert!(node.serves(0, &[backend(0)]));
    let rejected = node.rejected();
    assert!(rejected.len() == 1 && format!("{rejected:?}").contains("no protobuf"), "{rejected:?}");
}

#[test]
fn a_watch_with_broken_frames_resumes_as_json_from_its_version() {
    for garbage in ["<html>maintenance</html>\n", "{\"type\":\"NEWS\",\"object\":{}}\n"] {
        let mut node = Node::serving(2);
        node.server().say(Kind::Slices, garbage);
        node.wait("JSON is asked for", |node| encoding(node) == Some(Encoding::Json));
        let said = node.log().matches("requesting JSON for a while").count();
        assert_eq!(said, 1, "{}", node.log());
        node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
        node.wait("the change is served", |node| node.serves(0, &[backend(9)]));
        assert_eq!(node.server().request_count(SLICES), 1, "no other list");
        node.check();
    }
}

#[test]
fn a_list_with_broken_framing_is_requested_as_json() {
    for bytes in [&b"<html>"[..], b"k8s\0\x12\x02\x0b\x0b", b"k8s\0\x12\x00"] {
        let setup = Setup::new(1);
        setup.services(2);
        setup.servers[0].once(SLICES, Fault::SayProtobuf(bytes.to_vec()));
        let mut node = Node::start(setup);
        node.wait_until_synced();
        assert_eq!((encoding(&node), node.server().request_count(SLICES)), (Some(Encoding::Json), 2));
        node.check();
    }
}

#[test]
fn protobuf_is_tried_again_after_a_while() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].once(SLICES, Fault::SayProtobuf(b"<html>".to_vec()));
    let timing = holdfast_kubernetes::source::Timing { json_fallback_time: ms(1), ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    assert_eq!(encoding(&node), Some(Encoding::Protobuf));
}

// === The same facts

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn pick(&mut self, values: &[Value]) -> Value {
        values[self.below(values.len())].clone()
    }
}

/// Removes random fields and values of an object, so that every combination of absences occurs.
fn thin(value: &mut Value, dice: &mut Dice, depth: usize) {
    match value {
        Value::Object(fields) => {
            if depth > 1 {
                // An apiserver always writes a port's number.
                fields.retain(|key, _| key == "port" || dice.below(12) > 0);
            }
            fields.values_mut().for_each(|field| thin(field, dice, depth + 1));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| thin(item, dice, depth + 1)),
        _ => {}
    }
}

fn metadata(name: &str, dice: &mut Dice) -> Value {
    json!({
        "name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "generation": dice.pick(&[Value::Null, json!(3), json!(9_000_000_000_i64)]),
        "creationTimestamp": "2026-01-08T11:11:55Z",
        "deletionTimestamp": dice.pick(&[Value::Null, json!("2026-02-08T11:11:55Z")]),
        "labels": {"app": "é", "kubernetes.io/service-name": dice.pick(&[json!(""), json!("web")])},
        "annotations": {"holdfast.io/on-empty": "hold", "holdfast.io/weights": dice.pick(&[json!("10.0.0.1=3"), json!("?")]),
            "holdfast.io/maglev": "true", "holdfast.io/session-affinity-prefix": "ipv6=56",
            "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-08T11:11:55.123Z"},
        "finalizers": ["a/b", "", "c/d"],
        "managedFields": [
            {"manager": "kcm", "operation": "Update", "apiVersion": "v1", "time": "2026-01-08T11:11:55Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}},
            {"manager": "ccm", "operation": "Update", "time": "2026-01-09T00:00:00Z", "subresource": "status"},
        ],
    })
}

fn random_service(name: &str, dice: &mut Dice) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": metadata(name, dice),
        "spec": {
            "type": dice.pick(&[json!("ClusterIP"), json!("NodePort"), json!("LoadBalancer"), json!("")]),
            "clusterIP": dice.pick(&[json!("10.96.0.7"), json!("10.96.0.8"), json!("None"), json!("")]),
            "clusterIPs": ["10.96.0.7", "fd00::7"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
            "externalIPs": ["198.51.100.7"], "selector": {"app": "web"},
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": dice.pick(&[json!(0), json!(30_080)])},
                {"name": "dns", "protocol": "UDP", "port": dice.pick(&[json!(53), json!(54), json!(55), json!(-1), json!(70_000)]), "targetPort": "dns"},
            ],
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": dice.pick(&[json!("Local"), json!("Cluster"), json!("")]),
            "sessionAffinity": dice.pick(&[json!("None"), json!("ClientIP")]),
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": dice.pick(&[json!(0), json!(60)])}},
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "loadBalancerClass": "a/b",
            "allocateLoadBalancerNodePorts": dice.pick(&[json!(true), json!(false)]), "healthCheckNodePort": 30_100,
            "trafficDistribution": "PreferClose", "publishNotReadyAddresses": true,
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "203.0.113.7", "ipMode": dice.pick(&[json!("VIP"), json!("Proxy")])}, {"hostname": "lb.example"},
        ]}},
    })
}

fn random_slice(name: &str, dice: &mut Dice) -> Value {
    let endpoint = |dice: &mut Dice| {
        json!({
            "addresses": [dice.pick(&[json!("10.0.0.1"), json!("10.0.0.2"), json!("fd00::1"), json!("x"), json!("")]), "10.9.9.9"],
            "conditions": {"ready": dice.pick(&[json!(true), json!(false)]), "serving": true,
                "terminating": dice.pick(&[json!(true), json!(false)])},
            "nodeName": dice.pick(&[json!("n1"), json!("")]), "zone": dice.pick(&[json!("a"), json!("")]),
            "hints": {"forZones": [{"name": "a"}, {"name": ""}], "forNodes": [{"name": "n1"}]},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": dice.pick(&[json!("pod"), json!("")]),
                "uid": "7c8d4a2e-0000-4000-8000-000000000001"},
            "hostname": "h", "deprecatedTopology": {"k": "v"},
        })
    };
    let endpoints: Vec<Value> = (0..1 + dice.below(4)).map(|_| endpoint(dice)).collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata(name, dice),
        "addressType": dice.pick(&[json!("IPv4"), json!("IPv4"), json!("IPv6"), json!("IPv4"), json!("FQDN"), json!("?")]),
        "endpoints": dice.pick(&[json!(endpoints), Value::Null]),
        "ports": [{"name": dice.pick(&[json!("http"), json!("")]), "protocol": "TCP", "appProtocol": "h2c",
            "port": dice.pick(&[json!(80), json!(81), json!(82), json!(0), json!(-7), json!(70_000)])}],
    })
}

/// The source's events for each object of a cluster.
fn told(setup: &Setup, encodings: Encodings) -> BTreeMap<String, Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let source = Kubernetes::new(setup.access(setup.apiserver()), settings(encodings));
        let view = source.view();
        let (events_out, mut events) = mpsc::channel(64);
        let (nodes_out, _nodes) = mpsc::channel(1);
        let running = tokio::spawn(source.run(events_out, nodes_out));
        let mut told = BTreeMap::<String, Vec<String>>::new();
        'told: while let Some(group) = events.recv().await {
            for event in group {
                let object = match &event {
                    Event::ServiceApplied(facts) => format!("Service {}", facts.key),
                    Event::SliceApplied(facts) => format!("EndpointSlice {}", facts.key),
                    Event::Rejected(rejection) => rejection.object.to_string(),
                    Event::Synced(_) => break 'told,
                    _ => continue,
                };
                told.entry(object).or_default().push(format!("{event:#?}"));
            }
        }
        let expected = if encodings == Encodings::Json { Encoding::Json } else { Encoding::Protobuf };
        assert!(view.current().iter().all(|watch| watch.encoding == Some(expected) && watch.refetched == 0));
        running.abort();
        told
    })
}

#[test]
fn every_object_leads_to_the_same_facts_in_both_encodings() {
    let setup = Setup::new(1);
    let mut dice = Dice(7);
    for nth in 0..1_500 {
        for mut object in
            [random_service(&format!("s{nth}"), &mut dice), random_slice(&format!("e{nth}"), &mut dice)]
        {
            if nth > 0 {
                thin(&mut object, &mut dice, 0);
            }
            // Without a name there is nothing to compare.
            object["metadata"]["name"] = json!(format!("n{nth}"));
            object["metadata"]["namespace"] = json!("default");
            setup.cluster.apply(object).unwrap();
        }
    }
    let (json, protobuf) = (told(&setup, Encodings::Json), told(&setup, Encodings::Protobuf));
    assert_eq!(json.len(), protobuf.len());
    for kind in ["ServiceApplied", "SliceApplied", "Rejected"] {
        let count = json.values().flatten().filter(|event| event.starts_with(kind)).count();
        assert!(count > 200, "only {count} {kind}");
    }
    for (object, events) in &json {
        assert_eq!(Some(events), protobuf.get(object), "{object}");
    }
}
