//! Common beliefs about these Events that are false: twenty, each with a test that fails if it were true.

use std::collections::BTreeMap;

use super::{cause, event, recognise};
use crate::{
    Belief, Cause, ClusterEvent, Confidence, CurrentObject, Emitted, EventReason, EventType, Knowledge,
    Remedy, Retry, Risk, Step, Time,
};

fn knowledge() -> &'static Knowledge {
    Knowledge::built_in()
}

#[track_caller]
fn entry(id: &str) -> &'static EventReason {
    knowledge().reason(id).expect(id)
}

#[track_caller]
fn the_cause(id: &str) -> &'static Cause {
    knowledge().cause(id).expect(id)
}

#[track_caller]
fn belief(id: &str) -> &'static Belief {
    knowledge().beliefs().iter().find(|belief| belief.id == id).expect(id)
}

fn remedies() -> impl Iterator<Item = (&'static Cause, &'static Remedy)> {
    knowledge().causes().iter().flat_map(|cause| cause.remedy.iter().map(move |remedy| (cause, remedy)))
}

/// Every advice, with the id of its entry.
fn advice() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_causes = knowledge().causes().iter().flat_map(|cause| {
        let texts = cause.check.iter().chain(cause.remedy.iter().map(|remedy| &remedy.action));
        texts.map(move |text| (cause.id.as_str(), text.as_str()))
    });
    of_causes.chain(knowledge().reasons().iter().map(|reason| (reason.id.as_str(), reason.fallback.as_str())))
}

/// Checks that no advice has all of these words, in any order.
#[track_caller]
fn nobody_says(words: &[&str]) {
    let has_all = |text: &str| words.iter().all(|word| text.to_lowercase().contains(word));
    let found: Vec<_> = advice().filter(|(_, text)| has_all(text)).collect();
    assert!(found.is_empty(), "{words:?}: {found:?}");
}

#[track_caller]
fn nobody_advises(phrase: &str) {
    let small = phrase.to_lowercase();
    nobody_says(&[&small]);
    let never = knowledge().nevers().iter().flat_map(|never| &never.contains);
    assert!(never.into_iter().any(|never| small.contains(&never.to_lowercase())), "{phrase} may be advised");
}

/// Whether each of these Events about one Service is open. The last one occurred now, each other one `apart` earlier.
fn open(reasons: &[(&str, &str)], apart: i64) -> Vec<bool> {
    let now = Time(1_772_370_000);
    let count = i64::try_from(reasons.len()).unwrap();
    let events: Vec<ClusterEvent> = (1..)
        .zip(reasons)
        .map(|(at, (reason, message))| {
            let is_failure = reason.ends_with("Failed") || reason.starts_with("UnAvailable");
            ClusterEvent {
                last: Some(Time(now.0 - (count - at) * apart)),
                event_type: if is_failure { EventType::Warning } else { EventType::Normal },
                ..event(reason, "service-controller", "Service", message)
            }
        })
        .collect();
    knowledge()
        .judge_events(&events, CurrentObject::default(), now)
        .iter()
        .map(crate::EventState::is_open)
        .collect()
}

#[test]
fn correction_01_of_the_21_reasons_12_are_sent_as_they_are_spelled() {
    let catalogue = [
        "ensuring-load-balancer",
        "ensured-load-balancer",
        "creating-load-balancer",
        "created-load-balancer",
        "updated-load-balancer",
        "deleting-load-balancer",
        "deleted-load-balancer",
        "update-load-balancer-failed",
        "delete-load-balancer-failed",
        "unavailable-load-balancer",
        "sync-load-balancer-failed",
        "failed-to-create-endpoint",
        "failed-to-update-endpoint",
        "failed-to-delete-endpoint",
        "failed-to-create-endpoint-slice",
        "failed-to-update-endpoint-slice",
        "failed-to-delete-endpoint-slice",
        "host-port-conflict",
        "dns-config-forming",
        "metallb-ip-allocated",
        "ip-not-allocated",
    ];
    let mut counted: BTreeMap<Emitted, usize> = BTreeMap::new();
    catalogue.iter().for_each(|id| *counted.entry(entry(id).emitted).or_default() += 1);
    let expected = [
        (Emitted::Current, 12),
        (Emitted::Variant, 3),
        (Emitted::Old, 3),
        (Emitted::Never, 1),
        (Emitted::ThirdParty, 2),
    ];
    assert_eq!(counted, BTreeMap::from(expected));
    let variant =
        recognise(&event("FailedToCreateEndpointSlice", "endpoint-slice-controller", "Service", "x"));
    assert_eq!(variant.confidence, Confidence::Alias);
    assert_eq!(variant.reason.unwrap().reason, "FailedToUpdateEndpointSlices");
}

