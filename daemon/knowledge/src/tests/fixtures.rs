//! Messages as components send them, each with its expected recognition.

use std::collections::BTreeSet;

use super::{event, recognise};
use crate::expected_event::{ExpectedEvent, MESSAGES, MismatchReason};
use crate::{Confidence, Emitted, Knowledge};

/// Well-known messages of such Events, with their causes.
const CATALOGUE: &str = include_str!("fixtures/catalogue.tsv");

fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    table.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.splitn(N, '\t').collect();
        fields.try_into().unwrap_or_else(|_| panic!("{line}"))
    })
}

#[test]
fn each_message_has_its_cause() {
    for [reason, component, kind, cause, _, message] in rows(MESSAGES) {
        let recognised = recognise(&event(reason, component, kind, message));
        let found = recognised.cause.map_or("-", |cause| cause.id.as_str());
        assert_eq!(found, cause, "{reason}: {message}");
        assert!(recognised.confidence >= Confidence::Alias, "{reason} {component}");
        let advice = recognised.advice();
        assert!(!advice.remedies.is_empty() || found == "-", "{reason}");
    }
}

#[test]
fn each_message_is_from_source_or_from_a_run() {
    let from_run = rows(MESSAGES).filter(|[.., from, _]: &[&str; 6]| match *from {
        "source" => false,
        "run" => true,
        other => panic!("{other} is no origin of a message"),
    });
    assert!(from_run.count() >= 64, "messages that a cluster on this machine can send");
}

#[test]
fn only_a_message_on_record_from_a_run_counts() {
    let verify = |reason: &'static str, component, kind, cause, message| {
        ExpectedEvent { reason, component, kind, cause }.verify(&event(reason, component, kind, message))
    };
    assert_eq!(verify("EnsuredLoadBalancer", "service-controller", "Service", "-", "Ensured"), Ok(()));
    assert_eq!(
        verify("Type", "service-controller", "Service", "-", "a -> b"),
        Err(MismatchReason::NotRecorded)
    );
    assert_eq!(
        verify("EnsuredLoadBalancer", "somebody", "Service", "-", "Ensured"),
        Err(MismatchReason::Unsure(Confidence::ReasonOnly))
    );
    let other = verify("EnsuredLoadBalancer", "service-controller", "Service", "cloud.quota", "Ensured");
    assert_eq!(other, Err(MismatchReason::Different));
}

#[test]
fn each_well_known_message_has_its_cause() {
    let knowledge = Knowledge::built_in();
    for [reason, cause, message] in rows(CATALOGUE) {
        let known = knowledge.reasons().iter().find(|it| it.reason == reason).expect(reason);
        let (component, kind) = (&known.components[0], &known.kinds[0]);
        let recognised = recognise(&event(reason, component, kind, message));
        assert_eq!(recognised.cause.expect(message).id, cause, "{reason}: {message}");
    }
    assert_eq!(rows::<3>(CATALOGUE).count(), 33);
}

#[test]
fn each_reason_and_each_cause_has_a_message() {
    let knowledge = Knowledge::built_in();
    let of_reasons: BTreeSet<(&str, &str)> =
        rows(MESSAGES).map(|[reason, by, ..]: [&str; 6]| (reason, by)).collect();
    let has_message = |reason: &crate::EventReason| {
        reason.components.iter().any(|by| of_reasons.contains(&(&*reason.reason, &**by)))
    };
    for reason in knowledge.reasons() {
        assert!(has_message(reason), "no message of {}", reason.id);
        assert!(
            reason.emitted == Emitted::Variant || reason.alias_of.is_none() || reason.emitted == Emitted::Old
        );
    }
    let mut of_causes: BTreeSet<&str> = rows(MESSAGES).map(|[_, _, _, cause, ..]: [&str; 6]| cause).collect();
    of_causes.extend(rows(CATALOGUE).map(|[_, cause, _]: [&str; 3]| cause));
    for cause in knowledge.causes() {
        assert!(of_causes.contains(&*cause.id), "no message of {}", cause.id);
    }
}

#[test]
fn a_merged_message_has_the_same_cause() {
    let merged = "(combined from similar events): Error syncing load balancer: failed to ensure load balancer: \
                  RequestLimitExceeded: Request limit exceeded";
    let event = event("SyncLoadBalancerFailed", "service-controller", "Service", merged);
    assert!(event.merged && event.message.starts_with("Error syncing"));
    assert_eq!(recognise(&event).cause.unwrap().id, "cloud.rate_limited");
}

