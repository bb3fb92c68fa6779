//! The pods behind the selector: whether they exist, run, are ready and have the port.
//!
//! Invariant: without an answer of the apiserver the checks say nothing about pods. Pods that have ended or are in
//! deletion do not count among those that should serve.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::snapshot::{FrontendView, Reason, Verdict};
use serde_json::json;

use super::events::event_remedies;
use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::{Pod, Pods, RecognisedEvent, TargetPort};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{self, format_count, join_names};
use crate::limits::NAMED_MAX;
use holdfast_status::rfc3339::Rfc3339;

/// The pods, or the judgement if there are none to judge.
fn list_pods<'a>(case: &Case<'a>, what: &str) -> Result<&'a Pods, Judgement> {
    if case.selector().is_some_and(BTreeMap::is_empty) {
        return Err(Judgement::not_applicable("There is no selector, so no pods belong to it."));
    }
    case.pods().ok_or_else(|| judge_unavailable(case.pods_lookup(), what))
}

fn pod_names<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<&'a str> {
    pods.into_iter().map(|pod| pod.name.as_str()).take(NAMED_MAX).collect()
}

fn describe_command(case: &Case<'_>, pod: &Pod) -> Option<Command> {
    Command::kubectl(
        case.namespace(),
        &[CommandWord::Literal("describe"), CommandWord::Literal("pod"), CommandWord::Name(&pod.name)],
    )
}

/// Whether the service was scaled down on purpose: each endpoint was seen terminating before it went.
pub(super) fn was_scaled_down(case: &Case<'_>) -> bool {
    scaled_down_frontend(case).is_some()
}

/// A frontend that was scaled down to nothing. One with a terminating endpoint still serves, and does not count.
fn scaled_down_frontend<'a>(case: &Case<'a>) -> Option<&'a FrontendView> {
    let is_down =
        |it: &&FrontendView| it.reason == Some(Reason::ScaledDown) && it.verdict != Verdict::Draining;
    case.frontends().find(is_down)
}

pub(super) fn check_match(case: &Case<'_>) -> Judgement {
    let pods = match list_pods(case, "Which pods the selector matches") {
        Ok(pods) => pods,
        Err(judgement) => return judgement,
    };
    let selector = case.selector().map(formatting::format_selector).unwrap_or_default();
    let more = if pods.more { "at least " } else { "" };
    match pods.list.len() {
        0 if was_scaled_down(case) => {
            Judgement::info(format!("Selector {selector} matches 0 pods: it was scaled down."))
        }
        0 if pods.more => Judgement::unknown("Its pods cannot be read as pods."),
        0 => Judgement::error(format!("Selector {selector} matches 0 pods.")).with("matched", 0).remedy(
            Remedy::safe(
                "Look at the labels of the pods that are meant, and whether their workload has replicas.",
            )
            .with_command(Command::kubectl(
                case.namespace(),
                &[
                    CommandWord::Literal("get"),
                    CommandWord::Literal("pods"),
                    CommandWord::Literal("--show-labels"),
                ],
            )),
        ),
        number => {
            Judgement::ok(format!("Selector {selector} matches {more}{}.", format_count(number, "pod")))
                .with("matched", number)
        }
    }
}

pub(super) fn check_scaled_to_zero(case: &Case<'_>) -> Judgement {
    let Some(frontend) = scaled_down_frontend(case) else {
        return Judgement::ok("It was not scaled down to nothing.");
    };
    Judgement::info(format!(
        "Scaled to zero at {}: each endpoint was seen terminating before it went.",
        Rfc3339(frontend.since)
    ))
    .remedy(Remedy::disruptive("Scale the workload up again, if that was not meant."))
}

