//! Decodes files into objects: formats, lists, kinds, versions, limits.

use std::sync::Arc;

use expect_test::{expect, expect_file};
use holdfast_core::facts::{Meta, ServiceFacts, SliceFacts};
use proptest::prelude::*;

use super::{service, shown};
use crate::manifests::decode::{ObjectFacts, decode_file};
use crate::manifests::folder::{Folder, FolderScan};

const CLUSTER_YAML: &str = include_str!("../../../../../tests/fixtures/manifests/cluster.yaml");
const CLUSTER_JSON: &str = include_str!("../../../../../tests/fixtures/manifests/cluster.json");

fn events(file: &str, text: &str) -> String {
    let file: Arc<str> = file.into();
    let files = vec![(Arc::clone(&file), decode_file(&file, text.as_bytes()))];
    shown(&Folder::new("/manifests").apply_scan(FolderScan { present: Ok([file].into()), files }))
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(events("x.yaml", text), expected);
}

#[test]
fn kubectl_output_is_read_unchanged() {
    let file: Arc<str> = "cluster.yaml".into();
    let contents = decode_file(&file, CLUSTER_YAML.as_bytes()).expect("a good file");
    let facts = contents.objects.values().filter_map(|version| version.facts.as_ref());
    let facts: String = facts
        .map(|facts| match facts {
            ObjectFacts::Service(service) => service_facts(service),
            ObjectFacts::Slice(slice) => slice_facts(slice),
        })
        .collect();
    expect_file!["../../../../../tests/fixtures/manifests/cluster.facts"].assert_eq(&facts);
    expect![[r#"
        + Service default/kubernetes [10.96.0.1] cluster.yaml
        + Service kube-system/kube-dns [10.96.0.10] cluster.yaml
        + Service shop/cache [10.96.44.2] cluster.yaml
        + Service shop/db [] cluster.yaml
        + Service shop/mesh [10.96.44.3] cluster.yaml
        + Service shop/partner [] cluster.yaml
        + Service shop/signal [10.96.44.1] cluster.yaml
        + Service shop/web [10.96.12.7 fd00:10:96::c07] cluster.yaml
        + EndpointSlice default/kubernetes [192.0.2.21 192.0.2.22] cluster.yaml
        + EndpointSlice kube-system/kube-dns-7xq2m [10.244.0.2 10.244.1.2] cluster.yaml
        + EndpointSlice shop/cache-l5n2w [] cluster.yaml
        + EndpointSlice shop/db-2c8vx [10.244.0.31] cluster.yaml
        + EndpointSlice shop/legacy-hosts [] cluster.yaml
        + EndpointSlice shop/orphan-1 [10.244.0.77] cluster.yaml
        + EndpointSlice shop/signal-wq8rt [] cluster.yaml
        + EndpointSlice shop/web-4kd8p [10.244.0.11 10.244.1.11 10.244.1.12 10.244.1.13] cluster.yaml
        + EndpointSlice shop/web-9zz4t [fd00:10:244::11 fd00:10:244:1::11] cluster.yaml
    "#]]
    .assert_eq(&events("cluster.yaml", CLUSTER_YAML));
}

/// Every fact on a line of its own.
fn service_facts(facts: &ServiceFacts) -> String {
    let ServiceFacts { key, meta, ports, .. } = facts;
    let mut text = format!("Service {key}: {:?}, headless {}\n", facts.kind, facts.headless);
    text += &meta_facts(meta);
    text += &format!("  cluster IPs {:?}, families {:?}\n", facts.cluster_ips, facts.ip_families);
    text += &format!("  external IPs {:?}, ingress {:?}\n", facts.external_ips, facts.ingress);
    text += &format!("  internal {:?}, external {:?}\n", facts.internal_policy, facts.external_policy);
    text += &format!("  affinity {:?}, source ranges {:?}\n", facts.affinity_timeout, facts.source_ranges);
    text += &format!(
        "  health check {:?}, proxy {:?}, on empty {:?}\n",
        facts.health_check_node_port, facts.proxy_name, facts.on_empty
    );
    for port in ports {
        text += &format!(
            "  port {:?} {} {}, node port {:?}\n",
            port.name, port.protocol, port.port, port.node_port
        );
    }
    text
}

fn slice_facts(facts: &SliceFacts) -> String {
    let mut text = format!(
        "EndpointSlice {}: {:?} of {:?}, headless {}\n",
        facts.key, facts.address_type, facts.service, facts.headless
    );
    text += &meta_facts(&facts.meta);
    for port in &facts.ports {
        text += &format!("  port {:?} {} {}\n", port.name, port.protocol, port.port);
    }
    text += &format!("  endpoints {}, null {}\n", facts.endpoints.len(), facts.endpoints_null);
    for endpoint in facts.endpoints.iter() {
        let target = endpoint
            .target
            .map(|target| format!("{} {}/{} {}", target.kind, target.namespace, target.name, target.uid));
        let node = endpoint.node.map(|node| node.to_string());
        text += &format!(
            "  {} {:?}\n    node {:?}, zone {:?}, hints {:?}\n    target {target:?}\n",
            endpoint.address, endpoint.conditions, node, endpoint.zone, endpoint.hints
        );
    }
    text
}

fn meta_facts(meta: &Meta) -> String {
    let writer = meta.writer.as_ref();
    let writer =
        writer.map(|writer| (&*writer.manager, &*writer.operation, writer.subresource.as_deref(), writer.at));
    format!(
        "  uid {:?}, version {:?}, generation {:?}, created {:?}\n  last writer {writer:?}\n",
        meta.uid, meta.resource_version, meta.generation, meta.created
    )
}

#[test]
fn yaml_and_json_of_one_cluster_give_the_same_events() {
    let yaml = events("cluster.yaml", CLUSTER_YAML);
    assert_eq!(events("cluster.json", CLUSTER_JSON), yaml.replace("cluster.yaml", "cluster.json"));
    // JSON is YAML as well.
    assert_eq!(events("cluster.yaml", CLUSTER_JSON), yaml);
}

#[test]
fn documents_lists_and_items_without_a_kind() {
    let a = service("a", "10.0.0.1");
    let applied = "+ Service default/a [10.0.0.1] x.yaml\n";
    check(&a, applied);
    check(&format!("---\n# a comment\n---\n{a}---\nnull\n...\n"), applied);
    check(&format!("\u{feff}{a}"), applied);
    check(&format!("kind: List\napiVersion: v1\nitems:\n- {a}"), applied);
    check(&format!("apiVersion: v1\nitems:\n- {a}kind: List\n"), applied);
    check("{apiVersion: v1, kind: List, items: null}", "");
    check("{apiVersion: v1, kind: List}", "");
    check(
        "{apiVersion: v1, kind: ServiceList, items: [{metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}]}",
        applied,
    );
    check(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSliceList, items: [{metadata: {name: a}, addressType: IPv4}]}",
        "+ EndpointSlice default/a [] x.yaml\n",
    );
    check("", "");
    check("# nothing\n", "");
    check(
        "&x {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: &ip 10.0.0.1, externalIPs: [*ip]}}",
        applied,
    );
    assert_eq!(events("x.json", ""), "");
    let twice = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"Service","metadata":{"name":"b"}}"#;
    assert_eq!(events("x.json", twice), "+ Service default/a [] x.json\n+ Service default/b [] x.json\n");
}

