//! Hostile text in every field of an object that any answer shows: in no text answer can it pass for a line of another
//! object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::change::Change;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Settings};
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, MemoryMaps};
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_laws::hostile::{HOSTILE, check_lines};
use holdfast_objects::manifests::TextFolder;
use holdfast_status::printable::is_unprintable;
use serde_json::{Value, json};

use super::fixture::{THEN, serve_with};
use holdfast_agent::recorder::tests::history_of;

fn writers() -> Value {
    json!([{"manager": "kubectl", "operation": "Update", "subresource": "status", "time": "2026-01-08T11:11:55Z",
            "apiVersion": "v1", "fieldsType": "FieldsV1"}])
}

fn service_of(number: usize) -> Value {
    let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "default", "name": format!("web-{number}"), "uid": "u1", "resourceVersion": "12",
            "creationTimestamp": "2026-01-08T11:11:55Z", "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
            "annotations": {"holdfast.io/on-empty": "hold", "service.kubernetes.io/topology-mode": "Auto", "a": "b"},
            "labels": {"app": "web"}, "managedFields": writers(),
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "http", "nodePort": 30_000 + number,
                       "appProtocol": "http"}],
            "selector": {"app": "web"}, "externalIPs": [format!("198.51.100.{}", number % 250 + 1)],
            "externalName": "example.org", "loadBalancerClass": "example.org/class",
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "sessionAffinity": "ClientIP",
            "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
            "trafficDistribution": "PreferClose",
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": format!("203.0.113.{}", number % 250 + 1), "hostname": "lb.example.org",
                                          "ipMode": "VIP"}]},
            "conditions": [{"type": "LoadBalancerPortsError", "status": "True", "reason": "Odd", "message": "odd",
                            "lastTransitionTime": "2026-01-08T11:11:55Z"}],
        },
    })
}

fn slice_of(number: usize) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default", "name": format!("web-{number}-a"), "uid": "u2", "resourceVersion": "13",
            "labels": {"kubernetes.io/service-name": format!("web-{number}"),
                       "endpointslice.kubernetes.io/managed-by": "somebody"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-08T11:11:55Z"},
            "managedFields": writers(),
        },
        "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 8080, "appProtocol": "http"}],
        "endpoints": [{
            "addresses": ["10.244.1.10"], "conditions": {"ready": true}, "nodeName": "node-2", "zone": "zone-b",
            "hostname": "pod-1", "hints": {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "node-2"}]},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-x", "uid": "u3"},
        }],
    })
}

/// The places of texts in an object, including names of members.
fn places(value: &Value, at: &str, into: &mut Vec<(String, bool)>) {
    match value {
        Value::String(_) => into.push((at.to_owned(), false)),
        Value::Array(all) => {
            (0..).zip(all).for_each(|(n, it): (usize, _)| places(it, &format!("{at}/{n}"), into));
        }
        Value::Object(all) => {
            for (name, it) in all {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                into.push((format!("{at}/{escaped}"), true));
                places(it, &format!("{at}/{escaped}"), into);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The object with hostile text in one place: as the value there, or as the name of the member.
fn forged(mut object: Value, (place, is_name): &(String, bool)) -> Value {
    let (parent, name) = place.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent).unwrap() {
        Value::Object(all) if *is_name => {
            let value = all.remove(&name).unwrap();
            all.insert(HOSTILE.to_owned(), value);
        }
        parent => {
            *parent.pointer_mut(&format!("/{}", name.replace('~', "~0").replace('/', "~1"))).unwrap() =
                HOSTILE.into();
        }
    }
    object
}

/// YAML accepts no raw control character.
fn escaped(c: char) -> String {
    if c.is_ascii() { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) }
}

/// A file for each place of each object, with the object that it belongs to.
fn files() -> BTreeMap<Arc<str>, Vec<u8>> {
    let mut files = BTreeMap::new();
    for is_service in [true, false] {
        let mut all = Vec::new();
        places(&if is_service { service_of(0) } else { slice_of(0) }, "", &mut all);
        for place in &all {
            let number = files.len();
            let (service, slice) = (service_of(number), slice_of(number));
            let both =
                if is_service { [forged(service, place), slice] } else { [service, forged(slice, place)] };
            let text: String = both.map(|it| it.to_string()).join("\n---\n").chars().map(escaped).collect();
            files.insert(Arc::from(format!("{number:03}.yaml")), text.into_bytes());
        }
    }
    files
}

/// The result of the real rules, and all changes on the way: they come, and their slices go.
fn world() -> (Snapshot, Vec<Change>, usize) {
    let maps = MemoryMaps::new(Capacity { slots: 4_096, ports: 1_024, services: 1_024 });
    let (mut engine, _) = Engine::start(maps, holdfast_core::index::Seed(0), &[Source::Manifests]).unwrap();
    let node = NodeFacts { name: HOSTILE.into(), zone: Some(HOSTILE.into()), ..NodeFacts::default() };
    engine.apply(Event::NodeApplied(Arc::new(node)));
    engine.apply(Event::SettingsApplied(Arc::<Settings>::default()));
    let mut texts = TextFolder::new("manifests");
    let all = files();
    let without = |bytes: &Vec<u8>| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        text.split("\n---\n").next().unwrap().as_bytes().to_vec()
    };
    let fewer = all.iter().map(|(name, bytes)| (Arc::clone(name), without(bytes))).collect();
    let (mut snapshot, mut changes, mut second) = (Arc::default(), Vec::new(), 0);
    for files in [&all, &fewer] {
        texts.replace_files(files).into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Synced(Source::Manifests));
        for _ in 0..256 {
            second += 1;
            let wall = holdfast_core::facts::Timestamp(THEN.0 + second);
            let now = ClockReading { wall, mono: Duration::from_secs(second.unsigned_abs()) };
            snapshot = engine.step(now, &mut |change| changes.push(change));
        }
    }
    (Arc::unwrap_or_clone(snapshot), changes, all.len())
}

#[test]
fn no_object_writes_or_turns_a_line_of_any_answer() {
    let (snapshot, changes, files) = world();
    let served = snapshot.services.iter().count();
    assert!(files > 120 && served > 100 && changes.len() > 100, "{files} {served} {}", changes.len());
    let names: Vec<String> = snapshot.services.iter().map(|view| view.key.name.to_string()).collect();
    let rejected = snapshot.rejections.total;
    assert!(rejected > 5, "{rejected}");
    let history = history_of(changes);
    let served = serve_with(snapshot, |readings| readings.history = history);
    let mut shown = 0;
    let asked =
        ["frontends", "backends", "services", "explain", "history", "refusals", "flows", "verify", "readyz"];
    let plain = asked.iter().flat_map(|path| [format!("/{path}"), format!("/{path}?format=wide")]);
    let of_each = names.iter().flat_map(|name| {
        ["explain", "diagnose", "history"]
            .map(|path| format!("/{path}?service={}", name.replace('\n', "%0A")))
    });
    for path in plain.chain(of_each) {
        let body = served.get(&path, "accept: text/plain\r\n").body;
        check_lines(&path, &body, is_unprintable);
        shown += usize::from(body.contains("FORGED"));
    }
    assert!(shown > 20, "{shown} answers show what was written");
}
