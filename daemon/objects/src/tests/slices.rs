//! `EndpointSlice`s and their endpoints.

use std::sync::Arc;

use holdfast_core::facts::{AddressType, Conditions, Rejection, SliceFacts};
use holdfast_core::limits;
use holdfast_core::weights::{Weight, Weights};
use serde_json::{Value, json};

use super::decode_slice;
use crate::Defaulting;

fn slice_with(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
    change(&mut object);
    object
}

#[track_caller]
fn good_slice(object: &Value) -> SliceFacts {
    let (facts, partial) = decode_slice(object, Defaulting::AsApiserver).expect("a legal slice");
    assert_eq!(partial, None);
    facts
}

#[track_caller]
fn check_slice_refused(object: &Value, expected: &str) {
    let rejection = decode_slice(object, Defaulting::AsApiserver).expect_err("must be refused");
    assert_eq!(&*rejection.reason, expected);
    assert_eq!(rejection.object.to_string(), "EndpointSlice default/web-1");
}

#[test]
fn a_slice_with_a_wrong_field_is_rejected() {
    let long = "n".repeat(254);
    check_slice_refused(
        &slice_with(|o| o["addressType"] = json!("IPX")),
        r#"addressType is "IPX"; IPv4, IPv6 and FQDN are legal"#,
    );
    check_slice_refused(
        &slice_with(|o| o["addressType"] = json!(null)),
        r#"addressType is ""; IPv4, IPv6 and FQDN are legal"#,
    );
    check_slice_refused(
        &slice_with(|o| o["ports"] = json!([{"port": 70000}])),
        "ports[0].port is 70000; 1 to 65535 is legal",
    );
    check_slice_refused(
        &slice_with(|o| o["ports"] = json!("all")),
        r#"ports: invalid type: string "all", expected a sequence"#,
    );
    check_slice_refused(
        &slice_with(|o| o["ports"] = json!(vec![json!({"port": 1}); 4_097])),
        "ports has 4097 entries; at most 4096 are legal",
    );
    check_slice_refused(
        &slice_with(|o| o["endpoints"] = json!(vec![json!({}); 10_001])),
        "endpoints has 10001 entries; at most 10000 are legal",
    );
    check_slice_refused(
        &slice_with(|o| o["endpoints"] = json!([{"addresses": "10.0.0.1"}])),
        r#"endpoints[0].addresses: invalid type: string "10.0.0.1", expected a sequence"#,
    );
    check_slice_refused(
        &slice_with(|o| o["metadata"]["labels"] = json!(["web"])),
        "metadata.labels: invalid type: sequence, expected an object",
    );
    check_slice_refused(
        &slice_with(|o| o["endpoints"] = json!([[["10.0.0.1"]]])),
        "endpoints[0]: invalid type: sequence, expected an object",
    );
    check_slice_refused(
        &slice_with(|o| o["metadata"]["labels"]["kubernetes.io/service-name"] = json!("a/b")),
        "the label kubernetes.io/service-name: the name has the character '/'; letters, digits, '-', '.' and '_' are legal",
    );
    check_slice_refused(
        &slice_with(|o| o["metadata"]["labels"]["kubernetes.io/service-name"] = json!(long)),
        "the label kubernetes.io/service-name: the name has 254 characters; at most 253 are legal",
    );
}

#[test]
fn labels_of_a_slice() {
    let facts = good_slice(&slice_with(|_| ()));
    assert_eq!((facts.service.as_deref(), facts.headless), (Some("web"), false));
    for unlabelled in [json!({}), json!(null), json!({"kubernetes.io/service-name": ""})] {
        assert_eq!(good_slice(&slice_with(|o| o["metadata"]["labels"] = unlabelled)).service, None);
    }
    let headless = json!({"service.kubernetes.io/headless": ""});
    assert!(good_slice(&slice_with(|o| o["metadata"]["labels"] = headless)).headless);
}

#[test]
fn null_absent_and_empty_endpoints() {
    let is_null = |object: &Value| {
        let facts = good_slice(object);
        assert!(facts.endpoints.is_empty());
        facts.endpoints_null
    };
    assert!(!is_null(&slice_with(|_| ())));
    assert!(is_null(&slice_with(|o| o["endpoints"] = json!(null))));
    assert!(!is_null(&slice_with(|o| drop(o.as_object_mut().expect("a map").remove("endpoints")))));
}

#[track_caller]
fn check_slice_ports(ports: Value, defaulting: Defaulting, expected: &[&str]) {
    let object = slice_with(|object| {
        object["ports"] = ports;
        object["metadata"]["namespace"] = json!("shop");
    });
    let (facts, _) = decode_slice(&object, defaulting).expect("a legal slice");
    let shown: Vec<String> =
        facts.ports.iter().map(|port| format!("{}/{}/{}", port.name, port.protocol, port.port)).collect();
    assert_eq!(shown, expected);
}

