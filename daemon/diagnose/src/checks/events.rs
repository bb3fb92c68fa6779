//! The cluster's Events, and recent changes of the service.
//!
//! Invariant: messages are shown as they are, cleaned and cut; only the knowledge's reading of them decides.

use std::collections::BTreeSet;

use holdfast_core::facts::Timestamp;
use serde_json::{Value, json};

use crate::case::{Case, judge_unavailable};
use crate::evidence::{CauseRemedy, RecognisedEvent};
use crate::finding::{Judgement, Remedy, Risk};
use crate::formatting::{format_count, format_duration, join_names};
use crate::limits::EVENTS_MAX;
use holdfast_status::record::Record;
use holdfast_status::rfc3339::{Millis, Rfc3339};

/// Most Events about a loss come within a minute of it, before or after.
const CORRELATION_SECONDS: u64 = 60;

pub(super) fn check_readable(case: &Case<'_>) -> Judgement {
    let asked = case.events();
    match asked.answer() {
        Some(events) => {
            let more = if *case.has_more_events() { ", and more that were not read" } else { "" };
            Judgement::ok(format!("{} about it{more}.", format_count(events.len(), "Event")))
        }
        None => judge_unavailable(asked, "Events"),
    }
}

/// The knowledge's entry for an Endpoints object that the controller could not create.
const CREATE_FAILED_ENTRY: &str = "failed-to-create-endpoint";

/// Whether an Event's trouble is over. The Endpoints controller also reports a failed creation if it created the object
/// a moment ago and has not seen it yet. It never withdraws that report.
fn is_resolved(case: &Case<'_>, event: &RecognisedEvent) -> bool {
    let made = case.endpoints_lookup().answer().and_then(Option::as_ref).is_some_and(|it| it.by_controller);
    made && event.entry.as_deref() == Some(CREATE_FAILED_ENTRY)
}

/// Open warnings: those that the knowledge calls trouble, then its notices, then unknown ones; the newest first of each
/// kind.
pub(super) fn open_warnings<'a>(case: &Case<'a>) -> Vec<&'a RecognisedEvent> {
    let all = case.events().answer().into_iter().flatten();
    let mut open: Vec<&RecognisedEvent> =
        all.filter(|it| it.open && it.warning && !is_resolved(case, it)).collect();
    open.sort_by_key(|it| (it.entry.is_none(), it.notice, it.last.map_or(i64::MAX, |last| case.age(last))));
    open.truncate(EVENTS_MAX);
    open
}

pub(super) fn event_remedies(event: &RecognisedEvent) -> impl Iterator<Item = Remedy> + use<'_> {
    event.remedies.iter().map(|CauseRemedy { text, risk }| {
        let risk = Risk::ALL.into_iter().find(|it| it.as_str() == risk);
        Remedy::new(risk.unwrap_or(Risk::Disruptive), text)
    })
}

pub(super) fn check_list(case: &Case<'_>) -> Judgement {
    if case.events().answer().is_none() {
        return judge_unavailable(case.events(), "Events");
    }
    let open = open_warnings(case);
    let Some(first) = open.first() else {
        return Judgement::ok_unless(*case.has_more_events(), "No Event is open.");
    };
    let when =
        first.last.map(|last| format!(", {} ago", format_duration(case.age(last)))).unwrap_or_default();
    let object = &first.object;
    let sentence = format!(
        "{} says {} of {} {}{when}: {}",
        name_or_somebody(&first.component),
        first.reason,
        object.kind,
        object.name,
        if first.meaning.is_empty() { &first.message } else { &first.meaning }
    );
    let sentence = format!("{}.", sentence.trim_end_matches('.'));
    let listed: Vec<Value> = open.iter().map(|it| to_json(it)).collect();
    match first.entry {
        Some(_) if first.notice => Judgement::info(sentence),
        Some(_) => Judgement::warning(sentence).remedies(event_remedies(first)).remedy(read_log_remedy()),
        None => Judgement::info(sentence),
    }
    .with("open", listed)
}

fn read_log_remedy() -> Remedy {
    Remedy::safe("Read the log of the component that reports it.")
}

fn name_or_somebody(text: &str) -> &str {
    if text.is_empty() { "somebody" } else { text }
}