pub(super) fn check_pending(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list_pods(case, "Whether pods have addresses") {
        return judgement;
    }
    let living = case.live_pods();
    let without: Vec<&Pod> = living.iter().copied().filter(|pod| pod.ips.is_empty()).collect();
    let Some(first) = without.first() else {
        return Judgement::ok_unless(case.has_more_pods(), "Every pod has an address.");
    };
    let why = first.waiting.as_ref().or(first.reason.as_ref());
    let why = why.map_or_else(|| first.phase.clone(), |why| format!("{}, {why}", first.phase));
    let warning = without.iter().find_map(|pod| latest_known_warning(case, pod));
    Judgement::error_if(
        without.len() == living.len(),
        format!(
            "{} of {} no address yet: {} ({why}).{}",
            without.len(),
            count_with_have(living.len()),
            join_names(pod_names(without.iter().copied())),
            warning.map(quote_event).unwrap_or_default()
        ),
    )
    .with("pods", json!(pod_names(without.iter().copied())))
    .remedies(warning.into_iter().flat_map(event_remedies))
    .remedy(
        Remedy::safe("Look at the Events of the pod: scheduling, image, sandbox.")
            .with_command(describe_command(case, first)),
    )
}

/// The latest open warning about a pod that has a known cause.
fn latest_known_warning<'a>(case: &Case<'a>, pod: &Pod) -> Option<&'a RecognisedEvent> {
    let is_known = |it: &&RecognisedEvent| it.open && it.warning && it.cause.is_some();
    pod_events(case, pod).filter(is_known).max_by_key(|it| it.last)
}

fn pod_events<'a>(case: &Case<'a>, pod: &Pod) -> impl Iterator<Item = &'a RecognisedEvent> {
    let events = case.events().answer().into_iter().flatten();
    events.filter(move |it| it.object.kind == "Pod" && it.object.name == pod.name)
}

/// An Event as a sentence that follows another one.
fn quote_event(event: &RecognisedEvent) -> String {
    format!(" {} says {}: {}.", event.component, event.reason, event.meaning.trim_end_matches('.'))
}

pub(super) fn check_unready(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list_pods(case, "Whether pods are ready") {
        return judgement;
    }
    let with_address: Vec<&Pod> = case.live_pods().into_iter().filter(|pod| !pod.ips.is_empty()).collect();
    let unready: Vec<&Pod> = with_address.iter().copied().filter(|pod| !pod.is_ready()).collect();
    let Some(first) = unready.first() else {
        return Judgement::ok_unless(case.has_more_pods(), "Every pod with an address is ready.");
    };
    if case.api_service().is_some_and(|seen| seen.publishes_not_ready) {
        return Judgement::info(
            "Pods that are not ready get traffic all the same; see policy.publish-not-ready.",
        );
    }
    Judgement::error_if(
        unready.len() == with_address.len(),
        format!(
            "{} of {} not ready: {}, because {}.",
            unready.len(),
            count_with_are(with_address.len()),
            join_names(pod_names(unready.iter().copied())),
            unready_reason(case, first)
        ),
    )
    .with("pods", json!(pod_names(unready.iter().copied())))
    .remedy(
        Remedy::safe("Mend what keeps the pod from being ready; see its Events and its log.")
            .with_command(describe_command(case, first)),
    )
}

fn count_with_are(number: usize) -> String {
    format!("{} {}", format_count(number, "pod"), if number == 1 { "is" } else { "are" })
}

/// Why a pod is not ready: the most common reasons, the surest first.
fn unready_reason(case: &Case<'_>, pod: &Pod) -> String {
    let node = pod.node.as_deref().and_then(|node| case.node(node));
    if let Some(node) = node.filter(|node| node.ready.as_ref().is_some_and(|ready| !ready.is_true)) {
        return format!("its node {} is not ready", node.name);
    }
    if let Some(waiting) = &pod.waiting {
        return format!("a container of {} waits: {waiting}", pod.name);
    }
    if !pod.unset_gates.is_empty() {
        return format!("its readiness gate {} is not set", join_names(&pod.unset_gates));
    }
    let unhealthy = pod_events(case, pod).filter(|it| it.reason == "Unhealthy" && it.component == "kubelet");
    match unhealthy.filter(|it| it.open).max_by_key(|it| it.last) {
        Some(event) => format!("kubelet says \"{}\"", event.message.trim_end_matches('.')),
        None => "its readiness probe has not succeeded".to_owned(),
    }
}

