//! The pods behind the selector: are there any, do they run, are they ready, do they have the port.
//!
//! Invariant: without an answer of the apiserver nothing is said about pods. Pods that have ended or are going are not
//! counted among those that should serve.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::snapshot::{FrontendView, Reason, Verdict};
use serde_json::json;

use super::events::remedies;
use crate::case::{Case, missing};
use crate::command::{Command, Word};
use crate::finding::{Judgement, Remedy};
use crate::limits::NAMED_MAX;
use crate::material::{EventSeen, Pod, Pods, TargetPort};
use crate::shown::{self, count, some};
use holdfast_status::rfc3339::Rfc3339;

/// The pods, or why there is nothing to say of them.
fn list<'a>(case: &Case<'a>, what: &str) -> Result<&'a Pods, Judgement> {
    if case.selector().is_some_and(BTreeMap::is_empty) {
        return Err(Judgement::skipped("There is no selector, so no pods belong to it."));
    }
    case.pods().ok_or_else(|| missing(case.asked_pods(), what))
}

fn names<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<&'a str> {
    pods.into_iter().map(|pod| pod.name.as_str()).take(NAMED_MAX).collect()
}

fn describe(case: &Case<'_>, pod: &Pod) -> Option<Command> {
    Command::kubectl(case.namespace(), &[Word::Ours("describe"), Word::Ours("pod"), Word::Name(&pod.name)])
}

/// Whether each endpoint was seen terminating before it went: the service was scaled down on purpose.
pub(super) fn was_scaled_down(case: &Case<'_>) -> bool {
    scaled_down(case).is_some()
}

/// A frontend that was scaled down to nothing. One with a terminating endpoint left still serves, and does not count.
fn scaled_down<'a>(case: &Case<'a>) -> Option<&'a FrontendView> {
    let is_down =
        |it: &&FrontendView| it.reason == Some(Reason::ScaledDown) && it.verdict != Verdict::Draining;
    case.frontends().find(is_down)
}

pub(super) fn matched(case: &Case<'_>) -> Judgement {
    let pods = match list(case, "Which pods the selector matches") {
        Ok(pods) => pods,
        Err(judgement) => return judgement,
    };
    let selector = case.selector().map(shown::selector).unwrap_or_default();
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
            .by(Command::kubectl(
                case.namespace(),
                &[Word::Ours("get"), Word::Ours("pods"), Word::Ours("--show-labels")],
            )),
        ),
        number => Judgement::ok(format!("Selector {selector} matches {more}{}.", count(number, "pod")))
            .with("matched", number),
    }
}

pub(super) fn scaled_to_zero(case: &Case<'_>) -> Judgement {
    let Some(frontend) = scaled_down(case) else {
        return Judgement::ok("It was not scaled down to nothing.");
    };
    Judgement::info(format!(
        "Scaled to zero at {}: each endpoint was seen terminating before it went.",
        Rfc3339(frontend.since)
    ))
    .remedy(Remedy::disruptive("Scale the workload up again, if that was not meant."))
}

pub(super) fn pending(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list(case, "Whether pods have addresses") {
        return judgement;
    }
    let living = case.living();
    let without: Vec<&Pod> = living.iter().copied().filter(|pod| pod.ips.is_empty()).collect();
    let Some(first) = without.first() else {
        return Judgement::ok_unless(case.has_more_pods(), "Every pod has an address.");
    };
    let why = first.waiting.as_ref().or(first.reason.as_ref());
    let why = why.map_or_else(|| first.phase.clone(), |why| format!("{}, {why}", first.phase));
    let said = without.iter().find_map(|pod| said_of(case, pod));
    Judgement::error_if(
        without.len() == living.len(),
        format!(
            "{} of {} no address yet: {} ({why}).{}",
            without.len(),
            have(living.len()),
            some(names(without.iter().copied())),
            said.map(quoted).unwrap_or_default()
        ),
    )
    .with("pods", json!(names(without.iter().copied())))
    .remedies(said.into_iter().flat_map(remedies))
    .remedy(
        Remedy::safe("Look at the Events of the pod: scheduling, image, sandbox.").by(describe(case, first)),
    )
}

/// The latest warning about a pod that is still open and has a known cause.
fn said_of<'a>(case: &Case<'a>, pod: &Pod) -> Option<&'a EventSeen> {
    let is_known = |it: &&EventSeen| it.open && it.warning && it.cause.is_some();
    events_of(case, pod).filter(is_known).max_by_key(|it| it.last)
}

fn events_of<'a>(case: &Case<'a>, pod: &Pod) -> impl Iterator<Item = &'a EventSeen> {
    let events = case.events().answer().into_iter().flatten();
    events.filter(move |it| it.object.kind == "Pod" && it.object.name == pod.name)
}

/// An Event as a sentence that follows another one.
fn quoted(event: &EventSeen) -> String {
    format!(" {} says {}: {}.", event.component, event.reason, event.meaning.trim_end_matches('.'))
}

