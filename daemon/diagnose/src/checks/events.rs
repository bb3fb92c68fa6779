//! What the cluster itself says, and what changed lately.
//!
//! Invariant: messages are shown as they are, cleaned and cut; only what the knowledge made of them decides.

use std::collections::BTreeSet;

use holdfast_core::facts::Timestamp;
use serde_json::{Value, json};

use crate::case::{Case, missing};
use crate::finding::{Judgement, Remedy, Risk};
use crate::limits::EVENTS_MAX;
use crate::material::{EventSeen, RemedySeen};
use crate::shown::{count, some, span};
use holdfast_status::record::Record;
use holdfast_status::rfc3339::{Millis, Rfc3339};

/// What is said of a loss mostly comes within a minute of it, before or after.
const NEAR_SECONDS: u64 = 60;

pub(super) fn readable(case: &Case<'_>) -> Judgement {
    let asked = case.events();
    match asked.answer() {
        Some(events) => {
            let more = if *case.has_more_events() { ", and more that were not read" } else { "" };
            Judgement::ok(format!("{} about it{more}.", count(events.len(), "Event")))
        }
        None => missing(asked, "Events"),
    }
}

/// The knowledge's entry for what the controller of Endpoints says of an object that it could not make.
const NOT_MADE: &str = "failed-to-create-endpoint";

/// Whether the trouble that an Event tells of is over by now. The controller of Endpoints says that it could not make
/// an object also where it has made it a moment ago and has not heard of that yet, and nothing that it says later takes
/// it back.
fn is_over(case: &Case<'_>, event: &EventSeen) -> bool {
    let made = case.asked_endpoints().answer().and_then(Option::as_ref).is_some_and(|it| it.by_controller);
    made && event.entry.as_deref() == Some(NOT_MADE)
}

/// Warnings that nothing has resolved: those that the knowledge takes for trouble come first, then its notices, then
/// those that it has no entry for, and of each kind the newest.
pub(super) fn open<'a>(case: &Case<'a>) -> Vec<&'a EventSeen> {
    let all = case.events().answer().into_iter().flatten();
    let mut open: Vec<&EventSeen> = all.filter(|it| it.open && it.warning && !is_over(case, it)).collect();
    open.sort_by_key(|it| (it.entry.is_none(), it.notice, it.last.map_or(i64::MAX, |last| case.age(last))));
    open.truncate(EVENTS_MAX);
    open
}

/// The remedies that the knowledge has for an Event.
pub(super) fn remedies(event: &EventSeen) -> impl Iterator<Item = Remedy> + use<'_> {
    event.remedies.iter().map(|RemedySeen { text, risk }| {
        let risk = Risk::ALL.into_iter().find(|it| it.as_str() == risk);
        Remedy::new(risk.unwrap_or(Risk::Disruptive), text)
    })
}

pub(super) fn list(case: &Case<'_>) -> Judgement {
    if case.events().answer().is_none() {
        return missing(case.events(), "Events");
    }
    let open = open(case);
    let Some(first) = open.first() else {
        return Judgement::ok_unless(*case.has_more_events(), "No Event is open.");
    };
    let when = first.last.map(|last| format!(", {} ago", span(case.age(last)))).unwrap_or_default();
    let object = &first.object;
    let said = format!(
        "{} says {} of {} {}{when}: {}",
        or_unknown(&first.component),
        first.reason,
        object.kind,
        object.name,
        if first.meaning.is_empty() { &first.message } else { &first.meaning }
    );
    let said = format!("{}.", said.trim_end_matches('.'));
    let listed: Vec<Value> = open.iter().map(|it| summary(it)).collect();
    match first.entry {
        Some(_) if first.notice => Judgement::info(said),
        Some(_) => Judgement::warning(said).remedies(remedies(first)).remedy(read_the_log()),
        None => Judgement::info(said),
    }
    .with("open", listed)
}

fn read_the_log() -> Remedy {
    Remedy::safe("Read the log of the component that says so.")
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "somebody" } else { text }
}

fn summary(it: &EventSeen) -> Value {
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

/// Records that are not older than was asked for, oldest first.
fn records<'a>(case: &Case<'a>) -> impl Iterator<Item = &'a Record> + use<'a> {
    let back = case.narrowed().since_seconds.saturating_mul(1_000);
    let since = Millis::from(case.taken()).0.saturating_sub(back);
    case.history().iter().filter(move |record| record.time.0 >= since)
}

pub(super) fn recent(case: &Case<'_>) -> Judgement {
    let lately = match case.narrowed().since_seconds {
        3_600 => "hour".to_owned(),
        seconds => span(seconds),
    };
    match records(case).count() {
        0 => Judgement::ok(format!("Nothing of it changed in the last {lately}.")),
        number => Judgement::info(format!("{} of it in the last {lately}.", count(number, "change")))
            .with("changes", number),
    }
}

/// Backends that the change took away.
fn lost(record: &Record) -> Vec<&str> {
    let removed = record.transitions.iter().flat_map(|it| &it.backends.removed);
    removed.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether an Event began or was last said close to the time of a record.
fn is_near(case: &Case<'_>, event: &EventSeen, record: &Record) -> bool {
    let then = case.age(record.time.seconds());
    let near = |at: Option<Timestamp>| at.is_some_and(|at| case.age(at).abs_diff(then) <= NEAR_SECONDS);
    near(event.first) || near(event.last)
}

/// Judges what was said of pods and nodes about the time at which backends went.
pub(super) fn correlate(case: &Case<'_>) -> Judgement {
    let losses: Vec<&Record> = records(case).filter(|record| !lost(record).is_empty()).collect();
    if losses.is_empty() {
        return Judgement::ok("It lost no backend lately.");
    }
    let Some(events) = case.events().answer() else {
        return missing(case.events(), "What was said when it lost backends");
    };
    let of_others = || events.iter().filter(|it| matches!(it.object.kind.as_str(), "Pod" | "Node"));
    let pairs = losses.iter().rev().flat_map(|record| {
        of_others().filter(|event| is_near(case, event, record)).map(move |event| (*record, event))
    });
    let pairs: Vec<(&Record, &EventSeen)> = pairs.take(EVENTS_MAX).collect();
    let Some((record, event)) = pairs.first() else {
        return Judgement::ok("Nothing was said of pods or nodes within a minute of losing backends.");
    };
    let said = if event.meaning.is_empty() { &event.message } else { &event.meaning };
    let at = Rfc3339(record.time.seconds());
    let sentence = format!(
        "Within a minute of losing {} at {at}, {} said {} of {} {}: {said}",
        some(lost(record)),
        or_unknown(&event.component),
        event.reason,
        event.object.kind,
        event.object.name
    );
    let told = pairs.iter().map(|(record, event)| {
        let lost: Vec<&str> = lost(record).into_iter().take(EVENTS_MAX).collect();
        json!({ "time": Rfc3339(record.time.seconds()).to_string(), "lost": lost,
                "event": summary(event) })
    });
    Judgement::info(format!("{}.", sentence.trim_end_matches('.')))
        .possible()
        .with("near", told.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use holdfast_knowledge::Knowledge;

    use super::*;

    #[test]
    fn the_catalogue_has_this_entry() {
        assert!(Knowledge::built_in().reasons().iter().any(|reason| reason.id == NOT_MADE));
    }
}