#[test]
fn ports_without_a_name_or_number_are_ignored() {
    use Defaulting::{AsApiserver, Done};
    check_slice_ports(json!(null), Done, &[]);
    check_slice_ports(json!([]), Done, &[]);
    check_slice_ports(json!([{"name": null, "port": 80}]), Done, &[]);
    check_slice_ports(json!([{"port": 80}]), AsApiserver, &["/TCP/80"]);
    check_slice_ports(json!([{"name": "", "port": 80}]), Done, &["/TCP/80"]);
    check_slice_ports(
        json!([{"name": "a"}, {"name": "b", "port": null}, {"name": "c", "port": 0}]),
        AsApiserver,
        &[],
    );
    let protocols = json!([{"name": "u", "port": 53, "protocol": "UDP"}, {"name": "s", "port": 1, "protocol": "SCTP"},
                           {"name": "x", "port": 2, "protocol": "tcp"}, {"name": "n", "port": 3, "protocol": null}]);
    check_slice_ports(protocols, Done, &["u/UDP/53", "s/SCTP/1", "x/tcp/2", "n/TCP/3"]);
}

/// A slice with so many ports and endpoints.
fn wide(ports: usize, endpoints: usize) -> Value {
    let port = |number: usize| json!({"name": format!("p{number}"), "port": number + 1, "protocol": "TCP"});
    let endpoint = |number: usize| json!({"addresses": [format!("10.0.{}.{}", number / 256, number % 256)]});
    slice_with(|o| {
        o["ports"] = (0..ports).map(port).collect();
        o["endpoints"] = (0..endpoints).map(endpoint).collect();
    })
}

#[test]
fn a_slice_has_as_many_ports_as_a_service() {
    for ports in [101, limits::PORTS_PER_SERVICE_MAX] {
        let facts = good_slice(&wide(ports, 100));
        assert_eq!((facts.ports.len(), facts.endpoints.len()), (ports, 100));
    }
}

#[test]
fn invariant_10_ports_times_endpoints_of_one_slice() {
    assert_eq!(good_slice(&wide(limits::PORTS_PER_SERVICE_MAX, 256)).endpoints.len(), 256);
    let (facts, partial) =
        decode_slice(&wide(2_000, 700), Defaulting::AsApiserver).expect("the slice itself is legal");
    assert_eq!((facts.ports.len(), facts.endpoints.len()), (2_000, 524));
    let reason = partial.expect("a partial rejection").reason;
    let words =
        "176 endpoints skipped: endpoints has 700 entries; at most 524 count where a slice has 2000 ports";
    assert!(reason.starts_with(words), "{reason}");
}

#[track_caller]
fn check_conditions(conditions: &Value, expected: Conditions) {
    let endpoint = json!({"addresses": ["10.0.0.1"], "conditions": conditions});
    let facts = good_slice(&slice_with(|o| o["endpoints"] = json!([endpoint])));
    assert_eq!(facts.endpoints.get(0).expect("an endpoint").conditions, expected);
}

#[test]
fn conditions_that_are_absent_mean_ready_serving_and_not_terminating() {
    check_conditions(&json!(null), Conditions::READY);
    check_conditions(&json!({}), Conditions::READY);
    check_conditions(&json!({"ready": null, "serving": null, "terminating": null}), Conditions::READY);
    check_conditions(
        &json!({"ready": false}),
        Conditions { ready: false, serving: true, terminating: false },
    );
    let draining = json!({"ready": false, "serving": true, "terminating": true});
    check_conditions(&draining, Conditions { ready: false, serving: true, terminating: true });
}

#[test]
fn an_endpoint_keeps_its_node_zone_hints_and_target() {
    let facts = good_slice(&slice_with(|o| {
        o["endpoints"] = json!([
            {"addresses": ["10.0.0.01", "10.0.0.2"], "nodeName": "n1", "zone": "z1",
             "hints": {"forZones": [{"name": "z1"}, {"name": "z2"}], "forNodes": [{"name": "n1"}]},
             "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "u"}},
            {"addresses": ["10.0.0.3"], "hints": {"forZones": null}, "targetRef": {"kind": "Pod"}}]);
    }));
    let first = facts.endpoints.get(0).expect("the first");
    let hints = first.hints.expect("hints");
    let names = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (first.address.to_string().as_str(), first.node, first.zone),
        ("10.0.0.1", Some("n1".into()), Some("z1"))
    );
    assert_eq!(
        (names(&hints.zones), names(&hints.nodes)),
        (names(&["z1".into(), "z2".into()]), names(&["n1".into()]))
    );
    assert_eq!(
        first.target.map(|target| (target.kind, target.namespace, target.name)),
        Some(("Pod", "shop", "web-0".into()))
    );
    let second = facts.endpoints.get(1).expect("the second");
    assert_eq!((second.hints, second.target, second.node), (None, None, None));
    assert_eq!(facts.endpoints.len(), 2, "only the first address of each counts");
}