pub(super) fn check_named_port(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list_pods(case, "Whether pods have the named port") {
        return judgement;
    }
    let Some(seen) = case.api_service() else {
        return judge_unavailable(case.service_lookup(), "Its target ports");
    };
    let living = case.live_pods();
    for port in &seen.ports {
        let TargetPort::Name(wanted) = &port.target else { continue };
        let has = |pod: &&&Pod| pod.ports.iter().any(|it| it.name == *wanted && it.protocol == port.protocol);
        let lacking = living.len() - living.iter().filter(has).count();
        if lacking > 0 {
            return Judgement::error_if(
                lacking == living.len(),
                format!(
                    "Target port {wanted} is declared by no container of {lacking} of {}.",
                    format_count(living.len(), "pod")
                ),
            )
            .with("target_port", &**wanted)
            .with("protocol", &*port.protocol)
            .remedy(Remedy::disruptive(
                "Name the container's port so, or use its number as the Service's targetPort.",
            ));
        }
    }
    Judgement::ok_unless(case.has_more_pods(), "Every named target port is declared by the pods.")
}

pub(super) fn check_numeric_port(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list_pods(case, "Whether pods declare the port") {
        return judgement;
    }
    let Some(seen) = case.api_service() else {
        return judge_unavailable(case.service_lookup(), "Its target ports");
    };
    let living = case.live_pods();
    let declared: BTreeSet<u16> = living.iter().flat_map(|pod| &pod.ports).map(|port| port.number).collect();
    let numbers = seen.ports.iter().filter_map(|port| match port.target {
        TargetPort::Number(number) => Some(number),
        TargetPort::Name(_) => None,
    });
    let unknown: Vec<u16> = numbers.filter(|number| !declared.contains(number)).collect();
    match unknown.is_empty() || living.is_empty() || declared.is_empty() {
        true => Judgement::ok("The target ports are those that pods declare, or pods declare none."),
        false => Judgement::info(format!(
            "No pod declares port {}, which is legal: check whether a process listens there.",
            join_names(&unknown)
        ))
        .with("ports", json!(unknown)),
    }
}

pub(super) fn check_terminal(case: &Case<'_>) -> Judgement {
    let pods = match list_pods(case, "Whether pods have ended") {
        Ok(pods) => pods,
        Err(judgement) => return judgement,
    };
    let ended: Vec<&Pod> = pods.list.iter().filter(|pod| pod.has_ended()).collect();
    let Some(first) = ended.first() else {
        return Judgement::ok_unless(pods.more, "No pod of it has ended.");
    };
    let warning = ended.iter().find_map(|pod| latest_known_warning(case, pod));
    let sentence = format!(
        "{} ended and will serve nobody: {}{}.{}",
        count_with_have(ended.len()),
        join_names(pod_names(ended.iter().copied())),
        first.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(),
        warning.map(quote_event).unwrap_or_default()
    );
    // A service that was scaled down leaves such pods, too. `slices.stale` judges an ended pod that a slice still
    // lists.
    let is_all = pods.list.len() == ended.len() && !pods.more;
    let leaves_no_endpoint = is_all && case.counts().total() == 0 && !was_scaled_down(case);
    let judgement = match leaves_no_endpoint {
        true => Judgement::error(sentence).remedies(warning.into_iter().flat_map(event_remedies)).remedy(
            Remedy::disruptive("Have its workload make a new pod, once what ended this one is mended.")
                .with_command(describe_command(case, first)),
        ),
        false => Judgement::info(sentence),
    };
    judgement.with("pods", json!(pod_names(ended.iter().copied())))
}

fn count_with_have(number: usize) -> String {
    format!("{} {}", format_count(number, "pod"), if number == 1 { "has" } else { "have" })
}