#[test]
fn correction_02_five_minutes_without_a_failure_are_no_recovery() {
    let pace = Some(Retry { first_ms: 5_000, max_ms: 300_000, times: None });
    for id in ["sync-load-balancer-failed", "update-load-balancer-failed", "delete-load-balancer-failed"] {
        assert_eq!(entry(id).retry, pace, "{id}");
    }
    let failed = ("SyncLoadBalancerFailed", "x");
    assert_eq!(open(&[failed, ("EnsuringLoadBalancer", "x")], 300), [true, true]);
}

#[test]
fn correction_03_updated_is_about_nodes_and_ends_no_failed_ensure() {
    let updated = ("UpdatedLoadBalancer", "Updated load balancer with new hosts");
    assert_eq!(open(&[("SyncLoadBalancerFailed", "x"), updated], 60), [true, true]);
    assert_eq!(open(&[("UpdateLoadBalancerFailed", "x"), updated], 60), [false, true]);
    assert!(!entry("ensuring-load-balancer").after.iter().any(|it| it == "UpdatedLoadBalancer"));
    let entry = entry("updated-load-balancer");
    assert!(entry.meaning.contains("The set of nodes") && entry.meaning.contains("nothing of endpoints"));
    let chain = entry.before.iter().chain(&entry.after);
    assert!(!chain.into_iter().any(|it| it.starts_with("Ensur") || it.contains("Endpoint")), "{entry:?}");
}

#[test]
fn correction_04_no_available_nodes_has_one_cause_and_no_endpoints_in_it() {
    let message = "There are no available nodes for LoadBalancer";
    let recognised = recognise(&event("UnAvailableLoadBalancer", "service-controller", "Service", message));
    assert_eq!((recognised.cause.unwrap().id.as_str(), recognised.also.len()), ("cloud.no_nodes", 0));
    let others = ["endpoint", "selector", "notready", "not ready", "nodeport", "node port", "trafficpolicy"];
    for remedy in &recognised.cause.unwrap().remedy {
        let text = remedy.action.to_lowercase();
        assert!(!others.iter().any(|word| text.contains(word)), "{text}");
    }
    assert!(entry("unavailable-load-balancer").meaning.contains("externalTrafficPolicy are not looked at"));
    assert!(
        !entry("unavailable-load-balancer")
            .before
            .iter()
            .any(|it| it.contains("Node") || it.contains("Endpoint"))
    );
    let unhealthy = cause("UnAvailableLoadBalancer", "x", "Service", "All backend nodes are unhealthy");
    assert_eq!(unhealthy, "cloud.backends_unhealthy");
}

#[test]
fn correction_05_a_failed_deletion_is_a_failed_sync() {
    let message = "Error syncing load balancer: failed to delete load balancer: DependencyViolation: x";
    let recognised = recognise(&event("SyncLoadBalancerFailed", "service-controller", "Service", message));
    assert_eq!(recognised.step, Some(Step::DeleteFailed));
    assert_eq!(recognised.cause.unwrap().id, "cloud.dependency");
    let other =
        recognise(&event("SyncLoadBalancerFailed", "service-controller", "Service", "failed to ensure"));
    assert_eq!(other.step, Some(Step::SyncFailed));
    assert_eq!(open(&[("SyncLoadBalancerFailed", message), ("DeletedLoadBalancer", "x")], 60), [false, true]);
}

