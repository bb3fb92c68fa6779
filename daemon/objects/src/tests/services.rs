//! Services from manifests and as the apiserver stores them.

use std::num::NonZeroU16;

use holdfast_core::facts::{BalancerFacts, ServiceFacts, ServiceType, Timestamp, TrafficPolicy};
use holdfast_core::keys::{Family, Protocol};
use serde_json::{Value, json};

use super::decode_service;
use crate::Defaulting;

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
fn cluster_ips_of_a_stored_object_are_kube_proxys() {
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
        "annotations": {"holdfast.io/on-empty": "pass", "holdfast.io/maglev": "true",
            "holdfast.io/session-affinity-prefix": "ipv4=24", "note": "y"}}});
    let facts = decode_service(&object, Defaulting::AsApiserver).expect("legal");
    assert_eq!(facts.proxy_name.as_deref(), Some(""), "any value hands the service to another proxy");
    let words = [&facts.on_empty, &facts.maglev, &facts.affinity_prefix].map(Option::as_deref);
    assert_eq!(words, [Some("pass"), Some("true"), Some("ipv4=24")]);
}

/// Only one short, printable line is kept.
#[test]
fn an_objects_texts_are_sanitized_when_parsed() {
    let hostile = format!("no\nService is held\u{202e}{}", "x".repeat(250_000));
    let writer = json!({"manager": hostile, "operation": hostile, "subresource": hostile, "time": "2026-01-08T11:11:55Z"});
    let object = json!({"metadata": {"name": "web", "uid": hostile, "resourceVersion": hostile,
        "labels": {"service.kubernetes.io/service-proxy-name": hostile},
        "annotations": {"holdfast.io/on-empty": hostile, "holdfast.io/maglev": hostile,
            "holdfast.io/session-affinity-prefix": hostile}, "managedFields": [writer]}});
    let facts = decode_service(&object, Defaulting::AsApiserver).expect("legal");
    let (meta, writer) = (&facts.meta, facts.meta.writer.as_ref().expect("a writer"));
    let kept = [
        facts.on_empty.as_ref(),
        facts.maglev.as_ref(),
        facts.affinity_prefix.as_ref(),
        facts.proxy_name.as_ref(),
        meta.uid.as_ref(),
        meta.resource_version.as_ref(),
        Some(&writer.manager),
        Some(&writer.operation),
        writer.subresource.as_ref(),
    ];
    for text in kept.map(|it| it.expect("something is kept")) {
        assert!(text.len() <= 256, "{} bytes", text.len());
        assert!(!text.contains(['\n', '\u{202e}']), "{text:?}");
        assert!(text.starts_with("no"), "{text:?}");
    }
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
fn a_rejected_service_names_the_legal_values() {
    check_spec_refused(
        &json!({"type": "Magic"}),
        r#"spec.type is "Magic"; ClusterIP, NodePort, LoadBalancer and ExternalName are legal"#,
    );
    check_spec_refused(
        &json!({"clusterIP": "10.0.0.300"}),
        r#"spec.clusterIP is "10.0.0.300", which is not an IP address"#,
    );
    check_spec_refused(
        &json!({"externalIPs": ["1.1.1.1", "x"]}),
        r#"spec.externalIPs[1] is "x", which is not an IP address"#,
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
fn an_object_with_an_illegal_name_is_identified_by_its_origin() {
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

/// So many ranges of a family, each except the first one twice.
fn ranges(v4: usize, v6: usize) -> Vec<String> {
    let v4 = (0..v4).map(|number| format!("10.{}.{}.0/24", number / 250, number % 250));
    let v6 = (0..v6).map(|number| format!(" fd00:{number:x}::/32"));
    v4.clone().chain(v6.clone()).chain(v4.skip(1)).chain(v6.skip(1)).collect()
}

/// Parsing keeps all of them; the limit depends on the number of ports and applies later.
#[test]
fn any_number_of_source_ranges_is_parsed() {
    let told = |v4, v6| spec(&json!({"loadBalancerSourceRanges": ranges(v4, v6), "ports": [{"port": 80}]}));
    assert_eq!(told(256, 257).source_ranges.len(), 2 * (256 + 257) - 2);
}

/// The load balancer of a Service with this type, metadata and status.
fn balancer(kind: &str, metadata: &Value, spec: &Value, ingress: &Value) -> Option<BalancerFacts> {
    let (mut metadata, mut spec) = (metadata.clone(), spec.clone());
    metadata["name"] = "web".into();
    spec["type"] = kind.into();
    let object =
        json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}});
    let facts = decode_service(&object, Defaulting::AsApiserver).expect("a legal service");
    facts.balancer.map(|balancer| *balancer)
}

#[test]
fn a_load_balancers_facts_are_parsed() {
    let entry = |manager, subresource: Option<&str>, time| json!({"manager": manager, "operation": "Update", "subresource": subresource, "time": time});
    let metadata = json!({
        "deletionTimestamp": "2026-01-10T11:11:55Z",
        "finalizers": ["service.kubernetes.io/load-balancer-cleanup", "example.com/audit"],
        "managedFields": [
            entry("kubectl", None, "2026-01-12T00:00:00Z"),
            entry("cloud-controller-manager", Some("status"), "2026-01-09T00:00:00Z"),
            entry("metallb", Some("status"), "2026-01-09T00:00:05Z"),
            entry("metallb", Some("status"), "never"),
        ],
    });
    let spec = json!({"loadBalancerClass": "example.com/own", "allocateLoadBalancerNodePorts": false});
    let ingress = json!([{"hostname": "a.example.com"}, {"ip": "192.0.2.1", "hostname": "b.example.com"},
        {"ip": "", "hostname": "c.example.com"}, {}]);
    let found = balancer("LoadBalancer", &metadata, &spec, &ingress).expect("a load balancer");
    assert_eq!(found.deleted, crate::parse_time("2026-01-10T11:11:55Z"));
    assert!(found.has_balancer_finalizer());
    assert_eq!((found.finalizers.len(), found.class.as_deref()), (2, Some("example.com/own")));
    assert!(found.without_node_ports);
    assert_eq!(&*found.hostnames, ["a.example.com".into(), "c.example.com".into()]);
    assert_eq!(&*found.writers, ["cloud-controller-manager".into(), "metallb".into()]);
    assert_eq!(found.written, crate::parse_time("2026-01-09T00:00:05Z"));
}

/// Ten thousand services without one cost nothing.
#[test]
fn a_service_without_load_balancer_has_no_balancer_facts() {
    let (none, spec) = (json!({}), json!({"loadBalancerClass": "example.com/own"}));
    assert_eq!(balancer("ClusterIP", &none, &spec, &json!([{"hostname": "a.example.com"}])), None);
    assert_eq!(balancer("NodePort", &json!({"finalizers": [""]}), &none, &json!(null)), None);
    assert_eq!(balancer("ClusterIP", &json!({"deletionTimestamp": "soon"}), &none, &json!(null)), None);
    let found = balancer("LoadBalancer", &none, &none, &json!(null));
    assert_eq!(found, Some(BalancerFacts::default()));
    let found = balancer("ClusterIP", &json!({"finalizers": ["example.com/audit"]}), &none, &json!(null));
    assert!(!found.expect("a finalizer").has_balancer_finalizer());
}

#[test]
fn invariant_10_a_load_balancers_facts_are_bounded() {
    let many = |what: &str| (0..500).map(|nth| format!("{nth}-{}", what.repeat(300))).collect::<Vec<_>>();
    let entries = many("m").into_iter().map(|manager| json!({"manager": manager, "subresource": "status"}));
    let metadata = json!({"finalizers": many("é"), "managedFields": entries.collect::<Vec<_>>()});
    let ingress: Vec<_> = many("h").into_iter().map(|name| json!({ "hostname": name })).collect();
    let spec = json!({"loadBalancerClass": "c".repeat(3_000)});
    let found = balancer("LoadBalancer", &metadata, &spec, &ingress.into()).expect("a load balancer");
    assert_eq!((found.finalizers.len(), found.hostnames.len(), found.writers.len()), (8, 4, 4));
    let texts = found.finalizers.iter().chain(&found.hostnames).chain(&found.writers).chain(&found.class);
    assert!(texts.into_iter().all(|text| text.len() <= 128));
}
