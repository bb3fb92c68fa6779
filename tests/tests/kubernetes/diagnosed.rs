//! A diagnosis sends few, bounded requests to the apiserver, and never harms a watch, whatever the answers.

use std::sync::Arc;

use holdfast_config::{Config, EventsRead, Kubernetes};
use holdfast_core::keys::ObjectName;
use holdfast_evidence::diagnose::gather::{GatherOptions, Gatherer};
use holdfast_evidence::event_watcher::EventCounters;
use holdfast_fixtures::clock::await_event;
use holdfast_status::views::apiserver::ApiserverState as EndpointState;
use holdfast_tests::fake::{Fault, Greeting, Kind, Request, RequestFilter, Verb};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::node::{Node, Setup, backend, ms, service_object, slice_object, vip};

/// The limit of requests for one diagnosis.
const REQUESTS_MAX: usize = 12;

const API: GatherOptions =
    GatherOptions { api: true, probes: false, frontend_skip_reason: None, time_limit: None };

fn shop() -> ObjectName {
    ObjectName::new("default", "web-0").unwrap()
}

/// The requests during a diagnosis, without those of the watches.
struct Diagnosed {
    text: String,
    asked: Vec<Request>,
}

impl Diagnosed {
    fn of_kind(&self, kind: Kind) -> usize {
        self.asked.iter().filter(|it| it.kind == kind).count()
    }

    #[track_caller]
    fn says(&self, wanted: &str) {
        assert!(self.text.contains(wanted), "{wanted:?} is not in {}", self.text);
    }

    #[track_caller]
    fn check_bounds(&self) {
        assert!(self.asked.len() <= REQUESTS_MAX, "{} requests: {:#?}", self.asked.len(), self.asked);
    }
}

fn gatherer(node: &Node) -> Gatherer {
    reading(node, EventsRead::OnDemand)
}

fn reading(node: &Node, events_read: EventsRead) -> Gatherer {
    let kubernetes = Kubernetes { events_read, ..Kubernetes::default() };
    let config = Config { kubernetes, ..Config::default() };
    Gatherer::new(Some(node.access.clone()), "n1".into(), watch::channel(Arc::new(config)).1)
}

fn diagnose(node: &Node) -> Diagnosed {
    diagnose_by(node, &gatherer(node), &shop())
}

fn diagnose_by(node: &Node, gatherer: &Gatherer, name: &ObjectName) -> Diagnosed {
    let before = node.server().requests().len();
    let snapshot = Arc::clone(&node.snapshots.borrow());
    let gathered = await_event("a diagnosis ends", gatherer.gather_opaque(name, &snapshot, API));
    let text = format!("{:?}", node.run(gathered));
    let asked = node.server().requests().split_off(before);
    let asked = asked.into_iter().filter(|it| it.verb != Verb::Watch && it.kind != Kind::Ready).collect();
    Diagnosed { text, asked }
}

fn pod(number: u8, ready: bool) -> Value {
    let word = if ready { "True" } else { "False" };
    json!({
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": format!("web-{number}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "n2", "containers": [{"name": "web", "ports": [{"containerPort": 8080}]}]},
        "status": {
            "phase": "Running", "podIPs": [{"ip": backend(number)}],
            "conditions": [{"type": "Ready", "status": word, "lastTransitionTime": "2026-11-20T13:57:02Z"}],
        },
    })
}

fn service(kind: &str) -> Value {
    let mut object = service_object("web-0", vip(0));
    object["spec"]["selector"] = json!({"app": "web"});
    object["spec"]["type"] = kind.into();
    if kind != "ClusterIP" {
        object["spec"]["ports"][0]["nodePort"] = 30080.into();
    }
    object
}

fn event(name: &str, reason: &str, about: (&str, &str), message: &str) -> Value {
    json!({
        "kind": "Event", "metadata": {"namespace": "default", "name": name},
        "involvedObject": {"kind": about.0, "namespace": "default", "name": about.1},
        "reason": reason, "message": message, "type": "Warning", "count": 3,
        "firstTimestamp": "2026-11-20T13:57:02Z", "lastTimestamp": "2026-11-20T13:58:02Z",
        "source": {"component": "service-controller"},
    })
}

