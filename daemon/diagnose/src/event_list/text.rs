//! Events for people: time, object, meaning, cause and remedies.
//!
//! Invariant: no line is longer than a line of a diagnosis.

use super::row::{EventCause, EventRow};
use super::{EventList, MissingRight};
use crate::finding::{Remedy, Risk};
use crate::formatting::format_count;
use crate::limits::PAGES_MAX;
use crate::text::{push_line, push_wrapped};

const INDENT: usize = 4;
const CONTINUATION_INDENT: usize = 8;

pub(super) fn render_text(it: &EventList, all: bool) -> String {
    let mut out = String::new();
    let what = match &it.service {
        Some(service) => format!("Events about {service} and its pods"),
        None => {
            "Events about services and what they depend on; of pods, the warnings of this node".to_owned()
        }
    };
    push_wrapped(&mut out, 0, 2, &what);
    push_line(&mut out, &format!("node {}  {}  holdfast {}", it.node, it.taken, it.version));
    out.push('\n');
    if let Some(why) = &it.why_not {
        render_unread(&mut out, why, it.missing_right.as_ref());
        return out;
    }
    for row in &it.events {
        render_event(&mut out, row, all);
    }
    render_count(&mut out, it);
    out
}

fn render_unread(out: &mut String, why: &str, right: Option<&MissingRight>) {
    push_wrapped(out, 0, 2, &format!("Events were not read: {}.", why.trim_end_matches('.')));
    let Some(MissingRight { api_group, resource, verb, .. }) = right else { return };
    let add = "Add this rule to a role that its account is bound to; the role holdfast-diagnose of \
               contrib/kubernetes/rbac.yaml has it:";
    push_wrapped(out, 0, 2, add);
    push_line(out, &format!("  - apiGroups: [\"{api_group}\"]"));
    push_line(out, &format!("    resources: [{resource}]"));
    push_line(out, &format!("    verbs: [{verb}]"));
}

fn render_count(out: &mut String, it: &EventList) {
    let number = it.events.len();
    let cut = if it.omitted > 0 {
        format!(", and {} older that are not listed", it.omitted)
    } else {
        String::new()
    };
    push_line(out, &format!("{}{cut}", format_count(number, "Event")));
    if it.more {
        push_wrapped(
            out,
            0,
            2,
            &format!(
                "There are more, or some that could not be read: {PAGES_MAX} pages are read of each question at most."
            ),
        );
    }
    if number == 0 && !it.more {
        push_line(
            out,
            "An apiserver keeps them for an hour, so that nothing is said now proves nothing of before.",
        );
    }
}

fn render_event(out: &mut String, it: &EventRow, all: bool) {
    let when = it.last.as_ref().map_or_else(|| "at no time".to_owned(), ToString::to_string);
    let slash = if it.object.namespace.is_empty() { "" } else { "/" };
    let object = format!("{} {}{slash}{}", it.object.kind, it.object.namespace, it.object.name);
    let past = if it.open { "" } else { ", past" };
    push_wrapped(
        out,
        0,
        INDENT,
        &format!("{when}  {object}  {}  {}{past}", it.reason, format_times(it.count)),
    );
    render_meaning(out, it, all);
    let shown = if all { it.remedies.len() } else { 1 };
    if all {
        it.also.iter().for_each(|cause| push_indented(out, &format!("or {}", describe_cause(cause))));
        it.checks.iter().for_each(|check| push_indented(out, &format!("look: {check}")));
    }
    it.remedies.iter().take(shown).for_each(|it| push_indented(out, &describe_remedy(it)));
    out.push('\n');
}

/// Writes the meaning of an Event. It says `Perhaps` if only the reason is recognised: another vendor may mean
/// something else by it.
fn render_meaning(out: &mut String, it: &EventRow, all: bool) {
    let perhaps = if it.confidence == "reason-only" { "Perhaps: " } else { "" };
    match &it.meaning {
        Some(meaning) => push_indented(out, &format!("{perhaps}{meaning}")),
        None => push_indented(out, "The catalogue does not know this one."),
    }
    if let Some(cause) = &it.cause {
        push_indented(out, &format!("cause ({}): {}", it.confidence, describe_cause(cause)));
    }
    if all || it.cause.is_none() {
        let who = if it.component.is_empty() { "It" } else { &it.component };
        push_indented(out, &format!("{who} said: {}", it.message));
    }
}

fn describe_cause(cause: &EventCause) -> String {
    format!("{}: {}", cause.id, cause.means)
}

fn describe_remedy(it: &Remedy) -> String {
    let risk = match it.risk.0 {
        Risk::Safe => "safe",
        Risk::Disruptive => "DISRUPTIVE",
        Risk::Destructive => "DESTRUCTIVE",
    };
    format!("remedy ({risk}): {}", it.text)
}

fn format_times(number: u32) -> String {
    match number {
        1 => "once".to_owned(),
        _ => format!("{number} times"),
    }
}

fn push_indented(out: &mut String, text: &str) {
    push_wrapped(out, INDENT, CONTINUATION_INDENT, text);
}