#[test]
fn yaml_1_1_booleans_are_read_as_names() {
    let port = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{name: on, port: 80}, {name: y, port: 81}]}}";
    check(port, "+ Service default/a [] x.yaml\n");
}

#[test]
fn an_ignored_kind_is_reported_once() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n\
                {apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: a}}\n---\n\
                {apiVersion: multicluster.example/v1, kind: EndpointSlice, metadata: {name: a}}\n";
    let contents = decode_file(&"x.yaml".into(), text.as_bytes()).expect("a good file");
    assert_eq!(contents.ignored.values().sum::<usize>(), 3);
    let why = "is not read, so its objects are ignored; \
               Service (v1) and EndpointSlice (discovery.k8s.io/v1) are read";
    let pods = "gives no Service a backend, an EndpointSlice (discovery.k8s.io/v1) does; \
                only `holdfast diagnose` reads it";
    let because = |kind: &str, why: &str| format!("! kind {kind} partly rejected in x.yaml: {why}\n");
    let named = |kind: &str| because(kind, why);
    check(
        text,
        &[
            named("EndpointSlice (multicluster.example/v1)"),
            because("Pod (v1)", pods),
            named("Service (serving.knative.dev/v1)"),
        ]
        .concat(),
    );
    let typo = "{apiVersion: v1, kind: Sevice, metadata: {name: a}}\n---\n".repeat(40);
    check(&typo, &named("Sevice (v1)"));
    check("{kind: \"od\\nd\", metadata: {name: a}}", &named("\"od\\nd\" (\"\")"));
    let many: String = (0..100).map(|it| format!("{{apiVersion: v1, kind: K{it}}}\n---\n")).collect();
    assert_eq!(events("x.yaml", &many).lines().count(), 16, "a folder of other kinds makes no flood");
}

