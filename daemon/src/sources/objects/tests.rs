//! Each rule of decoding is a row.

use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::{
    AddressType, Conditions, ServiceFacts, ServiceType, SliceFacts, Timestamp, TrafficPolicy,
};
use holdfast_core::keys::{Family, Protocol};
use serde_json::json;

use super::*;

fn provenance(defaulting: Defaulting) -> Provenance {
    Provenance { source: Source::Manifests, origin: Some("web.yaml".into()), defaulting }
}

fn decode_service(object: &Value, defaulting: Defaulting) -> Result<ServiceFacts, Rejection> {
    let provenance = provenance(defaulting);
    match from_value(object) {
        Ok(wire) => service(&wire, &provenance),
        Err(refusal) => Err(reject(Kind::Service, object, &refusal, &provenance)),
    }
}

fn decode_slice(
    object: &Value,
    defaulting: Defaulting,
) -> Result<(SliceFacts, Option<Rejection>), Rejection> {
    let provenance = provenance(defaulting);
    match from_value(object) {
        Ok(wire) => slice(&wire, &provenance),
        Err(refusal) => Err(reject(Kind::Slice, object, &refusal, &provenance)),
    }
}

fn service_with(spec: &Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": spec})
}

#[track_caller]
fn spec(spec: &Value) -> ServiceFacts {
    decode_service(&service_with(spec), Defaulting::AsApiserver).expect("a legal service")
}

#[track_caller]
fn stored_spec(spec: &Value) -> ServiceFacts {
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    decode_service(&object, Defaulting::Done).expect("a legal service")
}

#[track_caller]
fn check_refused(object: &Value, expected: &str) {
    let rejection = decode_service(object, Defaulting::AsApiserver).expect_err("must be refused");
    assert_eq!(&*rejection.reason, expected);
    assert_eq!(rejection.object.to_string(), "Service default/web");
    assert_eq!(rejection.origin.as_deref(), Some("web.yaml"));
    assert!(!rejection.partial);
}

#[track_caller]
fn check_spec_refused(spec: &Value, expected: &str) {
    check_refused(&service_with(spec), expected);
}

#[track_caller]
fn check_address(text: &str, expected: Option<&str>) {
    assert_eq!(address::parse(text).map(|address| address.to_string()).as_deref(), expected, "{text:?}");
}

#[test]
fn addresses_are_read_as_leniently_as_kube_proxy_does_and_shown_canonical() {
    check_address("10.0.0.1", Some("10.0.0.1"));
    check_address("172.30.0.041", Some("172.30.0.41"));
    check_address("1.2.3.004", Some("1.2.3.4"));
    check_address("192.168.099.022", Some("192.168.99.22"));
    check_address("10.180.00.001", Some("10.180.0.1"));
    check_address("0000000010.0.0.1", Some("10.0.0.1"));
    check_address("2001:DB8::A", Some("2001:db8::a"));
    check_address("2001:00db8::0000a", Some("2001:db8::a"));
    check_address("::", Some("::"));
    check_address("::1", Some("::1"));
    check_address("::ffff:10.0.0.1", Some("10.0.0.1"));
    check_address("::ffff:010.0.0.01", Some("10.0.0.1"));
    check_address("64:ff9b::192.0.2.033", Some("64:ff9b::c000:221"));
    check_address("::ffff:a00:1", Some("10.0.0.1"));
    check_address("", None);
    check_address("10", None);
    check_address("10.0.0", None);
    check_address("10.0.0.1.2", None);
    check_address("10.0.0.256", None);
    check_address("10.0.0.+1", None);
    check_address(" 10.0.0.1", None);
    check_address("10.0.0.99999999999", None);
    check_address("10.0.0.0x1", None);
    check_address("fe80::1%eth0", None);
    check_address("1::2::3", None);
    check_address("1.2.3.4:5", None);
    check_address("::1.2.3", None);
    check_address("10.0.0.١", None);
}

#[track_caller]
fn check_cidr(text: &str, expected: Option<&str>) {
    assert_eq!(address::parse_cidr(text).as_deref(), expected, "{text:?}");
}

