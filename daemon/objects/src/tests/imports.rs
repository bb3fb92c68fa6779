//! ServiceImports and their slices, as an apiserver stores them.

use holdfast_core::facts::{Rejection, ServiceFacts, ServiceType, TrafficPolicy};
use holdfast_core::keys::Source;
use holdfast_core::limits;
use serde_json::{Value, json};

use crate::{Defaulting, ObjectKind, Provenance, from_value, parse_import, parse_slice, reject_object};

fn provenance() -> Provenance {
    let origin = Some("10.0.0.10:6443".into());
    Provenance { source: Source::ClusterSet, origin, defaulting: Defaulting::Done }
}

fn decode(object: &Value) -> Result<ServiceFacts, Rejection> {
    match from_value(object) {
        Ok(wire) => parse_import(&wire, &provenance()),
        Err(error) => Err(reject_object(ObjectKind::Service, object, &error, &provenance())),
    }
}

fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceImport",
        "metadata": {"name": "web", "namespace": "demo", "uid": "u", "resourceVersion": "7"},
        "spec": spec,
    })
}

#[track_caller]
fn spec(spec: &Value) -> ServiceFacts {
    decode(&object(spec)).expect("a legal ServiceImport")
}

#[track_caller]
fn check_refused(spec: &Value, expected: &str) {
    let rejection = decode(&object(spec)).expect_err("must be refused");
    assert_eq!(&*rejection.reason, expected);
    assert_eq!(rejection.object.to_string(), "ServiceImport demo/web");
    assert_eq!(rejection.object.kind(), "ServiceImport");
}

#[test]
fn an_import_is_a_service_of_its_own_source() {
    let facts = spec(&json!({
        "type": "ClusterSetIP",
        "ips": ["10.200.0.7", "fd00::7"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "internalTrafficPolicy": "Local",
        "trafficDistribution": "PreferClose",
    }));
    assert_eq!((facts.key.to_string().as_str(), facts.key.source), ("demo/web", Source::ClusterSet));
    assert_eq!((facts.kind, facts.headless), (ServiceType::ClusterSetIp, false));
    let shown: Vec<String> = facts.cluster_ips.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.200.0.7", "fd00::7"]);
    assert_eq!((facts.affinity_timeout, facts.internal_policy), (Some(60), TrafficPolicy::Local));
    assert_eq!(facts.ports.len(), 2);
    assert_eq!(facts.meta.resource_version.as_deref(), Some("7"));
}

#[test]
fn fields_missing_in_an_older_api_version_have_defaults() {
    let facts = spec(&json!({"type": "ClusterSetIP", "ports": [{"port": 80}]}));
    assert!(facts.cluster_ips.is_empty(), "a controller writes the address later");
    assert_eq!((facts.affinity_timeout, facts.internal_policy), (None, TrafficPolicy::Cluster));
    let nulls = json!({"type": "Headless", "ips": null, "ports": null, "sessionAffinity": null,
        "sessionAffinityConfig": null, "internalTrafficPolicy": null});
    assert!(spec(&nulls).headless);
}

/// Whatever else its author writes: an apiserver with an old definition of the kind may keep unknown fields.
#[test]
fn an_import_has_no_address_but_its_ips_and_no_node_port() {
    let facts = spec(&json!({
        "type": "ClusterSetIP",
        "ips": ["10.200.0.7"],
        "clusterIP": "10.96.0.1",
        "externalIPs": ["192.0.2.1"],
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 30_000,
        "ports": [{"port": 80, "nodePort": 30_080}],
    }));
    assert_eq!((facts.cluster_ips.len(), facts.external_ips.len(), facts.ingress.len()), (1, 0, 0));
    assert_eq!((facts.ports[0].node_port, facts.health_check_node_port), (None, None));
}

#[test]
fn a_wrong_field_rejects_the_import_by_its_name() {
    check_refused(&json!({}), r#"spec.type is ""; ClusterSetIP and Headless are legal"#);
    check_refused(
        &json!({"type": "LoadBalancer"}),
        r#"spec.type is "LoadBalancer"; ClusterSetIP and Headless are legal"#,
    );
    check_refused(
        &json!({"type": "ClusterSetIP", "ports": [{"port": 0}]}),
        "spec.ports[0].port is 0; 1 to 65535 is legal",
    );
    check_refused(
        &json!({"type": "ClusterSetIP", "internalTrafficPolicy": "Near"}),
        r#"spec.internalTrafficPolicy is "Near"; Cluster and Local are legal"#,
    );
    for wrong in [
        json!({"type": "ClusterSetIP", "ips": ["web.example"]}),
        json!({"type": "ClusterSetIP", "ips": "10.0.0.1"}),
        json!({"type": "ClusterSetIP", "ips": vec!["10.0.0.1"; limits::ADDRESSES_PER_SERVICE_MAX + 1]}),
        json!({"type": "ClusterSetIP", "ports": vec![json!({"port": 1}); limits::PORTS_PER_SERVICE_MAX + 1]}),
        json!({"type": "ClusterSetIP", "ports": [{"port": 1}, {"port": 2}]}),
        json!({"type": "ClusterSetIP", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
        json!([]),
    ] {
        let rejection = decode(&object(&wrong)).expect_err("must be refused");
        assert_eq!(rejection.object.to_string(), "ServiceImport demo/web", "{wrong}");
    }
    let unnamed = json!({"metadata": {"namespace": "demo"}, "spec": {"type": "Headless"}});
    let rejection = decode(&unnamed).expect_err("must be refused");
    assert_eq!(rejection.object.to_string(), "object in 10.0.0.10:6443, ServiceImport \"\"");
}

/// The service that a slice with these labels belongs to, parsed for ServiceImports and for Services.
fn services(labels: &Value) -> [Option<String>; 2] {
    let object =
        json!({"metadata": {"namespace": "demo", "name": "web-1", "labels": labels}, "addressType": "IPv4"});
    [Source::ClusterSet, Source::Kubernetes].map(|source| {
        let provenance = Provenance { source, ..provenance() };
        let (facts, partial) = parse_slice(&from_value(&object).unwrap(), &provenance).unwrap();
        assert_eq!(partial, None);
        facts.service.map(|name| name.to_string())
    })
}

#[test]
fn a_slices_two_labels_name_its_import_and_its_service() {
    const IMPORT: &str = "multicluster.kubernetes.io/service-name";
    const SERVICE: &str = "kubernetes.io/service-name";
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(services(&json!({IMPORT: "web"})), [some("web"), None]);
    assert_eq!(services(&json!({SERVICE: "web"})), [None, some("web")]);
    assert_eq!(services(&json!({IMPORT: "web", SERVICE: "derived-1"})), [some("web"), some("derived-1")]);
    assert_eq!(services(&json!({IMPORT: ""})), [None, None]);
    let object = json!({"metadata": {"namespace": "demo", "name": "web-1", "labels": {IMPORT: "a b"}},
        "addressType": "IPv4"});
    let rejection =
        parse_slice(&from_value(&object).unwrap(), &provenance()).expect_err("no service has that name");
    assert!(rejection.reason.contains(IMPORT), "{}", rejection.reason);
}