#[test]
fn further_causes_are_named_beside_the_first() {
    let message =
        "failed to ensure load balancer: RequestLimitExceeded; AuthFailure; i/o timeout; no such host; x";
    let recognised = recognise(&event("SyncLoadBalancerFailed", "service-controller", "Service", message));
    let also: Vec<&str> = recognised.also.iter().map(|cause| &*cause.id).collect();
    assert_eq!(recognised.cause.unwrap().id, "cloud.rate_limited");
    assert_eq!(also, ["cloud.auth_failure", "cloud.dns", "cloud.deadline"]);
}

#[test]
fn confidence_depends_on_spelling_and_sender() {
    let confidence = |reason, component, kind| recognise(&event(reason, component, kind, "x")).confidence;
    let sync = "SyncLoadBalancerFailed";
    assert_eq!(confidence(sync, "service-controller", "Service"), Confidence::Exact);
    assert_eq!(confidence(sync, "k8s.io/service-controller", "Service"), Confidence::Exact);
    assert_eq!(confidence("syncLoadbalancerfailed", "service-controller", "Service"), Confidence::Alias);
    assert_eq!(confidence("FailedToUpdateEndpoints", "endpoint-controller", "Endpoints"), Confidence::Alias);
    assert_eq!(confidence("CreateLoadBalancerFailed", "service-controller", "Service"), Confidence::Alias);
    assert_eq!(confidence(sync, "my-controller", "Service"), Confidence::ReasonOnly);
    assert_eq!(confidence(sync, "", "Service"), Confidence::ReasonOnly);
    assert_eq!(confidence(sync, "service-controller", ""), Confidence::ReasonOnly);
    assert_eq!(
        confidence(sync, "service-controller", "Pod"),
        Confidence::None,
        "no component sends it about a pod"
    );
    assert_eq!(confidence("Moonstruck", "service-controller", "Service"), Confidence::None);
}

#[test]
fn the_sender_chooses_among_reasons_of_one_word() {
    let id =
        |reason, component, kind| recognise(&event(reason, component, kind, "x")).reason.unwrap().id.clone();
    assert_eq!(id("Starting", "kube-proxy", "Node"), "kube-proxy-starting");
    assert_eq!(id("Starting", "kubelet", "Node"), "kubelet-starting");
    assert_eq!(id("NetworkNotReady", "antrea-agent", "Pod"), "antrea-network-not-ready");
    assert_eq!(id("NodeNotReady", "node-controller", "Pod"), "pod-node-not-ready");
    assert_eq!(id("NodeNotReady", "node-controller", "Node"), "node-not-ready");
}

#[test]
fn a_shared_word_is_recognised_by_its_message_only() {
    let reason =
        |message| recognise(&event("FailedScheduling", "default-scheduler", "Pod", message)).reason.is_some();
    assert!(reason("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."));
    assert!(!reason("0/1 nodes are available: 1 Insufficient cpu."));
}

#[test]
fn an_unknown_reason_is_shown_as_it_is() {
    let event = event("Moonstruck", "tide", "Service", "the moon is full");
    let recognised = recognise(&event);
    assert!(recognised.reason.is_none() && recognised.advice().remedies.is_empty());
    assert_eq!(recognised.severity, crate::Severity::Warning);
    assert_eq!(recognised.to_line(&event), "Service shop/web: Moonstruck. Message: the moon is full");
}

#[test]
fn an_unknown_sender_gives_a_line_with_perhaps() {
    let event = event("SyncLoadBalancerFailed", "my-controller", "Service", "no such host");
    let line = recognise(&event).to_line(&event);
    assert!(line.starts_with("Service shop/web: SyncLoadBalancerFailed. Perhaps: The external"), "{line}");
    assert!(line.ends_with("Message: no such host"), "{line}");
}

#[test]
fn the_name_of_an_object_does_not_choose_its_cause() {
    let mut named = event(
        "FailedToUpdateEndpoint",
        "endpoint-controller",
        "Endpoints",
        "Failed to update endpoint shop/conflict: etcdserver: request is too large",
    );
    named.object.name = "conflict".to_owned();
    assert_eq!(recognise(&named).cause.unwrap().id, "api.too_large");
}

#[test]
fn a_refused_write_has_its_cause_too() {
    let cause = |message| Knowledge::built_in().refused_write_cause(message).map(|cause| cause.id.as_str());
    let nodeport = "Service \"web\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already \
                    allocated";
    assert_eq!(cause(nodeport), Some("port.nodeport_taken"));
    assert_eq!(
        cause("provided port is not in the valid range. The range is 30000-32767"),
        Some("port.nodeport_range")
    );
    assert_eq!(cause("failed to allocate a serviceIP: range is full"), Some("ip.service_pool"));
    assert_eq!(
        cause("failed to allocate IP 10.96.0.7: provided IP is already allocated"),
        Some("ip.conflict")
    );
    assert_eq!(cause("something else"), None);
}