#[test]
fn source_ranges_are_trimmed_and_shown_canonical() {
    check_cidr("10.0.0.0/8", Some("10.0.0.0/8"));
    check_cidr(" 203.0.113.000/025 ", Some("203.0.113.0/25"));
    check_cidr("10.1.2.3/8", Some("10.0.0.0/8"));
    check_cidr("10.1.2.3/0", Some("0.0.0.0/0"));
    check_cidr("10.1.2.3/32", Some("10.1.2.3/32"));
    check_cidr("2001:db8:ffff::1/32", Some("2001:db8::/32"));
    check_cidr("2001:db8::1/128", Some("2001:db8::1/128"));
    check_cidr("::1/0", Some("::/0"));
    check_cidr("::ffff:1.2.3.4/120", Some("1.2.3.0/24"));
    check_cidr("10.0.0.0/33", None);
    check_cidr("2001:db8::/129", None);
    check_cidr("10.0.0.0", None);
    check_cidr("10.0.0.0/", None);
    check_cidr("10.0.0.0/+8", None);
    check_cidr("10.0.0.0/8/8", None);
}

#[track_caller]
fn check_time(text: &str, expected: Option<i64>) {
    assert_eq!(time::parse(text), expected.map(Timestamp), "{text:?}");
}

#[test]
fn times_are_rfc_3339() {
    check_time("1970-01-01T00:00:00Z", Some(0));
    check_time("2026-01-08T11:11:55Z", Some(1_767_870_715));
    check_time("2024-02-29T23:59:59Z", Some(1_709_251_199));
    check_time("2000-03-01T00:00:00Z", Some(951_868_800));
    check_time("1969-12-31T23:59:59Z", Some(-1));
    check_time("2026-01-08T11:11:55.123456Z", Some(1_767_870_715));
    check_time("2026-01-08T12:41:55+01:30", Some(1_767_870_715));
    check_time("2026-01-08T10:11:55-01:00", Some(1_767_870_715));
    check_time("2026-01-08", None);
    check_time("2026-01-08 11:11:55Z", None);
    check_time("2026-13-08T11:11:55Z", None);
    check_time("2026-00-08T11:11:55Z", None);
    check_time("2026-01-08T24:11:55Z", None);
    check_time("2026-01-08T11:11:55", None);
    check_time("2026-01-08T11:11:55Zulu", None);
    check_time("2026-01-08T11:11:55.Z", None);
    check_time("", None);
}

#[test]
fn a_manifest_is_defaulted_as_the_apiserver_does() {
    let facts = spec(&json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}));
    assert_eq!(facts.key.to_string(), "default/web");
    assert_eq!(facts.kind, ServiceType::ClusterIp);
    assert_eq!(facts.ip_families, [Family::V4]);
    assert_eq!(
        (facts.internal_policy, facts.external_policy),
        (TrafficPolicy::Cluster, TrafficPolicy::Cluster)
    );
    assert_eq!(facts.affinity_timeout, None);
    let [port] = &facts.ports[..] else { panic!("one port") };
    assert_eq!(
        (&*port.name, &port.protocol, port.port.get(), port.node_port),
        ("", &Protocol::TCP, 80, None)
    );
}

#[test]
fn null_is_absent_everywhere() {
    let facts = decode_service(
        &json!({
            "metadata": {"name": "web", "namespace": null, "labels": null, "annotations": null, "creationTimestamp": null,
                         "managedFields": null, "generation": null},
            "spec": {"type": null, "clusterIP": null, "clusterIPs": null, "ports": null, "externalIPs": null,
                     "sessionAffinity": null, "sessionAffinityConfig": null, "healthCheckNodePort": null},
            "status": null}),
        Defaulting::AsApiserver,
    );
    let expected = decode_service(&json!({"metadata": {"name": "web"}}), Defaulting::AsApiserver);
    assert_eq!(facts, expected);
    assert!(facts.is_ok());
}

#[track_caller]
fn check_cluster_ips(facts: &ServiceFacts, expected: &[&str], families: &[Family], headless: bool) {
    let shown: Vec<String> = facts.cluster_ips.iter().map(ToString::to_string).collect();
    assert_eq!(shown, expected);
    assert_eq!(facts.ip_families, families);
    assert_eq!(facts.headless, headless);
}

