//! A diagnosis for people: the headline and the next step first, then the findings, each told once.
//!
//! Invariant: no line is longer than [`COLUMNS_MAX`] except for commands, which are not broken.

use std::fmt::Write as _;

use super::finding::{Remedy, Risk, State};
use super::formatting::{clean, format_count, join_names};
use super::json::{DiagnosedFrontend, Diagnosis, EndpointCounts, FindingRow};
use super::limits::COLUMNS_MAX;
use super::unknown_checks::{UnknownGroup, group_unknown};
use holdfast_status::age::{Age, add_ages};

/// The column at which the texts of findings begin.
const INDENT: usize = 34;

/// The check whose finding the history below it tells in full.
const TOLD_BY_HISTORY: &str = "history.recent";

/// Renders a diagnosis. `all` adds checks that found nothing wrong or were skipped.
pub fn render_text(it: &Diagnosis<'_>, all: bool) -> String {
    let mut out = String::new();
    render_header(&mut out, it);
    render_verdict(&mut out, it);
    // An unanswered check is told by the finding that explains it.
    let is_told = |row: &FindingRow<'_>| row.state.0 == State::Unknown && row.explained_by.is_some();
    let is_hidden = |row: &FindingRow<'_>| {
        matches!(row.state.0, State::Ok | State::Skipped) || is_told(row) || row.id == TOLD_BY_HISTORY
    };
    let is_shown = |row: &&FindingRow<'_>| all || !is_hidden(row);
    let mut rows: Vec<&FindingRow<'_>> = it.findings.iter().filter(is_shown).collect();
    let unanswered: Vec<&str> =
        it.findings.iter().filter(|row| !all && is_told(row)).map(|row| row.id).collect();
    // The worst findings come first; among equals, the unexplained ones.
    rows.sort_by_key(|row| (severity_rank(row.state.0), row.explained_by.is_some()));
    if !rows.is_empty() {
        out.push('\n');
    }
    let groups = if all { Vec::new() } else { group_shared_reasons(&rows) };
    for row in rows {
        match groups.iter().find(|group| group.ids.contains(&row.id)) {
            None => render_finding(&mut out, row, &unanswered, it.verdict.finding == Some(row.id)),
            Some(group) if group.first.id == row.id => render_unknown_group(&mut out, group),
            Some(_) => {}
        }
    }
    render_facts(&mut out, it, unanswered.len(), all);
    out
}

fn group_shared_reasons<'a>(rows: &[&FindingRow<'a>]) -> Vec<UnknownGroup<'a>> {
    let mut groups = group_unknown(rows.iter().filter_map(|row| row.as_unknown()));
    groups.retain(|group| group.ids.len() > 1);
    groups
}

const fn severity_rank(state: State) -> u8 {
    match state {
        State::Error => 0,
        State::Warning => 1,
        State::Info => 2,
        State::Unknown => 3,
        State::Ok => 4,
        State::Skipped => 5,
    }
}

fn render_header(out: &mut String, it: &Diagnosis<'_>) {
    let kind = it.service.r#type.unwrap_or("not known here");
    let frontends: Vec<&str> = it.frontends.iter().map(|it| it.place.as_str()).collect();
    let port = it.port.as_ref().map(|port| format!(" port {port}")).unwrap_or_default();
    push_wrapped(
        out,
        0,
        2,
        &format!("{}/{}{port}  {kind}  {}", it.service.namespace, it.service.name, frontends.join(", ")),
    );
    push_line(out, &format!("node {}  {}  holdfast {}", it.node, it.taken, it.version));
    out.push('\n');
}