/// A service with everything that a diagnosis asks for.
fn whole(kind: &str, pods: u8) -> Setup {
    let setup = Setup::new(1);
    let apply = |object: Value| assert!(setup.cluster.apply(object).is_ok());
    apply(service(kind));
    let backends: Vec<_> = (1..=pods).map(backend).collect();
    let mut slice = slice_object("web-0", &backends);
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["nodeName"] = "n2".into();
    }
    apply(slice);
    (1..=pods).for_each(|number| apply(pod(number, number > 1)));
    for name in ["n1", "n2"] {
        let ready = json!([{"type": "Ready", "status": if name == "n1" { "True" } else { "False" }}]);
        apply(json!({"kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                     "status": {"conditions": ready}}));
    }
    apply(json!({"kind": "Endpoints", "metadata": {"namespace": "default", "name": "web-0"}, "subsets": []}));
    for name in ["kube-controller-manager", "cloud-controller-manager"] {
        apply(json!({"kind": "Lease", "metadata": {"namespace": "kube-system", "name": name},
                     "spec": {"holderIdentity": "one", "renewTime": "2026-11-20T13:57:02.000000Z"}}));
    }
    apply(json!({"kind": "IPAddress", "metadata": {"name": vip(0).to_string()},
                 "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web-0"}}}));
    apply(json!({"kind": "NetworkPolicy", "metadata": {"namespace": "default", "name": "deny"}}));
    apply(json!({"kind": "Namespace", "metadata": {"name": "default"}, "status": {"phase": "Active"}}));
    apply(event("a", "SyncLoadBalancerFailed", ("Service", "web-0"), "failed to ensure load balancer: no"));
    apply(event("b", "ScalingReplicaSet", ("Deployment", "web-0"), "not ours"));
    apply(event("c", "Unhealthy", ("Pod", "web-1"), "Readiness probe failed"));
    apply(event("d", "Unhealthy", ("Pod", "other-1"), "not of this service"));
    setup
}

fn synced(setup: Setup) -> Node {
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node
}

#[test]
fn a_diagnosis_sends_at_most_twelve_requests() {
    for kind in ["ClusterIP", "LoadBalancer"] {
        let node = synced(whole(kind, 3));
        let found = diagnose(&node);
        found.check_bounds();
        found.says("service: Answered(Some(ObservedService { uid: \"uid-of-default.web-0\"");
        found.says("slices: Answered([ObservedSlice { name: \"web-0-1\"");
        found.says("Pod { name: \"web-1\", uid: \"uid-of-default.web-1\"");
        found.says("ready: Some(Condition { is_true: false, since: Some(Timestamp(1795");
        found.says("Lease { name: \"kube-controller-manager\", holder: Some(\"one\")");
        found.says("ObservedNode { name: \"n1\", exists: true");
        found.says("ObservedNode { name: \"n2\", exists: true, ready: Some(Condition { is_true: false");
        found.says("reason: \"SyncLoadBalancerFailed\"");
        found.says("entry: Some(\"sync-load-balancer-failed\")");
        found.says("message: \"Readiness probe failed\"");
        assert!(!found.text.contains("not ours") && !found.text.contains("not of this"), "{}", found.text);
        if kind == "ClusterIP" {
            found.says(
                "ObservedIpAddress { address: \"10.96.0.0\", namespace: \"default\", name: \"web-0\" }",
            );
            found.says("policies: Answered(1)");
            found.says("endpoints: Failed(\"not sent: the budget of 12 requests is spent\")");
        } else {
            found.says("hosted: Answered([])");
            found.says("Lease { name: \"cloud-controller-manager\"");
            found.says("address: Failed(\"not sent: the budget of 12 requests is spent\")");
        }
    }
}