#[test]
fn cluster_ips_of_a_manifest() {
    let (v4, v6) = (Family::V4, Family::V6);
    let check = |object: Value, ips: &[&str], families: &[Family], headless| {
        check_cluster_ips(&spec(&object), ips, families, headless);
    };
    check(json!({}), &[], &[], false);
    check(json!({"clusterIP": ""}), &[], &[], false);
    check(json!({"clusterIP": "None"}), &[], &[], true);
    check(json!({"clusterIPs": ["None"]}), &[], &[], true);
    check(json!({"clusterIP": "10.96.0.07"}), &["10.96.0.7"], &[v4], false);
    check(json!({"clusterIPs": ["fd00::7", "10.96.0.7"]}), &["fd00::7", "10.96.0.7"], &[v6, v4], false);
    let both = json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]});
    check(both, &["10.96.0.7", "fd00::7"], &[v4, v6], false);
    check(json!({"externalIPs": ["fd00::1", "10.0.0.1", "fd00::2"]}), &[], &[v6, v4], false);
    check(json!({"clusterIP": "10.96.0.7", "externalIPs": ["fd00::1"]}), &["10.96.0.7"], &[v4], false);
    check(
        json!({"clusterIP": "10.96.0.7", "ipFamilies": ["IPv4", "IPv6"]}),
        &["10.96.0.7"],
        &[v4, v6],
        false,
    );
}

#[test]
fn cluster_ips_of_a_stored_object_are_those_that_kube_proxy_sees() {
    let (v4, v6) = (Family::V4, Family::V6);
    let check = |object: Value, ips: &[&str], families: &[Family], headless| {
        check_cluster_ips(&stored_spec(&object), ips, families, headless);
    };
    check(json!({"clusterIP": "10.96.0.7"}), &["10.96.0.7"], &[], false);
    check(json!({"clusterIPs": ["10.96.0.7"]}), &[], &[], false);
    check(
        json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]}),
        &["10.96.0.7"],
        &[],
        false,
    );
    let dual = json!({"clusterIP": "fd00::7", "clusterIPs": ["fd00::7", "10.96.0.7"], "ipFamilies": ["IPv6", "IPv4"]});
    check(dual, &["fd00::7", "10.96.0.7"], &[v6, v4], false);
    check(json!({"clusterIP": "None", "ipFamilies": ["IPv4"]}), &[], &[v4], true);
}