#[test]
fn a_slice_has_its_trigger_time() {
    let told = |text: Value| {
        let annotation = json!({"endpoints.kubernetes.io/last-change-trigger-time": text});
        good_slice(&slice_with(|o| o["metadata"]["annotations"] = annotation)).meta
    };
    assert_eq!(told(json!("2026-01-08T11:11:55.25Z")).triggered.0, Some(1_767_870_715_250_000));
    for nonsense in [json!("yesterday"), json!(""), json!(null)] {
        assert_eq!(told(nonsense).triggered.0, None);
    }
    assert_eq!(told(json!("yesterday")), told(json!("2026-01-08T11:11:55Z")), "it means the same");
}

#[test]
fn a_bad_endpoint_is_skipped_named_and_counted() {
    let object = slice_with(|o| {
        o["endpoints"] = json!([{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.999"]}, {"addresses": []}, {},
            {"addresses": ["fd00::1"]}, {"addresses": ["10.0.0.2"], "nodeName": "n".repeat(256)}, {"addresses": ["10.0.0.3"]}]);
    });
    let (facts, partial) = decode_slice(&object, Defaulting::AsApiserver).expect("the slice itself is legal");
    let shown: Vec<String> = facts.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
    assert_eq!(shown, ["10.0.0.1", "10.0.0.3"]);
    let partial = partial.expect("a partial rejection");
    assert!(partial.partial);
    assert_eq!(partial.object.to_string(), "EndpointSlice default/web-1");
    assert_eq!(
        &*partial.reason,
        "5 endpoints skipped: endpoints[1].addresses[0] is \"10.0.0.999\", which is not an IP address; \
         endpoints[2].addresses is missing; an endpoint needs one address; \
         endpoints[3].addresses is missing; an endpoint needs one address; …"
    );
}

#[test]
fn endpoints_of_other_families_and_host_names() {
    let v6 = slice_with(|o| {
        o["addressType"] = json!("IPv6");
        o["endpoints"] = json!([{"addresses": ["fd00::0001"]}, {"addresses": ["::ffff:10.0.0.1"]}]);
    });
    let (facts, partial) = decode_slice(&v6, Defaulting::AsApiserver).expect("legal");
    assert_eq!(facts.endpoints.len(), 1);
    assert_eq!(
        &*partial.expect("one skipped").reason,
        "1 endpoint skipped: endpoints[1]: address 10.0.0.1 is not of the slice's address type"
    );
    let fqdn = slice_with(|o| {
        o["addressType"] = json!("FQDN");
        o["endpoints"] = json!([{"addresses": ["one.example.com"]}]);
    });
    let facts = good_slice(&fqdn);
    assert_eq!((facts.address_type, facts.endpoints.len()), (AddressType::Fqdn, 0));
}

fn weighed(text: &str) -> (SliceFacts, Option<Rejection>) {
    let object = slice_with(|object| {
        object["metadata"]["annotations"] = json!({"holdfast.io/weights": text});
    });
    decode_slice(&object, Defaulting::AsApiserver).expect("a legal slice")
}

#[test]
fn a_slice_may_have_weights() {
    let (facts, partial) = weighed("10.0.0.1=0, node:n1=3");
    let asked = facts.weights.expect("weights");
    let of = |backend: &str, node| {
        asked.weights.find_weight(backend.parse().expect("a backend"), node).map(Weight::number)
    };
    assert_eq!(
        (of("10.0.0.1:80", None), of("10.0.0.2:80", Some("n1".into())), of("10.0.0.2:80", None)),
        (Some(0), Some(3), None)
    );
    assert_eq!((asked.wrong, partial), (None, None));
    assert_eq!(weighed("").0.weights, None);
}

#[test]
fn invalid_weights_of_a_slice_are_reported_with_its_other_faults() {
    let (facts, partial) = weighed("10.0.0.1=many");
    assert!(facts.weights.expect("weights").wrong.is_some());
    let partial = partial.expect("a rejection");
    assert!(
        partial.partial && partial.reason.starts_with("its weights stay as they were: \"10.0.0.1=many\"")
    );
    let object = slice_with(|object| {
        object["metadata"]["annotations"] = json!({"holdfast.io/weights": "10.0.0.1=many"});
        object["endpoints"] = json!([{"addresses": ["nowhere"]}]);
    });
    let (_, partial) = decode_slice(&object, Defaulting::AsApiserver).expect("a legal slice");
    let reason = partial.expect("a rejection").reason;
    assert!(reason.starts_with("1 endpoint skipped: ") && reason.contains("; its weights stay"), "{reason}");
}

#[test]
fn invariant_10_a_slices_weights_are_bounded_like_a_services() {
    let many = vec!["10.0.0.1=1"; limits::WEIGHTS_PER_SERVICE_MAX + 1].join(",");
    let long = format!("node:{}=1,", "n".repeat(250)).repeat(limits::WEIGHTS_BYTES_MAX / 250);
    for (text, words) in [(many, "more than 1024 weights"), (long, "more than 65536 bytes")] {
        let asked = weighed(&text).0.weights.expect("weights");
        assert!(asked.wrong.expect("a reason").contains(words));
        assert_eq!(asked.weights, Weights::default());
    }
}