/// A healthy service causes no requests about broken pods and nodes.
#[test]
fn a_healthy_service_leaves_requests_for_the_rest() {
    let setup = whole("ClusterIP", 0);
    setup.cluster.apply(pod(7, true)).unwrap();
    let node = synced(setup);
    let found = diagnose(&node);
    found.check_bounds();
    found.says("ObservedIpAddress { address: \"10.96.0.0\", namespace: \"default\", name: \"web-0\" }");
    node.cluster().delete(Kind::Pods, "default/web-7").unwrap();
    let found = diagnose(&node);
    found.check_bounds();
    found.says("near: Answered([])");
    found.says("namespace: Answered(Some(false))");
}

/// For a healthy Service, a diagnosis asks for everything; a balancer with an address needs no lease of its
/// controller.
#[test]
fn a_healthy_load_balancers_cluster_ip_is_looked_up() {
    let setup = whole("LoadBalancer", 0);
    setup.cluster.apply(pod(7, true)).unwrap();
    let mut object = service("LoadBalancer");
    object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}});
    setup.cluster.apply(object).unwrap();
    let node = synced(setup);
    let found = diagnose(&node);
    found.check_bounds();
    found.says("ObservedIpAddress { address: \"10.96.0.0\", namespace: \"default\", name: \"web-0\" }");
    found.says("endpoints: Answered(Some(EndpointsObject");
    assert_eq!(found.of_kind(Kind::Leases), 1);
    assert!(!found.text.contains("not sent: the budget"), "{}", found.text);
}

/// Reports of a healthy pod leave out its first failed starts, and keep its lasting conditions.
#[test]
fn healthy_pods_report_only_lasting_conditions() {
    let setup = whole("ClusterIP", 0);
    setup.cluster.apply(pod(7, true)).unwrap();
    let by_kubelet = |name: &str, reason: &str, message: &str| {
        let mut event = event(name, reason, ("Pod", "web-7"), message);
        event["source"]["component"] = "kubelet".into();
        setup.cluster.apply(event).unwrap();
    };
    by_kubelet(
        "e",
        "DNSConfigForming",
        "Search Line limits were exceeded, some search paths have been omitted",
    );
    by_kubelet("f", "Unhealthy", "Readiness probe failed: at first");
    let node = synced(setup);
    let found = diagnose(&node);
    found.check_bounds();
    found.says("cause: Some(\"dns.search_limit\")");
    assert!(!found.text.contains("at first"), "{}", found.text);
}

/// Before Kubernetes 1.33 there are no IPAddress objects, which is no fault.
#[test]
fn a_missing_ipaddress_api_is_no_finding() {
    let node = synced(whole("ClusterIP", 0));
    let page = Fault::raw(
        "404 Not Found",
        &["Content-Type: text/plain", "Content-Length: 19"],
        "404 page not found\n",
    );
    node.server().always(RequestFilter::for_kind(Kind::Addresses), page);
    let found = diagnose(&node);
    found.check_bounds();
    found.says("address: Skipped(\"this apiserver has no such kind of objects\")");
}

/// A writer of slices may name any node.
#[test]
fn missing_nodes_cost_few_requests() {
    let setup = whole("NodePort", 9);
    let backends: Vec<_> = (1..=9).map(backend).collect();
    let mut slice = slice_object("web-0", &backends);
    for (number, endpoint) in slice["endpoints"].as_array_mut().unwrap().iter_mut().enumerate() {
        endpoint["nodeName"] = format!("gone-{number}").into();
    }
    setup.cluster.apply(slice).unwrap();
    let node = synced(setup);
    let found = diagnose(&node);
    found.check_bounds();
    assert_eq!(found.of_kind(Kind::Nodes), 3, "all by their label, two by their names: {:?}", found.asked);
    found.says("ObservedNode { name: \"gone-1\", exists: false");
    found.says("nodes_unasked: [\"gone-2\", \"gone-3\"");
    found.says("hosted: Answered([])");
}

#[test]
fn fifty_pods_are_diagnosed_within_bounds_among_ten_thousand_services() {
    let setup = whole("ClusterIP", 50);
    for number in 0..10_000_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        let name = format!("other-{number}");
        setup.cluster.apply(service_object(&name, [10, 97, high, low].into())).unwrap();
    }
    let node = synced(setup);
    let found = diagnose(&node);
    found.check_bounds();
    found.says("Pod { name: \"web-50\"");
}

