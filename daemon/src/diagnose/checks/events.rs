//! What the cluster itself says, and what changed lately.
//!
//! Invariant: messages are shown as they are, cleaned and cut; nothing but what the catalogue made of them decides.

use serde_json::{Value, json};

use crate::diagnose::case::{Case, missing};
use crate::diagnose::finding::{Judgement, Remedy, Risk};
use crate::diagnose::limits::EVENTS_MAX;
use crate::diagnose::material::{EventSeen, RemedySeen};
use crate::diagnose::shown::{count, span};
use crate::rfc3339::{Millis, Rfc3339};

/// How far back a change counts as recent.
const RECENT_SECONDS: i64 = 3_600;

pub(super) fn readable(case: &Case<'_>) -> Judgement {
    let asked = &case.cluster().events;
    match asked.answer() {
        Some(events) => {
            let more = if case.cluster().more_events { ", and more that were not read" } else { "" };
            Judgement::ok(format!("{} about it{more}.", count(events.len(), "Event")))
        }
        None => missing(asked, "Events"),
    }
}

/// Those that nothing has resolved, worst first.
pub(crate) fn open<'a>(case: &Case<'a>) -> Vec<&'a EventSeen> {
    let all = case.cluster().events.answer().into_iter().flatten();
    let mut open: Vec<&EventSeen> = all.filter(|it| it.open && it.warning).collect();
    open.sort_by_key(|it| (it.entry.is_none(), it.last.map_or(i64::MAX, |last| case.age(last))));
    open.truncate(EVENTS_MAX);
    open
}

/// What the catalogue knows against it.
pub(super) fn remedies(event: &EventSeen) -> impl Iterator<Item = Remedy> + use<'_> {
    event.remedies.iter().map(|RemedySeen { text, risk }| {
        let risk = Risk::ALL.into_iter().find(|it| it.as_str() == risk);
        Remedy::new(risk.unwrap_or(Risk::Disruptive), text)
    })
}

pub(super) fn list(case: &Case<'_>) -> Judgement {
    if case.cluster().events.answer().is_none() {
        return missing(&case.cluster().events, "Events");
    }
    let open = open(case);
    let Some(first) = open.first() else { return Judgement::ok("No Event is open.") };
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

pub(super) fn recent(case: &Case<'_>) -> Judgement {
    let since = Millis::from(case.material.taken).0.saturating_sub(RECENT_SECONDS * 1000);
    let recent = case.material.history.iter().filter(|record| record.time.0 >= since).count();
    match recent {
        0 => Judgement::ok("Nothing of it changed in the last hour."),
        number => Judgement::info(format!("{} of it in the last hour.", count(number, "change")))
            .with("changes", number),
    }
}