pub(super) fn unready(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list(case, "Whether pods are ready") {
        return judgement;
    }
    let with_address: Vec<&Pod> = case.living().into_iter().filter(|pod| !pod.ips.is_empty()).collect();
    let unready: Vec<&Pod> = with_address.iter().copied().filter(|pod| !pod.is_ready()).collect();
    let Some(first) = unready.first() else {
        return Judgement::ok_unless(case.has_more_pods(), "Every pod with an address is ready.");
    };
    if case.seen().is_some_and(|seen| seen.publishes_not_ready) {
        return Judgement::info(
            "Pods that are not ready get traffic all the same; see policy.publish-not-ready.",
        );
    }
    Judgement::error_if(
        unready.len() == with_address.len(),
        format!(
            "{} of {} not ready: {}, because {}.",
            unready.len(),
            are(with_address.len()),
            some(names(unready.iter().copied())),
            why(case, first)
        ),
    )
    .with("pods", json!(names(unready.iter().copied())))
    .remedy(
        Remedy::safe("Mend what keeps the pod from being ready; see its Events and its log.")
            .by(describe(case, first)),
    )
}

fn are(number: usize) -> String {
    format!("{} {}", count(number, "pod"), if number == 1 { "is" } else { "are" })
}

/// Why a pod is not ready: the commonest reasons, the surest first.
fn why(case: &Case<'_>, pod: &Pod) -> String {
    let node = pod.node.as_deref().and_then(|node| case.node(node));
    if let Some(node) = node.filter(|node| node.ready.as_ref().is_some_and(|ready| !ready.is_true)) {
        return format!("its node {} is not ready", node.name);
    }
    if let Some(waiting) = &pod.waiting {
        return format!("a container of {} waits: {waiting}", pod.name);
    }
    if !pod.unset_gates.is_empty() {
        return format!("its readiness gate {} is not set", some(&pod.unset_gates));
    }
    let said = events_of(case, pod).filter(|it| it.reason == "Unhealthy" && it.component == "kubelet");
    match said.filter(|it| it.open).max_by_key(|it| it.last) {
        Some(event) => format!("kubelet says \"{}\"", event.message.trim_end_matches('.')),
        None => "its readiness probe has not succeeded".to_owned(),
    }
}

pub(super) fn named_port(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list(case, "Whether pods have the named port") {
        return judgement;
    }
    let Some(seen) = case.seen() else { return missing(case.asked_service(), "Its target ports") };
    let living = case.living();
    for port in &seen.ports {
        let TargetPort::Name(wanted) = &port.target else { continue };
        let has = |pod: &&&Pod| pod.ports.iter().any(|it| it.name == *wanted && it.protocol == port.protocol);
        let lacking = living.len() - living.iter().filter(has).count();
        if lacking > 0 {
            return Judgement::error_if(
                lacking == living.len(),
                format!(
                    "Target port {wanted} is declared by no container of {lacking} of {}.",
                    count(living.len(), "pod")
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

pub(super) fn numeric_port(case: &Case<'_>) -> Judgement {
    if let Err(judgement) = list(case, "Whether pods declare the port") {
        return judgement;
    }
    let Some(seen) = case.seen() else { return missing(case.asked_service(), "Its target ports") };
    let living = case.living();
    let declared: BTreeSet<u16> = living.iter().flat_map(|pod| &pod.ports).map(|port| port.number).collect();
    let numbers = seen.ports.iter().filter_map(|port| match port.target {
        TargetPort::Number(number) => Some(number),
        TargetPort::Name(_) => None,
    });
    let unknown: Vec<u16> = numbers.filter(|number| !declared.contains(number)).collect();
    match unknown.is_empty() || living.is_empty() || declared.is_empty() {
        true => Judgement::ok("The target ports are those that pods declare, or pods declare none."),
        false => Judgement::info(format!(
            "No pod declares port {}, which is legal: look whether anybody listens there.",
            some(&unknown)
        ))
        .with("ports", json!(unknown)),
    }
}

pub(super) fn terminal(case: &Case<'_>) -> Judgement {
    let pods = match list(case, "Whether pods have ended") {
        Ok(pods) => pods,
        Err(judgement) => return judgement,
    };
    let ended: Vec<&Pod> = pods.list.iter().filter(|pod| pod.has_ended()).collect();
    let Some(first) = ended.first() else {
        return Judgement::ok_unless(pods.more, "No pod of it has ended.");
    };
    let said = ended.iter().find_map(|pod| said_of(case, pod));
    let sentence = format!(
        "{} ended and will serve nobody: {}{}.{}",
        have(ended.len()),
        some(names(ended.iter().copied())),
        first.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(),
        said.map(quoted).unwrap_or_default()
    );
    // A service that was scaled down leaves such pods, too; and an ended pod that a slice still lists is judged with
    // the slices.
    let is_all = pods.list.len() == ended.len() && !pods.more;
    let nobody_else = is_all && case.counts().total() == 0 && !was_scaled_down(case);
    let judgement = match nobody_else {
        true => Judgement::error(sentence).remedies(said.into_iter().flat_map(remedies)).remedy(
            Remedy::disruptive("Have its workload make a new pod, once what ended this one is mended.")
                .by(describe(case, first)),
        ),
        false => Judgement::info(sentence),
    };
    judgement.with("pods", json!(names(ended.iter().copied())))
}

fn have(number: usize) -> String {
    format!("{} {}", count(number, "pod"), if number == 1 { "has" } else { "have" })
}