/// A rejection names the missing rule, and blames no endpoint.
#[test]
fn an_unreadable_resource_is_reported_and_harms_no_watch() {
    let node = synced(whole("LoadBalancer", 3));
    for kind in [Kind::Pods, Kind::Events, Kind::Leases, Kind::Endpoints, Kind::Addresses, Kind::Policies] {
        node.server().always(RequestFilter::for_kind(kind), Fault::status(403, "Forbidden"));
    }
    let (watches, log) = (node.server().watches(Kind::Slices), node.log());
    let gatherer = gatherer(&node);
    let found = diagnose_by(&node, &gatherer, &shop());
    found.check_bounds();
    found.says("service: Answered(Some(");
    found.says("pods: Forbidden(Right { group: \"\", resource: \"pods\", verbs: \"list\", namespace: Some(\"default\") })");
    found.says("events: Forbidden(Right { group: \"\", resource: \"events\", verbs: \"list\"");
    found.says(
        "leases: Forbidden(Right { group: \"coordination.k8s.io\", resource: \"leases\", verbs: \"get\"",
    );
    found.says("near: Skipped(");
    let again = diagnose_by(&node, &gatherer, &shop());
    again.says("events: Forbidden(Right { group: \"\", resource: \"events\", verbs: \"list\"");
    assert_eq!(again.of_kind(Kind::Events), 0, "who asks again a moment later is told the same");
    assert_eq!(node.server().watches(Kind::Slices), watches);
    assert_eq!(node.log(), log, "nothing is logged of it");
    let view = node.access.view();
    assert!(view.endpoints.iter().all(|it| it.last_error.is_none() && it.state != EndpointState::Failed));
}

#[test]
fn a_silent_apiserver_delays_neither_the_diagnosis_nor_others() {
    let node = synced(whole("ClusterIP", 3));
    node.server().greet(Greeting::Silent);
    let (gatherer, snapshot) = (gatherer(&node), Arc::clone(&node.snapshots.borrow()));
    let both = node.run(async {
        let name = shop();
        // Two of these futures are too large for the stack of a test.
        let one = || Box::pin(gatherer.gather_opaque(&name, &snapshot, API));
        let (first, second) = await_event("a diagnosis ends", futures(one(), one())).await;
        [format!("{first:?}"), format!("{second:?}")]
    });
    for text in both {
        assert!(text.contains("service: Failed("), "{text}");
        assert!(text.contains("events: Failed("), "{text}");
    }
}

async fn futures<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    tokio::join!(first, second)
}

/// One unanswered request times out, and the others are sent all the same.
#[test]
fn an_unanswered_request_costs_no_other_answer() {
    for fault in [Fault::Silent, Fault::SilentBody, Fault::Close, Fault::CutAfter(20)] {
        let node = synced(whole("ClusterIP", 3));
        node.server().always(RequestFilter::list(Kind::Pods), fault.clone());
        let found = diagnose(&node);
        found.check_bounds();
        found.says("pods: Failed(");
        found.says("service: Answered(Some(");
        found.says("reason: \"SyncLoadBalancerFailed\"");
        found.says("ObservedNode { name: \"n1\", exists: true");
        let view = node.access.view();
        let failed = view.endpoints.iter().filter(|it| it.state == EndpointState::Failed).count();
        assert_eq!(failed, 0, "{fault:?} is held against the endpoint");
    }
}

#[test]
fn a_slow_apiserver_gets_the_most_important_requests_first() {
    let node = synced(whole("ClusterIP", 3));
    node.server().always(RequestFilter::ANYTHING, Fault::Slow(ms(900)));
    let found = diagnose(&node);
    found.check_bounds();
    found.says("service: Answered(Some(");
    found.says("slices: Answered([");
    found.says("address: Failed(\"no time left\")");
}

