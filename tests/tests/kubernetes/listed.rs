//! The requests of `holdfast events`: three at a time, a few pages, and nothing about other objects.

use std::sync::Arc;

use holdfast_config::{Config, EventsRead, Kubernetes};
use holdfast_core::keys::ObjectName;
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_tests::fake::{Fault, Greeting, Kind, RequestFilter, Verb};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::node::{Node, Setup, backend, service_object, slice_object, vip};

fn gatherer(node: &Node, events_read: EventsRead) -> Gatherer {
    let kubernetes = Kubernetes { events_read, ..Kubernetes::default() };
    let config = Config { kubernetes, ..Config::default() };
    Gatherer::new(Some(node.access.clone()), "n1".into(), watch::channel(Arc::new(config)).1)
}

/// The Events as JSON, and the number of requests.
fn hear(node: &Node, gatherer: &Gatherer, about: Option<&str>) -> (String, usize) {
    let about = about.map(|name| ObjectName::new("default", name).unwrap());
    let lists = |node: &Node| {
        let all = node.server().requests();
        all.into_iter().filter(|it| it.kind == Kind::Events && it.verb != Verb::Watch).count()
    };
    let (before, snapshot) = (lists(node), Arc::clone(&node.snapshots.borrow()));
    let text =
        node.run(async { format!("{:?}", gatherer.query_events_opaque(about.as_ref(), &snapshot).await) });
    (text, lists(node) - before)
}

fn event(place: (&str, &str), reason: &str, about: (&str, &str), host: &str) -> Value {
    json!({
        "kind": "Event", "metadata": {"namespace": place.0, "name": place.1},
        "involvedObject": {"kind": about.0, "namespace": place.0, "name": about.1},
        "reason": reason, "message": "because", "type": "Warning", "count": 3,
        "lastTimestamp": "2026-11-20T13:58:02Z", "source": {"component": "kubelet", "host": host},
    })
}

/// A service with one pod, and Events about both and about others.
fn spoken() -> Setup {
    let setup = Setup::new(1);
    setup.cluster.apply(service_object("web-0", vip(0))).unwrap();
    let mut slice = slice_object("web-0", &[backend(1)]);
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "namespace": "default", "name": "pod-1"});
    setup.cluster.apply(slice).unwrap();
    for (place, reason, about, host) in [
        (("default", "a"), "OfService", ("Service", "web-0"), ""),
        (("default", "b"), "OfSlice", ("EndpointSlice", "web-0"), ""),
        (("default", "c"), "OfItsPod", ("Pod", "pod-1"), "n2"),
        (("default", "d"), "OfAnotherPod", ("Pod", "pod-2"), "n1"),
        (("default", "e"), "OfNamesake", ("Deployment", "web-0"), ""),
        (("default", "f"), "OfNode", ("Node", "n2"), ""),
        (("shop", "g"), "OfOther", ("Service", "other"), ""),
    ] {
        setup.cluster.apply(event(place, reason, about, host)).unwrap();
    }
    setup
}

fn synced(setup: Setup) -> Node {
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node
}

#[track_caller]
fn check(text: &str, says: &[&str], not: &[&str]) {
    assert!(says.iter().all(|word| text.contains(&format!("\"{word}\""))), "{says:?}: {text}");
    assert!(!not.iter().any(|word| text.contains(&format!("\"{word}\""))), "{not:?}: {text}");
}

#[test]
fn events_of_a_service_include_those_of_its_pods() {
    let node = synced(spoken());
    let (text, asked) = hear(&node, &gatherer(&node, EventsRead::OnDemand), Some("web-0"));
    check(&text, &["OfService", "OfSlice", "OfItsPod"], &["OfAnotherPod", "OfNamesake", "OfNode", "OfOther"]);
    assert!(text.contains("more: false"), "{text}");
    assert_eq!(asked, 2);
}

#[test]
fn events_without_a_service_cover_all_namespaces() {
    let node = synced(spoken());
    let gatherer = gatherer(&node, EventsRead::OnDemand);
    let (text, asked) = hear(&node, &gatherer, None);
    let of_all = ["OfService", "OfSlice", "OfNode", "OfOther", "OfAnotherPod"];
    check(&text, &of_all, &["OfNamesake", "OfItsPod"]);
    assert_eq!(asked, 2);
    let (again, asked) = hear(&node, &gatherer, None);
    check(&again, &of_all, &[]);
    assert_eq!(asked, 0, "what was read is kept for a while");
    let (other, asked) = hear(&node, &gatherer, Some("web-0"));
    assert!(other.contains("Failed(\"another diagnosis read Events"), "{other}");
    assert_eq!(asked, 0, "one reading in five seconds");
}

#[test]
fn disabled_forbidden_or_unreachable_events_are_reported_as_such() {
    let node = synced(spoken());
    let (text, asked) = hear(&node, &gatherer(&node, EventsRead::Off), Some("web-0"));
    assert!(text.contains("Skipped(\"[kubernetes] events_read is") && asked == 0, "{text}");
    node.server().always(RequestFilter::for_kind(Kind::Events), Fault::status(403, "Forbidden"));
    let right = "Forbidden(Right { group: \"\", resource: \"events\", verbs: \"list\", namespace: ";
    for (about, namespace) in [(Some("web-0"), "Some(\"default\")"), (None, "None")] {
        let (text, asked) = hear(&node, &gatherer(&node, EventsRead::OnDemand), about);
        assert!(text.contains(&format!("{right}{namespace}")), "{text}");
        assert_eq!(asked, 1, "who may not is not asked again");
    }
    node.server().greet(Greeting::Silent);
    let (text, _) = hear(&node, &gatherer(&node, EventsRead::OnDemand), None);
    assert!(text.contains("list: Failed("), "{text}");
}

#[test]
fn of_a_flood_a_few_pages_are_read_and_reported_as_partial() {
    let setup = spoken();
    for number in 0..20_000 {
        let name = format!("flood-{number:06}");
        setup.cluster.apply(event(("default", &name), "Forged", ("Service", "web-0"), "")).unwrap();
    }
    let node = synced(setup);
    for about in [None, Some("web-0")] {
        let (text, asked) = hear(&node, &gatherer(&node, EventsRead::OnDemand), about);
        assert!(text.contains("more: true") && asked <= 6, "{asked}");
        assert!(text.matches("reason: \"Forged\"").count() <= 400);
    }
}