#[test]
fn an_ignored_kind_is_reported_once_for_the_whole_folder() {
    let mut folder = Folder::new("/manifests");
    let ingress = b"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}}";
    let files = ["a.yaml", "b.yaml"].map(Arc::<str>::from);
    let read = |file: &Arc<str>| (Arc::clone(file), decode_file(file, ingress));
    let mut look = |present: &[Arc<str>], read_now: &[Arc<str>]| {
        let present = Ok(present.iter().cloned().collect());
        shown(&folder.apply_scan(FolderScan { present, files: read_now.iter().map(read).collect() }))
    };
    assert_eq!(look(&files, &files).lines().count(), 1);
    assert_eq!(look(&files, &files), "", "not again when the file is read again");
    assert_eq!(look(&files[..1], &[]), "", "the first file still has it");
    assert_eq!(look(&[], &[]), "ok kind Ingress (networking.k8s.io/v1)\n");
}

#[test]
fn unsupported_versions_and_shapes_are_reported() {
    check(
        "{apiVersion: v2, kind: Service, metadata: {name: a}}",
        "! Service default/a rejected in x.yaml: apiVersion is \"v2\"; v1 is legal for this kind\n",
    );
    check(
        "{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: a, namespace: shop}}",
        "! EndpointSlice shop/a rejected in x.yaml: apiVersion is \"discovery.k8s.io/v1beta1\"; discovery.k8s.io/v1 is legal for this kind\n",
    );
    check(
        "{kind: Service, metadata: {name: a}}",
        "! Service default/a rejected in x.yaml: apiVersion is \"\"; v1 is legal for this kind\n",
    );
    check(
        "{apiVersion: v1, kind: List, items: [{metadata: {name: a}}, {a: b}]}\n---\n{x: y}",
        "! object in x.yaml, document 1, items[0] rejected in x.yaml: kind is missing; Service and EndpointSlice are read, alone or in a List\n\
         ! object in x.yaml, document 1, items[1] rejected in x.yaml: kind is missing; Service and EndpointSlice are read, alone or in a List\n\
         ! object in x.yaml, document 2 rejected in x.yaml: kind is missing; Service and EndpointSlice are read, alone or in a List\n",
    );
    check(
        "{apiVersion: v1, kind: Service, metadata: {name: 7}}\n---\n{apiVersion: v1, kind: Service}",
        "! object in x.yaml, document 1 rejected in x.yaml: metadata.name: invalid type: integer `7`, expected a string\n\
         ! object in x.yaml, document 2 rejected in x.yaml: metadata: the name is empty\n",
    );
    let good = service("b", "10.0.0.2");
    check(
        &format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: a}}, spec: {{ports: [{{port: http}}]}}}}\n---\n{good}"
        ),
        "! Service default/a rejected in x.yaml: spec.ports[0].port: invalid type: string \"http\", expected i64\n\
         + Service default/b [10.0.0.2] x.yaml\n",
    );
}

