//! No part of the knowledge is missing, dead or duplicate.

use std::collections::{BTreeMap, BTreeSet};

use super::{event, recognise};
use crate::store::BUILT_IN;
use crate::{Cause, Emitted, EventReason, EventType, Knowledge, Severity};

/// The reasons of well-known lists.
const CATALOGUE: [&str; 21] = [
    "EnsuringLoadBalancer",
    "EnsuredLoadBalancer",
    "CreatingLoadBalancer",
    "CreatedLoadBalancer",
    "UpdatedLoadBalancer",
    "DeletingLoadBalancer",
    "DeletedLoadBalancer",
    "UpdateLoadBalancerFailed",
    "DeleteLoadBalancerFailed",
    "UnAvailableLoadBalancer",
    "SyncLoadBalancerFailed",
    "FailedToCreateEndpoint",
    "FailedToUpdateEndpoint",
    "FailedToDeleteEndpoint",
    "FailedToCreateEndpointSlice",
    "FailedToUpdateEndpointSlice",
    "FailedToDeleteEndpointSlice",
    "HostPortConflict",
    "DNSConfigForming",
    "IPAllocated",
    "IPNotAllocated",
];

/// Real reasons that those lists lack.
const REAL: [&str; 52] = [
    "FailedToUpdateEndpointSlices",
    "FailedToListEndpointSlices",
    "FailedToListPods",
    "InvalidIPAddress",
    "TooManyAddressesToMirror",
    "TopologyAwareHintsEnabled",
    "TopologyAwareHintsDisabled",
    "ClusterIPNotValid",
    "ClusterIPOutOfRange",
    "ClusterIPNotAllocated",
    "ClusterIPAlreadyAllocated",
    "ServiceCIDRFull",
    "PortNotAllocated",
    "PortAlreadyAllocated",
    "PortOutOfRange",
    "PortRangeFull",
    "UnknownError",
    "IPAddressNotAllocated",
    "IPAddressWrongReference",
    "KubernetesServiceCIDRError",
    "KubernetesDefaultServiceCIDRError",
    "KubernetesDefaultServiceCIDRInconsistent",
    "FailedToStartServiceHealthcheck",
    "Starting",
    "FailedToStartProxierHealthcheck",
    "FailedToStartMetricServer",
    "IPVSDeprecation",
    "KubeProxyDefaultMode",
    "NodePorts",
    "FailedScheduling",
    "NetworkNotReady",
    "FailedCreatePodSandBox",
    "FailedPodSandBoxStatus",
    "SandboxChanged",
    "FailedSync",
    "Unhealthy",
    "ProbeWarning",
    "CheckLimitsForResolvConf",
    "MissingClusterDNS",
    "NodeNotReady",
    "NodeReady",
    "RegisteredNode",
    "RemovingNode",
    "Rebooted",
    "Shutdown",
    "DeletingNode",
    "DeletingNodeFailed",
    "TaintManagerEviction",
    "CIDRNotAvailable",
    "CIDRAssignmentFailed",
    "FailedToCreateRoute",
    "Scheduled",
];

/// Reasons of the service controller for changed fields.
const CHANGES: [&str; 8] = [
    "Type",
    "LoadBalancerSourceRanges",
    "LoadbalancerIP",
    "ExternalIP",
    "UID",
    "ExternalTrafficPolicy",
    "HealthCheckNodePort",
    "IPFamilies",
];

fn reasons() -> &'static [EventReason] {
    Knowledge::built_in().reasons()
}

fn spelled(word: &str) -> impl Iterator<Item = &'static EventReason> {
    reasons().iter().filter(move |reason| reason.reason == word)
}

#[test]
fn the_built_in_knowledge_has_no_fault() {
    let faults: Vec<String> = Knowledge::built_in_faults().iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn each_file_of_the_folder_is_built_in() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../knowledge");
    let files =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = files.map(|file| format!("knowledge/{file}")).collect();
    assert_eq!(there, BUILT_IN.iter().map(|(name, _)| (*name).to_owned()).collect());
    for (name, text) in BUILT_IN {
        assert!(text.lines().count() <= 600, "{name} is too long: divide it by subject");
    }
}

#[test]
fn the_knowledge_is_small() {
    let bytes: usize = BUILT_IN.iter().map(|(_, text)| text.len()).sum();
    assert!(bytes < 1_000_000, "{bytes} bytes");
}

#[test]
fn each_known_reason_has_an_entry() {
    for word in CATALOGUE.iter().chain(&REAL).chain(&CHANGES) {
        assert!(spelled(word).next().is_some(), "{word}");
    }
    let own = |reason: &&EventReason| reason.emitted == Emitted::Current;
    let current: BTreeSet<&str> = reasons().iter().filter(own).map(|reason| &*reason.reason).collect();
    assert!(current.len() >= 60, "{}", current.len());
    for component in [
        "metallb-controller",
        "service",
        "loadbalancer-controller",
        "azure-cloud-provider",
        "antrea-agent",
        "openshift-sdn",
        "metallb-speaker",
    ] {
        assert!(reasons().iter().any(|it| it.components.iter().any(|by| by == component)), "{component}");
    }
    assert!(spelled("AppliedDaemonSet").next().is_some(), "k3s");
}