fn render_verdict(out: &mut String, it: &Diagnosis<'_>) {
    let verdict = match (it.verdict.state, it.verdict.since) {
        (Some(state), Some(since)) => {
            let age = Age { now: it.taken.0, then: since.0 };
            format!("{} since {since} ({age}). ", state.to_string().to_uppercase())
        }
        _ => String::new(),
    };
    let sure = match it.verdict.confidence.to_string().as_str() {
        "certain" => String::new(),
        confidence => format!(" ({confidence})"),
    };
    // Only the first line of a text begins at the edge, so that no foreign text looks like one of ours.
    push_wrapped(out, 0, 2, &format!("{verdict}{}{sure}", it.verdict.headline));
    if let Some(next) = &it.verdict.next {
        let risk = match next.risk.0 {
            Risk::Safe => String::new(),
            risk => format!(" ({})", risk.as_str()),
        };
        push_wrapped(out, 0, 2, &format!("Next{risk}: {}", next.text));
        render_command(out, next);
    }
}

/// Writes the command of a remedy, unless its text has it already.
fn render_command(out: &mut String, remedy: &Remedy) {
    if let Some(command) =
        remedy.command.as_ref().map(ToString::to_string).filter(|it| !remedy.text.contains(it))
    {
        push_line(out, &format!("        {command}"));
    }
}

/// Writes a finding. Of the findings that it explains, the unanswered ones are only counted. What the headline and the
/// next step have said of it is not said again.
fn render_finding(out: &mut String, it: &FindingRow<'_>, unanswered: &[&str], is_headline: bool) {
    let head = format!("  {:<8} {:<22} ", it.state.to_string(), it.id);
    let sure = match it.confidence.to_string().as_str() {
        "certain" => String::new(),
        confidence => format!(" ({confidence})"),
    };
    let text =
        if is_headline { "the finding at the top".to_owned() } else { format!("{}{sure}", it.message) };
    push_wrapped(out, 0, INDENT, &format!("{head}{text}"));
    if let Some(cause) = it.explained_by {
        push_line(out, &format!("{:INDENT$}because of {cause}", ""));
        return;
    }
    if matches!(it.state.0, State::Ok | State::Skipped | State::Unknown) {
        return;
    }
    for remedy in it.remedies.iter().skip(usize::from(is_headline)) {
        let risk = match remedy.risk.0 {
            Risk::Safe => "remedy (safe)",
            Risk::Disruptive => "remedy (DISRUPTIVE)",
            Risk::Destructive => "remedy (DESTRUCTIVE)",
        };
        push_wrapped(out, 4, 8, &format!("{risk}: {}", remedy.text));
        render_command(out, remedy);
    }
    if !it.explains.is_empty() {
        let (counted, named): (Vec<&str>, Vec<&str>) =
            it.explains.iter().copied().partition(|id| unanswered.contains(id));
        let counted = (!counted.is_empty()).then(|| {
            format!("{} without an answer (-o wide names them)", format_count(counted.len(), "check"))
        });
        let named: Vec<String> = named.into_iter().map(str::to_owned).chain(counted).collect();
        push_wrapped(out, 4, 8, &format!("explains: {}", named.join(", ")));
    }
}

fn render_unknown_group(out: &mut String, group: &UnknownGroup<'_>) {
    let head = format!("  {:<8} {:<22} ", State::Unknown.as_str(), format_count(group.ids.len(), "check"));
    let why = group.first.reason.map(|why| format!("{why}. ")).unwrap_or_default();
    push_wrapped(out, 0, INDENT, &format!("{head}{why}Not looked at: {}.", group.ids.join(", ")));
    if let Some(cause) = group.first.explained_by {
        push_line(out, &format!("{:INDENT$}because of {cause}", ""));
    }
}

/// Writes what was counted. `unanswered`: how many unknown checks another finding tells.
fn render_facts(out: &mut String, it: &Diagnosis<'_>, unanswered: usize, all: bool) {
    out.push('\n');
    push_line(out, &format!("  endpoints   {}", describe_endpoints(&it.endpoints)));
    render_probes(out, it, all);
    for (place, record) in it.history.iter().enumerate() {
        let head = if place == 0 { "history     " } else { "            " };
        push_wrapped(out, 2, 14, &format!("{head}{}", add_ages(&clean(&record.sentence()), it.taken.0)));
    }
    push_wrapped(out, 2, 14, &format!("not checked {}", it.not_checked.join(", ")));
    push_wrapped(out, 2, 4, &format!("{}; exit {}", describe_counts(it, unanswered), it.exit));
}