#[test]
fn ten_thousand_events_are_read_in_part_and_reported_so() {
    let setup = whole("ClusterIP", 3);
    // A hundred times the limit of read Events; more would only keep the fake busy until the diagnosis' deadline.
    for number in 0..10_000 {
        let name = format!("flood-{number:06}");
        setup.cluster.apply(event(&name, "Forged", ("Service", "web-0"), "flood")).unwrap();
    }
    let node = synced(setup);
    let gatherer = gatherer(&node);
    let found = diagnose_by(&node, &gatherer, &shop());
    found.check_bounds();
    found.says("more_events: true");
    let events = |found: &Diagnosed| found.text.matches("RecognisedEvent {").count();
    assert!((100..=400).contains(&events(&found)), "{}", events(&found));
    let again = diagnose_by(&node, &gatherer, &shop());
    assert_eq!(again.of_kind(Kind::Events), 0, "what was read is kept for a while");
    assert_eq!(events(&again), events(&found));
}

#[test]
fn one_diagnosis_in_five_seconds_reads_events() {
    let setup = whole("ClusterIP", 3);
    setup.cluster.apply(service_object("web-1", vip(1))).unwrap();
    let node = synced(setup);
    let gatherer = gatherer(&node);
    assert!(diagnose_by(&node, &gatherer, &shop()).of_kind(Kind::Events) > 0);
    let other = ObjectName::new("default", "web-1").unwrap();
    let found = diagnose_by(&node, &gatherer, &other);
    assert_eq!(found.of_kind(Kind::Events), 0);
    found.says("another diagnosis read Events");
    let off = reading(&node, EventsRead::Off);
    let found = diagnose_by(&node, &off, &shop());
    assert_eq!(found.of_kind(Kind::Events), 0);
    found.says("events: Skipped(");
}

