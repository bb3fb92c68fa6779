//! Results of holdfast's own health checks of this service's backends.
//!
//! Invariant: a backend is healthy only if its last check was good. A check that has not ended, or could not run,
//! proves nothing.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::backend_failures::{gets_clients, interpret_silent_block};
use super::collision::describe_object;
use crate::case::Case;
use crate::evidence::{Probe, ProbeOutcome};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;
use holdfast_status::views::checks::{CheckResult, CheckStatus};

type CheckedBackend<'a> = (&'a SocketAddr, &'a CheckStatus);

pub(super) fn check_health_checks(case: &Case<'_>) -> Judgement {
    let all: Vec<CheckedBackend<'_>> = case.checks().iter().collect();
    let select = |is_wanted: fn(&CheckStatus) -> bool| -> Vec<CheckedBackend<'_>> {
        all.iter().copied().filter(|(_, seen)| is_wanted(seen)).collect()
    };
    let (unusable, failing) = (select(|seen| !seen.usable), select(is_failing));
    let unproven = select(|seen| last_result(seen).is_none_or(|it| it == CheckResult::NotRun));
    let number = format_count(all.len(), "backend");
    if all.is_empty() {
        Judgement::not_applicable("No health check of holdfast is configured for it.")
    } else if !unusable.is_empty() {
        let is_met = unusable.iter().any(|(at, _)| gets_clients(case, **at));
        let harm = match (is_met, unusable.len()) {
            (true, _) if unusable.len() == all.len() => {
                " No other is left, so new clients get them nonetheless."
            }
            (true, _) => "",
            (false, 1) => " It gets no new client, so none meets that.",
            (false, _) => " They get no new client, so none meets that.",
        };
        let (meaning, remedies) = interpret_unusable(case, &unusable);
        let sentence = format!(
            "Holdfast's own health checks fail for {} of {number}: {}.{harm}{meaning}",
            unusable.len(),
            describe_backends(&unusable)
        );
        Judgement::error_if(unusable.len() == all.len(), sentence)
            .with("failed", to_json(&unusable))
            .remedies(remedies)
    } else if !failing.is_empty() {
        Judgement::warning(format!(
            "The last health check failed for {} of {number}, which still gets clients: {}.",
            failing.len(),
            describe_backends(&failing)
        ))
        .with("failed", to_json(&failing))
        .remedy(look_at(&failing, "before further failures take its new clients away."))
    } else if !unproven.is_empty() {
        Judgement::unknown(format!(
            "Holdfast's own health checks say nothing yet of {} of {number}: {}.",
            unproven.len(),
            describe_backends(&unproven)
        ))
    } else {
        Judgement::ok(format!("Each of {number} passes holdfast's own health checks."))
    }
}

/// Whether the last check of a backend that still gets clients failed.
fn is_failing(seen: &CheckStatus) -> bool {
    seen.usable && last_result(seen) == Some(CheckResult::Bad)
}

fn last_result(seen: &CheckStatus) -> Option<CheckResult> {
    seen.last.as_ref().map(|last| last.result.0)
}

/// What this diagnosis has found at backends whose checks fail, as a sentence with a blank before it, and remedies. A
/// backend that refused this host needs no further look.
fn interpret_unusable(case: &Case<'_>, unusable: &[CheckedBackend<'_>]) -> (String, Vec<Remedy>) {
    let is_refused =
        |it: &&Probe| it.outcome == ProbeOutcome::Refused && unusable.iter().any(|(at, _)| **at == it.to);
    let refused: Vec<&Probe> = case.probes().filter(is_refused).collect();
    if refused.len() == unusable.len() {
        let (meaning, remedies) = interpret_silent_block(case, &refused);
        return (format!(" {meaning}"), remedies);
    }
    let is_plain = unusable.iter().all(|(_, seen)| seen.kind == "tcp");
    let places = join_names(unusable.iter().map(|(at, _)| at));
    let look = match is_plain {
        true => format!("See whether a process listens at {places}, and whether this node reaches it."),
        false => {
            let block = case.view().map(describe_object).unwrap_or_default();
            format!("Compare what {places} answers with `health_check` of {block}.")
        }
    };
    (String::new(), vec![Remedy::safe(look)])
}

/// What a person may look at first. `more` ends the sentence.
fn look_at(checked: &[CheckedBackend<'_>], more: &str) -> Remedy {
    let places = join_names(checked.iter().map(|(at, _)| at));
    Remedy::safe(format!("See whether a process listens at {places}, {more}"))
}

fn describe_backends(checked: &[CheckedBackend<'_>]) -> String {
    let error = |seen: &CheckStatus| seen.last.as_ref().and_then(|last| last.error.clone());
    let one = |(at, seen): &CheckedBackend<'_>| match (error(seen), &seen.last) {
        (Some(error), Some(last)) => format!("{at} ({}, {} in a row: {error})", seen.kind, last.in_a_row),
        (_, Some(last)) => format!("{at} ({}: {})", seen.kind, last.result),
        (_, None) => format!("{at} ({}: no check has ended)", seen.kind),
    };
    join_names(checked.iter().map(one))
}

fn to_json(checked: &[CheckedBackend<'_>]) -> Value {
    let one = |(at, seen): &CheckedBackend<'_>| json!({ "backend": at.to_string(), "check": seen });
    json!(checked.iter().take(NAMED_MAX).map(one).collect::<Vec<_>>())
}