#[test]
fn correction_06_events_about_endpoints_are_not_at_the_service() {
    for id in ["failed-to-create-endpoint", "failed-to-update-endpoint"] {
        assert_eq!(entry(id).kinds, ["Endpoints"]);
        let at_service = event(&entry(id).reason, "endpoint-controller", "Service", "x");
        assert_eq!(recognise(&at_service).confidence, Confidence::None);
    }
    let slices = event("FailedToUpdateEndpointSlices", "endpoint-slice-controller", "Service", "x");
    assert_eq!(recognise(&slices).confidence, Confidence::Exact);
}

#[test]
fn correction_07_refused_does_not_say_that_the_controller_is_dead() {
    let cloud =
        cause("SyncLoadBalancerFailed", "service-controller", "Service", "dial tcp: connection refused");
    let api = cause("FailedToUpdateEndpoint", "endpoint-controller", "Endpoints", "connection refused");
    assert_eq!((cloud, api), ("cloud.connection_refused", "api.connection_refused"));
    for id in [cloud, api] {
        let cause = the_cause(id);
        assert!(cause.means.contains("refused the connection"), "{}", cause.means);
        assert!(cause.means.contains("cannot write an Event") || cause.means.contains("none can be written"));
        assert_eq!(cause.remedy[0].risk, Risk::Safe, "nothing is restarted first");
        let starts = cause.remedy.iter().filter(|remedy| remedy.action.contains("start"));
        starts.for_each(|remedy| assert!(remedy.action.contains("Lease"), "{}", remedy.action));
    }
}

#[test]
fn correction_08_missing_rights_are_forbidden_and_not_unauthorized() {
    let of = |message| cause("FailedToCreateEndpoint", "endpoint-controller", "Endpoints", message);
    assert_eq!(
        of("endpoints is forbidden: User \"x\" cannot create resource \"endpoints\""),
        "api.forbidden"
    );
    assert_eq!(of("Unauthorized"), "api.unauthorized");
    assert!(the_cause("api.forbidden").remedy[0].action.contains("role"));
    let credential = &the_cause("api.unauthorized").remedy;
    assert!(credential.iter().all(|remedy| !remedy.action.contains("role")));
}

#[test]
fn correction_09_dns_config_forming_is_about_limits() {
    let of = |message| cause("DNSConfigForming", "kubelet", "Pod", message);
    assert_eq!(of("Search Line limits were exceeded, x"), "dns.search_limit");
    assert_eq!(of("Nameserver limits were exceeded, x"), "dns.nameserver_limit");
    assert_eq!(entry("dns-config-forming").causes[..2], ["dns.search_limit", "dns.nameserver_limit"]);
    let unset = "kubelet does not have ClusterDNS IP configured";
    assert_eq!(cause("MissingClusterDNS", "kubelet", "Pod", unset), "dns.cluster_dns_unset");
    let missing = "open /etc/resolv.conf: no such file or directory";
    assert_eq!(cause("CheckLimitsForResolvConf", "kubelet", "Node", missing), "dns.no_resolv_conf");
    assert!(the_cause("dns.no_service").means.contains("kubelet does not say this"));
}

#[test]
fn correction_10_port_conflicts_are_found_by_the_scheduler_or_at_admission() {
    let message = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";
    assert_eq!(cause("FailedScheduling", "default-scheduler", "Pod", message), "port.same_hostport");
    let admission = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    assert_eq!(cause("NodePorts", "kubelet", "Pod", admission), "port.same_hostport");
    assert_eq!(entry("host-port-conflict").emitted, Emitted::Old);
    assert!(the_cause("port.process").means.contains("does not notice"));
    assert!(the_cause("port.same_hostport").means.contains("a process outside Kubernetes they do not see"));
}

#[test]
fn correction_11_no_advice_annotates_a_slice() {
    nobody_advises("kubectl annotate endpointslice web-x7k2p a=b");
    let conflict = &the_cause("api.conflict").remedy;
    assert!(conflict.iter().any(|remedy| remedy.action.contains("annotate service {name}")), "{conflict:?}");
}