#[test]
fn each_id_is_unique() {
    let knowledge = Knowledge::built_in();
    let entries = reasons().iter().map(|it| &it.id).chain(knowledge.causes().iter().map(|it| &it.id));
    let others =
        knowledge.beliefs().iter().map(|it| &it.id).chain(knowledge.symptoms().iter().map(|it| &it.id));
    let further =
        knowledge.nevers().iter().map(|it| &it.id).chain(knowledge.refused_writes().iter().map(|it| &it.id));
    let mut seen = BTreeSet::new();
    for id in entries.chain(others).chain(further) {
        assert!(seen.insert(id), "{id} is there twice");
    }
}

#[test]
fn every_named_entry_exists() {
    let knowledge = Knowledge::built_in();
    for belief in knowledge.beliefs() {
        for about in &belief.about {
            assert!(
                knowledge.reason(about).is_some() || knowledge.cause(about).is_some(),
                "{}: {about}",
                belief.id
            );
        }
        assert!(!belief.about.is_empty() && !belief.believed.is_empty() && !belief.truth.is_empty());
    }
    for symptom in knowledge.symptoms() {
        for reason in &symptom.reasons {
            assert!(spelled(reason).next().is_some(), "{}: {reason}", symptom.id);
        }
        assert!(!symptom.checks.is_empty() && symptom.checks.iter().all(|check| check.contains('.')));
    }
    for write in knowledge.refused_writes() {
        assert!(knowledge.cause(&write.cause).is_some(), "{}: {}", write.id, write.cause);
    }
    assert_eq!(knowledge.beliefs().len(), 20);
}

#[test]
fn each_cause_is_used() {
    let knowledge = Knowledge::built_in();
    let of_reasons =
        reasons().iter().flat_map(|it| it.causes.iter().chain(it.when.iter().flat_map(|it| &it.causes)));
    let used: BTreeSet<&String> =
        of_reasons.chain(knowledge.refused_writes().iter().map(|write| &write.cause)).collect();
    for cause in knowledge.causes() {
        assert!(used.contains(&cause.id), "nobody has the cause {}", cause.id);
        assert!(!cause.check.is_empty(), "{} has nothing to look at", cause.id);
    }
}

/// A message that matches the cause by this keyword.
fn message(reason: &EventReason, cause: &Cause, keyword: &str, before: &str) -> String {
    format!("{before} {} {} {keyword}", reason.only_if.join(" "), cause.all.join(" "))
}

#[test]
fn each_keyword_leads_to_its_own_cause_first() {
    let knowledge = Knowledge::built_in();
    for reason in reasons() {
        let general = reason.causes.iter().map(|cause| ("", cause));
        let special =
            reason.when.iter().flat_map(|when| when.causes.iter().map(|cause| (&*when.contains[0], cause)));
        for (before, cause) in general.chain(special) {
            let cause = knowledge.cause(cause).unwrap();
            for keyword in &cause.any {
                let message = message(reason, cause, keyword, before);
                let event = event(&reason.reason, &reason.components[0], &reason.kinds[0], &message);
                let found = recognise(&event);
                assert_eq!(found.cause.map(|it| &*it.id), Some(&*cause.id), "{}: {message}", reason.id);
            }
        }
    }
}

#[test]
fn words_with_one_folded_form_mean_one_reason() {
    let mut folded: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for reason in reasons() {
        let target = reason.alias_of.as_ref().map_or(reason, |id| Knowledge::built_in().reason(id).unwrap());
        for word in reason.aliases.iter().chain([&reason.reason]) {
            let small = word.to_lowercase();
            folded.entry(small.trim_end_matches('s').to_owned()).or_default().insert(&target.reason);
        }
    }
    for (word, reasons) in folded {
        assert_eq!(reasons.len(), 1, "{word}: {reasons:?}");
    }
}

#[test]
fn every_warning_has_a_fallback() {
    for reason in reasons() {
        let asks = reason.severity >= Severity::Warning && reason.alias_of.is_none();
        assert!(!asks || !reason.fallback.is_empty(), "{} has no fallback", reason.id);
        let is_failure = reason.event_type == EventType::Warning;
        assert!(
            !is_failure || reason.severity >= Severity::Notice,
            "{} is a warning, told as nothing",
            reason.id
        );
        assert!(reason.alias_of.is_some() || !reason.says.is_empty(), "{} says nothing", reason.id);
        let chain = reason.before.iter().chain(&reason.after).chain(&reason.resolved_by);
        chain.for_each(|word| assert!(spelled(word).next().is_some(), "{}: {word}", reason.id));
    }
}

#[test]
fn every_known_end_ends_some_reason() {
    let ends: BTreeSet<&str> = reasons().iter().flat_map(|it| &it.resolved_by).map(String::as_str).collect();
    let known =
        ["EnsuredLoadBalancer", "UpdatedLoadBalancer", "DeletedLoadBalancer", "NodeReady", "IPAllocated"];
    known.iter().for_each(|end| assert!(ends.contains(end), "{end} ends nothing"));
}
