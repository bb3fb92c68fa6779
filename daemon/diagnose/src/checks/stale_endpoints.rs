//! Endpoints of pods that are gone, and ready pods without an endpoint.
//!
//! Invariant: slices are judged as the apiserver has them now, if it answered: lag of this node is another fault. The
//! checks say nothing about a pod that was not read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use holdfast_core::lifecycle::{Confidence, endpoints as lifecycle};
use serde_json::json;

use super::endpoints::{restart_controller_remedy, touch_service_remedy};
use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::Pod;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, format_duration, join_names};
use crate::limits::NAMED_MAX;

/// The longest time from a pod's deletion to its endpoint's end, and from a pod's readiness to its endpoint.
const DELETION_SECONDS: i64 = 10;
const READY_SECONDS: i64 = 60;

struct PodEndpoint {
    address: IpAddr,
    pod: String,
    uid: String,
    ready: bool,
    terminating: bool,
    node: Option<String>,
    slice: String,
}

struct StaleEndpoint<'a> {
    endpoint: &'a PodEndpoint,
    reason: String,
    is_error: bool,
}

/// The endpoints as the apiserver has them, else as this node has them.
fn list_pod_endpoints(case: &Case<'_>) -> Vec<PodEndpoint> {
    match case.slices_lookup().answer() {
        Some(slices) => {
            let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().map(move |it| (slice, it)));
            let listed =
                |(slice, it): (&crate::evidence::ObservedSlice, &crate::evidence::ObservedEndpoint)| {
                    let target = it.target.as_ref().filter(|target| target.kind == "Pod")?;
                    Some(PodEndpoint {
                        address: it.address?,
                        pod: target.name.clone(),
                        uid: target.uid.clone(),
                        ready: it.ready.unwrap_or(true),
                        terminating: it.terminating.unwrap_or(false),
                        node: it.node.clone(),
                        slice: slice.name.clone(),
                    })
                };
            endpoints.filter_map(listed).collect()
        }
        None => {
            let endpoints = case.slices().flat_map(|slice| slice.endpoints.iter().map(move |it| (slice, it)));
            let known =
                |(slice, it): (&holdfast_core::facts::SliceFacts, holdfast_core::facts::Endpoint<'_>)| {
                    let target = it.target.filter(|target| target.kind == "Pod")?;
                    Some(PodEndpoint {
                        address: it.address,
                        pod: target.name.to_string(),
                        uid: target.uid.to_string(),
                        ready: it.conditions.ready,
                        terminating: it.conditions.terminating,
                        node: it.node.map(|node| node.to_string()),
                        slice: slice.key.name.name().to_owned(),
                    })
                };
            endpoints.filter_map(known).collect()
        }
    }
}

pub(super) fn check_stale(case: &Case<'_>) -> Judgement {
    if case.selector().is_some_and(std::collections::BTreeMap::is_empty) {
        return Judgement::not_applicable("It has no selector: its endpoints need not be pods.");
    }
    let Some(pods) = case.pods() else { return judge_by_slices(case) };
    let listed = list_pod_endpoints(case);
    let found: Vec<StaleEndpoint<'_>> =
        listed.iter().filter_map(|it| judge_endpoint(case, it, &pods.list, pods.more)).collect();
    match found.is_empty() {
        true => Judgement::ok_unless(pods.more, "Every endpoint is the pod that it names."),
        false => judge_stale(case, &found, listed.iter().filter(|it| it.ready).count()),
    }
}

/// Judges without pods: an address that two pods have, and nodes that are gone.
fn judge_by_slices(case: &Case<'_>) -> Judgement {
    if let Some(judgement) = judge_two_owners(case) {
        return judgement;
    }
    let listed = list_pod_endpoints(case);
    let is_gone = |it: &&PodEndpoint| {
        it.node.as_deref().and_then(|node| case.node(node)).is_some_and(|node| !node.exists)
    };
    match listed.iter().find(is_gone) {
        Some(it) => Judgement::warning(format!(
            "{} is on node {}, which is gone.",
            it.address,
            it.node.as_deref().unwrap_or_default()
        ))
        .likely()
        .remedy(touch_service_remedy(case)),
        None => judge_unavailable(case.pods_lookup(), "Whether endpoints are the pods that they name"),
    }
}

/// Judges an endpoint that gets traffic by its pod.
fn judge_endpoint<'a>(
    case: &Case<'_>,
    it: &'a PodEndpoint,
    pods: &[Pod],
    more: bool,
) -> Option<StaleEndpoint<'a>> {
    let bad = |why: String| Some(StaleEndpoint { endpoint: it, reason: why, is_error: true });
    if !it.ready {
        return None;
    }
    let Some(pod) = pods.iter().find(|pod| pod.name == it.pod) else {
        return if more { None } else { bad(format!("no pod {} matches the selector", it.pod)) };
    };
    if !it.uid.is_empty() && pod.uid != it.uid {
        return bad(format!("{} is another pod by now", it.pod));
    }
    if pod.has_ended() {
        let reason = pod.reason.as_deref().unwrap_or(&pod.phase);
        return bad(format!("{} has ended ({reason})", it.pod));
    }
    if !pod.ips.is_empty() && !pod.ips.contains(&it.address) {
        return bad(format!("{} has the address {}", it.pod, join_names(&pod.ips)));
    }
    let deleted = pod.deletion.map(|deletion| case.age(deletion)).filter(|age| *age > DELETION_SECONDS)?;
    let why = format!(
        "{} has been in deletion for {}, and its endpoint is ready",
        it.pod,
        format_duration(deleted)
    );
    (!it.terminating).then_some(StaleEndpoint { endpoint: it, reason: why, is_error: false })
}