fn to_json(it: &RecognisedEvent) -> Value {
    json!({
        "entry": it.entry,
        "reason": it.reason,
        "component": it.component,
        "object": format!("{}/{}/{}", it.object.kind, it.object.namespace, it.object.name),
        "count": it.count,
        "first": it.first.map(|at| Rfc3339(at).to_string()),
        "last": it.last.map(|at| Rfc3339(at).to_string()),
        "cause": it.cause,
        "meaning": it.meaning,
        "message": it.message,
    })
}

/// Records within the queried period, oldest first.
fn recent_records<'a>(case: &Case<'a>) -> impl Iterator<Item = &'a Record> + use<'a> {
    let back = case.scope().since_seconds.saturating_mul(1_000);
    let since = Millis::from(case.taken_at()).0.saturating_sub(back);
    case.history().iter().filter(move |record| record.time.0 >= since)
}

/// The queried period, after `in the last`.
fn describe_period(case: &Case<'_>) -> String {
    match case.scope().since_seconds {
        3_600 => "hour".to_owned(),
        seconds => format_duration(seconds),
    }
}

pub(super) fn check_recent(case: &Case<'_>) -> Judgement {
    let lately = describe_period(case);
    match recent_records(case).count() {
        0 => Judgement::ok(format!("Nothing of it changed in the last {lately}.")),
        number => Judgement::info(format!("{} of it in the last {lately}.", format_count(number, "change")))
            .with("changes", number),
    }
}

fn lost_backends(record: &Record) -> Vec<&str> {
    let removed = record.transitions.iter().flat_map(|it| &it.backends.removed);
    removed.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether an Event began, or last occurred, close to the time of a record.
fn is_concurrent(case: &Case<'_>, event: &RecognisedEvent, record: &Record) -> bool {
    let then = case.age(record.time.seconds());
    let near =
        |at: Option<Timestamp>| at.is_some_and(|at| case.age(at).abs_diff(then) <= CORRELATION_SECONDS);
    near(event.first) || near(event.last)
}

/// Judges the Events of pods and nodes close to a loss of backends.
pub(super) fn check_correlate(case: &Case<'_>) -> Judgement {
    let losses: Vec<&Record> =
        recent_records(case).filter(|record| !lost_backends(record).is_empty()).collect();
    if losses.is_empty() {
        return Judgement::ok(format!(
            "None of its frontends lost a backend in the last {}.",
            describe_period(case)
        ));
    }
    let Some(events) = case.events().answer() else {
        return judge_unavailable(case.events(), "The Events when it lost backends");
    };
    let pod_and_node_events = || events.iter().filter(|it| matches!(it.object.kind.as_str(), "Pod" | "Node"));
    let pairs = losses.iter().rev().flat_map(|record| {
        pod_and_node_events()
            .filter(|event| is_concurrent(case, event, record))
            .map(move |event| (*record, event))
    });
    let pairs: Vec<(&Record, &RecognisedEvent)> = pairs.take(EVENTS_MAX).collect();
    let Some((record, event)) = pairs.first() else {
        return Judgement::ok("No Event about pods or nodes came within a minute of losing backends.");
    };
    let text = if event.meaning.is_empty() { &event.message } else { &event.meaning };
    let at = Rfc3339(record.time.seconds());
    let sentence = format!(
        "Within a minute of losing {} at {at}, {} said {} of {} {}: {text}",
        join_names(lost_backends(record)),
        name_or_somebody(&event.component),
        event.reason,
        event.object.kind,
        event.object.name
    );
    let near = pairs.iter().map(|(record, event)| {
        let lost: Vec<&str> = lost_backends(record).into_iter().take(EVENTS_MAX).collect();
        json!({ "time": Rfc3339(record.time.seconds()).to_string(), "lost": lost,
                "event": to_json(event) })
    });
    Judgement::info(format!("{}.", sentence.trim_end_matches('.')))
        .possible()
        .with("near", near.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use holdfast_knowledge::Knowledge;

    use super::*;

    #[test]
    fn the_catalogue_has_this_entry() {
        assert!(Knowledge::built_in().reasons().iter().any(|reason| reason.id == CREATE_FAILED_ENTRY));
    }
}