#[test]
fn a_stored_object_needs_its_namespace() {
    let object = json!({"metadata": {"name": "web"}});
    let rejection = decode_service(&object, Defaulting::Done).expect_err("no namespace");
    assert_eq!(rejection.object.to_string(), r#"object in web.yaml, Service "web""#);
    assert_eq!(&*rejection.reason, "metadata: the namespace is empty");
}

#[test]
fn ports_and_policies() {
    let facts = spec(&json!({
        "type": "LoadBalancer", "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP", "healthCheckNodePort": 31234,
        "ports": [{"name": "a", "port": 53, "protocol": "UDP", "nodePort": 30053}, {"name": "a", "port": 53},
                  {"name": "s", "port": 1, "protocol": "SCTP", "nodePort": 0}, {"port": 65535, "protocol": "QUIC"}]}));
    let ports: Vec<String> = facts
        .ports
        .iter()
        .map(|port| {
            format!("{}/{}/{}/{:?}", port.name, port.protocol, port.port, port.node_port.map(NonZeroU16::get))
        })
        .collect();
    assert_eq!(ports, ["a/UDP/53/Some(30053)", "a/TCP/53/None", "s/SCTP/1/None", "/QUIC/65535/None"]);
    assert_eq!(facts.kind, ServiceType::LoadBalancer);
    assert_eq!((facts.internal_policy, facts.external_policy), (TrafficPolicy::Local, TrafficPolicy::Local));
    assert_eq!(facts.affinity_timeout, Some(10_800));
    assert_eq!(facts.health_check_node_port.map(NonZeroU16::get), Some(31234));
}

#[test]
fn ingress_entries_without_an_address_are_no_frontends() {
    let object = json!({"metadata": {"name": "web"}, "status": {"loadBalancer": {"ingress": [
        {"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "VIP"}, {"ip": "192.0.2.3", "ipMode": "Proxy"},
        {"hostname": "lb.example.com"}, {"ip": "", "hostname": "x"}, {"ip": "169.254.1.1"}]}}});
    let facts = decode_service(&object, Defaulting::AsApiserver).expect("legal");
    let shown: Vec<String> =
        facts.ingress.iter().map(|ingress| format!("{} {}", ingress.address, ingress.proxied)).collect();
    assert_eq!(shown, ["192.0.2.1 false", "192.0.2.2 false", "192.0.2.3 true", "169.254.1.1 false"]);
}

#[test]
fn labels_and_annotations_of_a_service() {
    let object = json!({"metadata": {"name": "web",
        "labels": {"service.kubernetes.io/service-proxy-name": "", "app": "x"},
        "annotations": {"holdfast.io/on-empty": "pass", "note": "y"}}});
    let facts = decode_service(&object, Defaulting::AsApiserver).expect("legal");
    assert_eq!(facts.proxy_name.as_deref(), Some(""), "any value hands the service to another proxy");
    assert_eq!(facts.on_empty.as_deref(), Some("pass"));
}

#[test]
fn meta_names_version_and_last_writer() {
    let entry = |manager, time: Value| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:x": {}}});
    let mut status = entry("cloud", json!("2026-01-08T11:11:55Z"));
    status["subresource"] = json!("status");
    let object = json!({"metadata": {"name": "web", "uid": "u-1", "resourceVersion": "42", "generation": 3,
        "creationTimestamp": "2026-01-08T11:11:55Z", "managedFields": [
            entry("late", json!("2026-01-08T11:11:55Z")), entry("early", json!("2025-01-08T11:11:55Z")), status,
            entry("timeless", json!(null)), entry("torn", json!("yesterday"))]}});
    let meta = decode_service(&object, Defaulting::AsApiserver).expect("legal").meta;
    let writer = meta.writer.expect("a writer");
    assert_eq!((&*writer.manager, writer.subresource.as_deref()), ("cloud", Some("status")));
    assert_eq!((writer.at, meta.created), (Some(Timestamp(1_767_870_715)), Some(Timestamp(1_767_870_715))));
    assert_eq!((meta.uid.as_deref(), meta.resource_version.as_deref()), (Some("u-1"), Some("42")));
    assert_eq!((meta.generation, meta.origin.as_deref()), (Some(3), Some("web.yaml")));
}

#[test]
fn a_service_that_cannot_be_understood_says_what_is_legal() {
    check_spec_refused(
        &json!({"type": "Magic"}),
        r#"spec.type is "Magic"; ClusterIP, NodePort, LoadBalancer and ExternalName are legal"#,
    );
    check_spec_refused(
        &json!({"clusterIP": "10.0.0.300"}),
        r#"spec.clusterIP is "10.0.0.300", which is not an IP address"#,
    );
    check_spec_refused(
        &json!({"clusterIP": "0.0.0.0"}),
        "spec.clusterIP is 0.0.0.0; an unspecified or multicast address cannot be served",
    );
    check_spec_refused(
        &json!({"externalIPs": ["1.1.1.1", "x"]}),
        r#"spec.externalIPs[1] is "x", which is not an IP address"#,
    );
    check_spec_refused(
        &json!({"externalIPs": ["224.0.0.1"]}),
        "spec.externalIPs[0] is 224.0.0.1; an unspecified or multicast address cannot be served",
    );
    check_spec_refused(
        &json!({"loadBalancerSourceRanges": ["10.0.0.0"]}),
        r#"spec.loadBalancerSourceRanges[0] is "10.0.0.0", which is not a CIDR such as 10.0.0.0/8"#,
    );
    check_spec_refused(&json!({"ports": [{"port": 0}]}), "spec.ports[0].port is 0; 1 to 65535 is legal");
    check_spec_refused(
        &json!({"ports": [{"port": 80}, {"port": 70000}]}),
        "spec.ports[1].port is 70000; 1 to 65535 is legal",
    );
    check_spec_refused(&json!({"ports": [{"port": -1}]}), "spec.ports[0].port is -1; 1 to 65535 is legal");
    check_spec_refused(
        &json!({"ports": [{"name": "a"}]}),
        "spec.ports[0].port is missing; 1 to 65535 is legal",
    );
    check_spec_refused(
        &json!({"ports": [{"port": 80, "nodePort": 65536}]}),
        "spec.ports[0].nodePort is 65536; 0 (none) to 65535 is legal",
    );
    check_spec_refused(
        &json!({"ports": [{"port": 80, "name": "n".repeat(64)}]}),
        "spec.ports[0].name has 64 characters; at most 63 are legal",
    );
    check_spec_refused(
        &json!({"ports": [{"port": 80, "protocol": "P".repeat(99)}]}),
        "spec.ports[0].protocol has 99 characters; at most 32 are legal",
    );
    check_spec_refused(
        &json!({"ports": [{"port": 80}, {"port": 81}]}),
        "spec.ports[1] repeats the name and protocol of an earlier port; each pair must be unique",
    );
    check_spec_refused(
        &json!({"ports": vec![json!({"port": 80}); 10_000]}),
        "spec.ports has 10000 entries; at most 4096 are legal",
    );
    check_spec_refused(
        &json!({"externalIPs": vec!["1.1.1.1"; 1025]}),
        "spec.externalIPs has 1025 entries; at most 1024 are legal",
    );
    check_spec_refused(
        &json!({"internalTrafficPolicy": "local"}),
        r#"spec.internalTrafficPolicy is "local"; Cluster and Local are legal"#,
    );
    check_spec_refused(
        &json!({"sessionAffinity": "Cookie"}),
        r#"spec.sessionAffinity is "Cookie"; None and ClientIP are legal"#,
    );
    check_spec_refused(
        &json!({"ipFamilies": ["IPv5"]}),
        r#"spec.ipFamilies is "IPv5"; IPv4 and IPv6 are legal"#,
    );
    check_spec_refused(
        &json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]}),
        "spec.clusterIPs[0] is 10.0.0.1, but spec.ipFamilies[0] is IPv6",
    );
    check_spec_refused(
        &json!({"healthCheckNodePort": 99999}),
        "spec.healthCheckNodePort is 99999; 0 (none) to 65535 is legal",
    );
    check_spec_refused(
        &json!({"ports": [{"port": "http"}]}),
        r#"spec.ports[0].port: invalid type: string "http", expected i64"#,
    );
    check_spec_refused(&json!("spec"), r#"spec: invalid type: string "spec", expected an object"#);
    let timeout = |seconds: i64| json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
    check_spec_refused(
        &timeout(0),
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds is 0; 1 to 86400 is legal",
    );
    check_spec_refused(
        &timeout(86_401),
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds is 86401; 1 to 86400 is legal",
    );
    assert_eq!(spec(&timeout(1)).affinity_timeout, Some(1));
    assert_eq!(spec(&timeout(86_400)).affinity_timeout, Some(86_400));
    let mode = json!({"metadata": {"name": "web"}, "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1", "ipMode": "Magic"}]}}});
    check_refused(&mode, r#"status.loadBalancer.ingress.ipMode is "Magic"; VIP and Proxy are legal"#);
    let born = json!({"metadata": {"name": "web", "creationTimestamp": "soon"}});
    check_refused(
        &born,
        r#"metadata.creationTimestamp is "soon"; times such as 2026-01-08T11:11:55Z are legal"#,
    );
}