#[test]
fn an_object_twice_in_a_file_counts_once() {
    let twice =
        service("a", "10.0.0.1") + "---\n" + &service("a", "10.0.0.2") + "---\n" + &service("a", "10.0.0.3");
    check(
        &twice,
        "+ Service default/a [10.0.0.1] x.yaml\n\
         ! Service default/a partly rejected in x.yaml: is in this file more than once; the first one counts\n",
    );
}

#[track_caller]
fn check_file_refused(file: &str, bytes: &[u8], expected: &str) {
    let reason = decode_file(&file.into(), bytes).expect_err("must be refused");
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn text_that_is_neither_yaml_nor_json_rejects_the_file() {
    check_file_refused("x.yaml", b"a: [", "is not YAML");
    check_file_refused("x.yaml", b"a: b: c", "is not YAML");
    check_file_refused("x.yaml", b"just text", "expected a Kubernetes object or a List of them");
    check_file_refused("x.yaml", b"- a\n- b\n", "expected a Kubernetes object or a List of them");
    check_file_refused("x.yaml", b"a: b\na: c\n", "is not YAML");
    check_file_refused("x.yaml", b"a: \xff", "is not UTF-8");
    check_file_refused("x.json", b"[]", "expected a Kubernetes object or a List of them");
    check_file_refused("x.json", b"{\"a\": }", "is not JSON: expected value at line 1 column 7");
    check_file_refused("x.json", b"a: b", "is not JSON");
}

#[test]
fn yaml_bombs_are_rejected() {
    let deep = "[".repeat(100_000);
    check_file_refused("x.yaml", format!("a: {deep}").as_bytes(), "is not YAML");
    check_file_refused(
        "x.json",
        format!("{{\"a\": {deep}").as_bytes(),
        "is not JSON: recursion limit exceeded",
    );
    let deep = "{a: ".repeat(5_000) + &"}".repeat(5_000);
    check_file_refused("x.yaml", deep.as_bytes(), "is not YAML");
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let before = format!("*a{}", level - 1);
        laughs += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", "));
    }
    check_file_refused("x.yaml", laughs.as_bytes(), "is not YAML");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn decoding_random_bytes_never_panics(
        places in prop::collection::vec((0..CLUSTER_JSON.len(), any::<u8>()), 1..20),
        cut in 0..CLUSTER_JSON.len(),
        json in any::<bool>(),
    ) {
        let (file, text) = if json { ("x.json", CLUSTER_JSON) } else { ("x.yaml", CLUSTER_YAML) };
        let mut bytes = text.as_bytes().to_vec();
        for (place, byte) in places {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        let _any_answer_is_good = decode_file(&file.into(), &bytes);
        bytes.truncate(cut);
        let _any_answer_is_good = decode_file(&file.into(), &bytes);
    }

    #[test]
    fn a_wrong_value_in_any_field_rejects_only_its_object(field in 0..2000_usize, value in 0..6_usize) {
        let values = ["null", "-1", "99999999999999999999", "\"\\u0000é\"", "[[{}]]", "{\"a\":[]}"];
        let mut document: serde_json::Value = serde_json::from_str(CLUSTER_JSON).expect("the fixture");
        let items = document["items"].as_array_mut().expect("items");
        let count = items.len();
        let item = &mut items[field % count];
        mutate(item, field / count, &serde_json::from_str(values[value]).expect("a value"));
        let contents = decode_file(&"x.json".into(), document.to_string().as_bytes()).expect("still JSON");
        let good = contents.objects.values().filter(|version| version.facts.is_some()).count();
        prop_assert!(good + 1 >= count, "{good} of {count}");
    }
}

/// Replaces the n-th value below an object, in depth-first order.
fn mutate(value: &mut serde_json::Value, mut place: usize, by: &serde_json::Value) -> Option<usize> {
    let children: Vec<&mut serde_json::Value> = match value {
        serde_json::Value::Object(map) => map.values_mut().collect(),
        serde_json::Value::Array(list) => list.iter_mut().collect(),
        _ => Vec::new(),
    };
    for child in children {
        if place == 0 {
            *child = by.clone();
            return None;
        }
        place = mutate(child, place - 1, by)?;
    }
    Some(place)
}