/// Judges by slices alone an address that belongs to two pods at once, so that one of the two is gone.
fn judge_two_owners(case: &Case<'_>) -> Option<Judgement> {
    let own = case.view()?;
    let services = case.table().services.iter();
    let all = services.flat_map(|view| view.slices.iter().map(AsRef::as_ref));
    let found = lifecycle::find_stale(&own.slices, all)?;
    let words = found.evidence.iter().filter_map(|it| {
        let slices = it.slices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        Some(format!("{} is two pods at once by {slices}", it.address?))
    });
    let judgement = Judgement::error(format!("{}: one of the two is gone.", join_names(words)))
        .with(
            "addresses",
            found.evidence.iter().filter_map(|it| it.address).map(|it| it.to_string()).collect::<Vec<_>>(),
        )
        .remedy(touch_service_remedy(case))
        .remedy(restart_controller_remedy());
    Some(if found.confidence == Confidence::Certain { judgement } else { judgement.likely() })
}

fn judge_stale(case: &Case<'_>, found: &[StaleEndpoint<'_>], ready: usize) -> Judgement {
    let errors = found.iter().filter(|it| it.is_error);
    let words = found.iter().map(|it| format!("{} ({})", it.endpoint.address, it.reason));
    let is_error = errors.clone().count() > 0;
    let share = format!("{} in {}", errors.clone().count(), ready.max(1));
    let what = if found.len() == 1 { "is no backend any more" } else { "are no backends any more" };
    let sentence = match is_error {
        true => format!("{} {what}; {share} new connections goes there.", join_names(words)),
        false => format!("{}.", join_names(words)),
    };
    let evidence = found.iter().take(NAMED_MAX).map(|it| {
        json!({ "address": it.endpoint.address, "pod": it.endpoint.pod, "why": it.reason, "slice": it.endpoint.slice })
    });
    let slice = found.first().map(|it| it.endpoint.slice.as_str()).unwrap_or_default();
    let delete =
        [CommandWord::Literal("delete"), CommandWord::Literal("endpointslice"), CommandWord::Name(slice)];
    Judgement::error_if(is_error, sentence)
        .with("endpoints", evidence.collect::<Vec<_>>())
        .with("share_of_requests", share)
        .remedy(touch_service_remedy(case))
        .remedy(
            Remedy::disruptive(
                "Delete that slice: every proxy loses all of its endpoints until the controller rewrites it.",
            )
            .with_command(Command::kubectl(case.namespace(), &delete)),
        )
        .remedy(restart_controller_remedy())
}

pub(super) fn check_missing(case: &Case<'_>) -> Judgement {
    if case.pods().is_none() {
        return judge_unavailable(case.pods_lookup(), "Whether every ready pod is an endpoint");
    }
    if case.selector().is_none_or(std::collections::BTreeMap::is_empty) {
        return Judgement::not_applicable("It has no selector: its endpoints need not be pods.");
    }
    let listed: BTreeSet<IpAddr> = list_pod_endpoints(case).iter().map(|it| it.address).collect();
    let is_absent =
        |pod: &&Pod| pod.is_ready() && !pod.ips.is_empty() && !pod.ips.iter().any(|ip| listed.contains(ip));
    let absent: Vec<&Pod> = case.live_pods().into_iter().filter(is_absent).collect();
    let since = |pod: &Pod| pod.ready.as_ref().and_then(|ready| ready.since).map(|since| case.age(since));
    let Some(longest) = absent.iter().max_by_key(|pod| since(pod)) else {
        return Judgement::ok_unless(case.has_more_pods(), "Every ready pod is an endpoint.");
    };
    let age = since(longest);
    let for_long = age.map(|age| format!(" for {}", format_duration(age))).unwrap_or_default();
    let sentence =
        format!("{} has been ready{for_long} and gets no traffic: no slice lists it.", longest.name);
    let sentence = match absent.len() {
        1 => sentence,
        number => format!("{sentence} In all, this affects {}.", format_count(number, "pod")),
    };
    let names: Vec<&str> = absent.iter().map(|pod| pod.name.as_str()).take(NAMED_MAX).collect();
    match age.is_none_or(|age| age > READY_SECONDS) {
        true => Judgement::error(sentence)
            .with("pods", json!(names))
            .remedy(touch_service_remedy(case))
            .remedy(restart_controller_remedy()),
        false => Judgement::info(sentence).with("pods", json!(names)),
    }
}