#[test]
fn correction_12_to_delete_a_slice_is_disruptive() {
    let deletes = |text: &str| {
        let text = text.to_lowercase();
        text.contains("slice") && (text.contains("delete") || text.contains("remove"))
    };
    let found: Vec<_> = remedies().filter(|(_, remedy)| deletes(&remedy.action)).collect();
    assert!(!found.is_empty());
    found.iter().for_each(|(cause, remedy)| assert!(remedy.risk >= Risk::Disruptive, "{}", cause.id));
    let order: Vec<Risk> = the_cause("api.conflict").remedy.iter().map(|remedy| remedy.risk).collect();
    assert!(order.is_sorted(), "what is safe comes first: {order:?}");
}

#[test]
fn correction_13_no_controller_is_made_an_administrator() {
    nobody_advises("kubectl create clusterrolebinding x --clusterrole=cluster-admin");
    nobody_says(&["administrator"]);
}

#[test]
fn correction_14_endpoints_are_not_deleted_because_there_are_slices() {
    for what in ["delete", "remove"] {
        for object in ["the endpoints", "endpoints object", "endpoints {name}"] {
            nobody_says(&[what, object]);
        }
    }
    assert!(belief("endpoints-can-be-deleted").truth.contains("anew at once"));
}

#[test]
fn correction_15_a_thousand_addresses_are_cut_and_not_too_large() {
    let too_large = the_cause("api.too_large");
    assert!(too_large.means.contains("end at 1,000") && too_large.means.contains("by hand"));
    assert!(too_large.check.iter().any(|check| check.contains("over-capacity")));
    let cut = event("FailedToUpdateEndpoint", "endpoint-controller", "Endpoints", "1001 addresses");
    assert!(recognise(&cut).reason.is_some() && recognise(&cut).cause.is_none());
}

#[test]
fn correction_16_no_gate_is_offered_that_does_not_exist() {
    nobody_advises("--feature-gates=EndpointSlice=true");
    nobody_advises("DisableEndpointsWatcher=true");
    nobody_says(&["feature gate", "slice"]);
}

#[test]
fn correction_17_a_further_range_is_an_object() {
    nobody_advises("--service-cluster-ip-range=10.96.0.0/16,10.97.0.0/16");
    let first = &the_cause("ip.service_pool").remedy[0];
    assert!(first.action.contains("ServiceCIDR object") && first.risk == Risk::Safe, "{first:?}");
}

#[test]
fn correction_18_the_variables_of_the_sdk_are_spelled_right() {
    nobody_advises("AWS_RETRY_MAX_ATTEMPTS=10");
    let limited = &the_cause("cloud.rate_limited").remedy;
    let is_named = |name: &str| limited.iter().any(|remedy| remedy.action.contains(name));
    assert!(is_named("AWS_MAX_ATTEMPTS=10") && is_named("AWS_RETRY_MODE=adaptive"));
}

#[test]
fn correction_19_no_alert_of_ours_is_one_that_cannot_fire() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for dead in
            ["kube_service_info{type", "kube_endpoint_address_available", "verb=\"update\"", "ingress == 0"]
        {
            assert!(!text.contains(dead), "{}: {dead}", path.display());
        }
    }
    let truth = &belief("the-three-alerts").truth;
    assert!(truth.contains("None of them can fire") && truth.contains("contrib/prometheus"));
}

#[test]
fn correction_20_kube_proxy_writes_six_events() {
    let by_proxy = |reason: &&EventReason| reason.components.iter().any(|by| by == "kube-proxy");
    let reasons = knowledge().reasons().iter().filter(by_proxy).map(|reason| reason.reason.as_str());
    let mut reasons: Vec<&str> = reasons.collect();
    reasons.sort_unstable();
    let expected = [
        "FailedToStartMetricServer",
        "FailedToStartProxierHealthcheck",
        "FailedToStartServiceHealthcheck",
        "IPVSDeprecation",
        "KubeProxyDefaultMode",
        "Starting",
    ];
    assert_eq!(reasons, expected);
    for reason in expected {
        let kind = if reason.contains("Service") { "Service" } else { "Node" };
        assert_eq!(
            recognise(&event(reason, "kube-proxy", kind, "")).confidence,
            Confidence::Exact,
            "{reason}"
        );
    }
}