#[track_caller]
fn check_unnamed(metadata: &Value, object: &str, reason: &str) {
    let rejection =
        decode_service(&json!({ "metadata": metadata }), Defaulting::AsApiserver).expect_err("unnamed");
    assert_eq!((rejection.object.to_string().as_str(), &*rejection.reason), (object, reason));
}

#[test]
fn an_object_without_a_legal_name_is_named_by_its_place() {
    let empty = r#"object in web.yaml, Service """#;
    check_unnamed(&json!({}), empty, "metadata: the name is empty");
    check_unnamed(&json!({"name": 7}), empty, "metadata.name: invalid type: integer `7`, expected a string");
    check_unnamed(
        &json!({"name": "a b"}),
        r#"object in web.yaml, Service "a b""#,
        "metadata: the name has the character ' '; letters, digits, '-', '.' and '_' are legal",
    );
    let long = "n".repeat(254);
    let shown = format!("object in web.yaml, Service \"{}\"…", "n".repeat(60));
    check_unnamed(
        &json!({"name": long}),
        &shown,
        "metadata: the name has 254 characters; at most 253 are legal",
    );
}

#[test]
fn a_reason_has_a_bound() {
    assert_eq!(&*cut_reason("short"), "short");
    let cut = cut_reason(&"é".repeat(500));
    assert_eq!(cut.chars().count(), limits::REJECTION_REASON_LENGTH_MAX);
    assert!(cut.ends_with("é…"));
}

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
fn a_slice_whose_frame_cannot_be_understood_rejects_itself() {
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
        &slice_with(|o| o["ports"] = json!(vec![json!({"port": 1}); 101])),
        "ports has 101 entries; at most 100 are legal",
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
        ("10.0.0.1", Some("n1"), Some("z1"))
    );
    assert_eq!(
        (names(&hints.zones), names(&hints.nodes)),
        (names(&["z1".into(), "z2".into()]), names(&["n1".into()]))
    );
    assert_eq!(
        first.target.map(|target| (target.kind, target.namespace, target.name)),
        Some(("Pod", "shop", "web-0"))
    );
    let second = facts.endpoints.get(1).expect("the second");
    assert_eq!((second.hints, second.target, second.node), (None, None, None));
    assert_eq!(facts.endpoints.len(), 2, "only the first address of each counts");
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