#[test]
fn a_malformed_answer_is_reported_and_not_used() {
    let list = r#"{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":[]}"#;
    let endless = r#"{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":["#;
    let item = format!(r#"{endless}{}"#, r#"{"metadata":{"name":"a"}},"#.repeat(2_000));
    for (fault, said) in [
        (Fault::say(list), "pods: Failed(\"the answer is not a PodList\")"),
        (Fault::say("<html>no</html>"), "pods: Failed("),
        (
            Fault::raw("302 Found", &["Location: https://127.0.0.1:1/", "Content-Length: 0"], ""),
            "answers 302",
        ),
        (Fault::status(500, "InternalError"), "answers 500: InternalError"),
        (Fault::status(504, "Timeout"), "answers 504: Timeout"),
        (Fault::status(429, "TooManyRequests"), "answers 429"),
        (Fault::Endless(item), "pods: "),
        (Fault::Endless("x".repeat(100_000)), "pods: Failed("),
    ] {
        let node = synced(whole("ClusterIP", 3));
        node.server().always(RequestFilter::list(Kind::Pods), fault);
        let found = diagnose(&node);
        found.check_bounds();
        found.says(said);
        found.says("service: Answered(Some(");
        assert!(!found.text.contains("more: false"), "{}", found.text);
        assert!(node.access.view().endpoints.iter().all(|it| it.state != EndpointState::Failed));
    }
}

#[test]
fn a_tenants_text_changes_no_request() {
    let setup = whole("ClusterIP", 1);
    let mut object = service("ClusterIP");
    object["spec"]["selector"] = json!({"app": "web,!x", "a&limit": "1"});
    setup.cluster.apply(object).unwrap();
    let mut slice = slice_object("web-0", &[backend(1), backend(2)]);
    slice["endpoints"][0]["nodeName"] = "../pods".into();
    slice["endpoints"][1]["nodeName"] = "..".into();
    setup.cluster.apply(slice).unwrap();
    let node = synced(setup);
    let found = diagnose(&node);
    assert_eq!(found.of_kind(Kind::Pods), 0, "{:?}", found.asked);
    found.says("pods: Failed(");
    assert!(found.asked.iter().all(|it| !it.target.contains("..")), "{:?}", found.asked);
    let dots = ObjectName::new("default", "..").unwrap();
    assert_eq!(diagnose_by(&node, &gatherer(&node), &dots).asked.len(), 0);
}

#[test]
fn watched_events_are_counted_and_reported_and_an_ended_watch_resumes() {
    let setup = Setup::new(1);
    let apply = |event: Value| assert!(setup.cluster.apply(event).is_ok());
    let about = ("Service", "web-0");
    apply(event("old", "SyncLoadBalancerFailed", about, "before it was followed"));
    let cluster = setup.cluster.clone();
    let mut node = synced(setup);
    let overheard = node.watch_events();
    let up = "holdfast_event_source_up{source=\"services\"} 1";
    node.wait("followed", |_| said(&overheard).contains(up));
    let counted = |number: u32| {
        format!(
            "holdfast_events_recognised_total{{reason=\"SyncLoadBalancerFailed\",type=\"Warning\",\
             component=\"service-controller\"}} {number}"
        )
    };
    assert!(said(&overheard).contains(&counted(0)), "what was before is not heard");
    let message = "failed to ensure load balancer: RequestLimitExceeded \u{1b}[31m";
    cluster.apply(event("new", "SyncLoadBalancerFailed", about, message)).unwrap();
    node.wait("counted", |_| said(&overheard).contains(&counted(1)));
    assert!(said(&overheard).contains("holdfast_event_causes_total{cause=\"cloud.rate_limited\"} 1"));
    let log = node.log();
    assert!(log.contains("RequestLimitExceeded") && !log.contains('\u{1b}'), "{log}");
    node.server().end_watches(Kind::Events);
    cluster.apply(event("next", "SyncLoadBalancerFailed", about, message)).unwrap();
    node.wait("counted again", |_| said(&overheard).contains(&counted(2)));
}

fn said(overheard: &EventCounters) -> String {
    overheard.render_metrics()
}

#[test]
fn events_without_watch_permission_are_requested_rarely() {
    let mut node = synced(Setup::new(1));
    node.server().always(RequestFilter::for_kind(Kind::Events), Fault::status(403, "Forbidden"));
    let overheard = node.watch_events();
    node.wait("refused", |node| node.log().contains("may not list and watch events"));
    let events = RequestFilter::for_kind(Kind::Events);
    node.wait("all topics are refused", |node| node.server().request_count(events) >= 7);
    // Without waits each topic would be requested hundreds of times.
    node.live(ms(2_000));
    let asked = node.server().request_count(events);
    assert!(asked <= 21, "{asked} requests of seven topics");
    assert!(said(&overheard).contains("holdfast_event_source_up{source=\"services\"} 0"));
    assert!(node.access.view().endpoints.iter().all(|it| it.last_error.is_none()));
}

/// An Event about Endpoints that could not be created has no namespace, so it is in `default` with those of all
/// tenants.
fn unmade(name: &str, service: &str) -> Value {
    let mut event = event(name, "FailedToCreateEndpoint", ("Endpoints", "web"), "");
    event["involvedObject"].as_object_mut().unwrap().remove("namespace");
    event["source"]["component"] = "endpoint-controller".into();
    let why = "endpoints \"web\" is forbidden: exceeded quota: objects";
    event["message"] = format!("Failed to create endpoint for service {service}: {why}").into();
    event
}

#[test]
fn an_event_in_another_namespace_is_reported_only_for_its_service() {
    let setup = Setup::new(1);
    let mut object = service_object("web", vip(0));
    object["metadata"]["namespace"] = "shop".into();
    setup.cluster.apply(object).unwrap();
    for (name, service) in [("a", "shop/web"), ("b", "bank/web"), ("c", "default/web"), ("d", "shop/web-2")] {
        setup.cluster.apply(unmade(name, service)).unwrap();
    }
    let node = synced(setup);
    let found = diagnose_by(&node, &gatherer(&node), &ObjectName::new("shop", "web").unwrap());
    found.check_bounds();
    found.says("Failed to create endpoint for service shop/web: ");
    found.says("cause: Some(\"api.quota\")");
    for other in ["bank/web", "default/web", "shop/web-2"] {
        assert!(!found.text.contains(&format!("for service {other}:")), "{}", found.text);
    }
}