/// How many findings there are of each state. Those that follow from another one are no faults of their own.
fn describe_counts(it: &Diagnosis<'_>, unanswered: usize) -> String {
    let n = &it.counts;
    let count_consequences = |state: State| {
        it.findings.iter().filter(|row| row.state.0 == state && row.explained_by.is_some()).count()
    };
    let note = |number: usize| match number {
        0 => String::new(),
        _ => format!(" ({number} because of another finding)"),
    };
    format!(
        "{}{}, {}{}, {} info, {} unknown{}, {} ok, {} skipped",
        format_count(n.error, "error"),
        note(count_consequences(State::Error)),
        format_count(n.warning, "warning"),
        note(count_consequences(State::Warning)),
        n.info,
        n.unknown,
        note(unanswered),
        n.ok,
        n.skipped
    )
}

/// The endpoints by state. No word of it is one of our verdicts.
fn describe_endpoints(counts: &EndpointCounts) -> String {
    let states = [
        (counts.ready, "ready"),
        (counts.unready, "unready"),
        (counts.serving, "terminating, still answering"),
        (counts.terminating, "terminating"),
    ];
    let named = states.iter().filter(|(number, _)| *number > 0);
    let named: Vec<String> = named.map(|(number, state)| format!("{number} {state}")).collect();
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

/// Writes the results of test connections to frontends. `all` adds why others were not tried, once.
fn render_probes(out: &mut String, it: &Diagnosis<'_>, all: bool) {
    let is_tried = |it: &&DiagnosedFrontend| it.untried_reason.is_none();
    let tried = it.frontends.iter().filter(is_tried);
    let tried: Vec<String> =
        tried.filter_map(|it| Some(format!("{} {}", it.place, it.probe.as_ref()?))).collect();
    if !tried.is_empty() {
        push_wrapped(out, 2, 14, &format!("probes      {}", tried.join("   ")));
    }
    let untried: Vec<&DiagnosedFrontend> = it.frontends.iter().filter(|it| all && !is_tried(it)).collect();
    if let Some(why) = untried.first().and_then(|it| it.untried_reason) {
        let places = join_names(untried.iter().map(|it| &it.place));
        push_wrapped(out, 2, 14, &format!("not tried   {places}: {why}"));
    }
}

pub(super) fn push_line(out: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", text.trim_end());
}

/// Splits a word that no line can hold. It may be foreign, and no line may be longer.
fn split_word(word: &str, room: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(word);
    std::iter::from_fn(move || {
        let whole = rest.take()?;
        let cut = whole.char_indices().nth(room).map(|(cut, _)| cut);
        let (piece, left) = cut.and_then(|cut| whole.split_at_checked(cut)).unwrap_or((whole, ""));
        rest = (!left.is_empty()).then_some(left);
        Some(piece)
    })
}

/// Writes a text broken between words. Its first line begins at column `first`, the others at `others`.
pub(super) fn push_wrapped(out: &mut String, first: usize, others: usize, text: &str) {
    let mut now = " ".repeat(first);
    let mut is_empty = true;
    for word in text.split(' ').flat_map(|word| split_word(word, COLUMNS_MAX - others)) {
        let length = now.chars().count() + 1 + word.chars().count();
        if !is_empty && length > COLUMNS_MAX {
            push_line(out, &now);
            now = " ".repeat(others);
            is_empty = true;
        }
        if !is_empty {
            now.push(' ');
        }
        is_empty = false;
        now.push_str(word);
    }
    push_line(out, &now);
}
