//! Generates docs/events.md from the knowledge, so that the two cannot differ.

use std::fmt::Write as _;

use expect_test::expect_file;

use crate::{Cause, Emitted, EventReason, Knowledge, Remedy, Risk, Severity, Subject};

/// The width of the page; tables and lines with links may be wider.
const COLUMNS: usize = 120;

/// Every cluster has this version, so the page does not say it.
const FIRST_VERSION: &str = "1.0";

const BEGIN: &str = "\
# Kubernetes' Events about Services

For an operator who reads an Event in `holdfast events` or `kubectl describe`: what it means, what causes it and what
helps. The page is generated from `knowledge/*.toml`; the daemon recognises Events by the same files.

- A missing Event proves nothing. Kubernetes keeps Events for an hour, merges and drops them under load, and a dead
  component writes none.
- No Event says \"no endpoints\" or that traffic was dropped. Use `holdfast explain` for that.
- Anyone who may create Events can forge them. holdfast shows them, but never changes what it serves because of one.

Each reason has the Event's type, its senders, its objects and the severity in holdfast. \"Effect\" is what the Service
suffers. holdfast tries causes in their order; where none fits, \"otherwise\" holds. A fix without a label is safe: it
only reads, or the reverse step undoes it. A **disruptive** one interrupts traffic or a component. A **destructive** one
may lose data or cloud resources. NAMESPACE, NAME, POD, NODE, ADDRESS and PORT stand for those of the object.
";

fn subject(subject: Subject) -> &'static str {
    match subject {
        Subject::LoadBalancer => "Load balancers",
        Subject::Endpoints => "Endpoints and EndpointSlices",
        Subject::Addresses => "Addresses and node ports",
        Subject::Pods => "Pods",
        Subject::Nodes => "Nodes and service proxies",
        Subject::Controllers => "Third-party controllers",
        Subject::Other => "Others",
    }
}

/// What a reader has to know of who sends a reason today; nothing where Kubernetes does.
fn emission(emitted: Emitted) -> &'static str {
    match emitted {
        Emitted::Current | Emitted::ThirdParty => "",
        Emitted::Variant => ", never in this spelling",
        Emitted::Old => ", old versions only",
        Emitted::Never => ", never sent",
    }
}

/// Type, senders, objects and severity of a reason.
fn origin(reason: &EventReason) -> String {
    let senders =
        if reason.components.is_empty() { String::new() } else { format!(", {}", code(&reason.components)) };
    let since = reason.since.as_ref().filter(|since| *since != FIRST_VERSION);
    let since = since.map_or(String::new(), |since| format!(", since {since}"));
    format!(
        "{}{senders}, {}, {}{since}{}",
        reason.event_type,
        reason.kinds.join(" and "),
        reason.severity,
        emission(reason.emitted)
    )
}

/// What the Service suffers, or else its users; none: nothing.
fn effect(reason: &EventReason) -> Option<String> {
    let impact = reason.impact.as_ref()?;
    let harmed = [&impact.service, &impact.user].into_iter().find(|how| *how != "none");
    harmed.map(|how| plain(how))
}

/// Plain text of a sentence: words for placeholders, and no Markdown syntax.
fn plain(text: &str) -> String {
    let names = [
        ("{ns}", "NAMESPACE"),
        ("{name}", "NAME"),
        ("{pod}", "POD"),
        ("{node}", "NODE"),
        ("{ip}", "ADDRESS"),
        ("{port}", "PORT"),
    ];
    let filled = names.iter().fold(text.to_owned(), |text, (place, word)| text.replace(place, word));
    filled.replace('|', "\\|").replace('*', "\\*").replace('<', "\\<").replace('[', "\\[")
}

/// Wraps a text. The first line begins with one prefix, further lines with another.
fn wrapped(first: &str, further: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line = further.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines + line.trim_end() + "\n"
}

fn paragraph(text: &str) -> String {
    wrapped("", "", text)
}

fn item(text: &str) -> String {
    wrapped("- ", "  ", text)
}

fn anchor(heading: &str) -> String {
    let legal = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    legal.collect::<String>().to_lowercase().replace(' ', "-")
}

fn links(ids: &[String]) -> String {
    let links: Vec<String> = ids.iter().map(|id| format!("[{id}](#{})", anchor(id))).collect();
    links.join(", ")
}

fn code(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn seconds(ms: u32) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{} s", ms / 1_000) }
}

/// A reason with causes of its own has a section, and the others are rows of a table.
fn has_section(reason: &EventReason) -> bool {
    reason.alias_of.is_none() && !(reason.causes.is_empty() && reason.when.is_empty())
}

fn format_section(reason: &EventReason) -> String {
    let mut page = format!("\n### {}\n\n{}\n", reason.reason, paragraph(&plain(&reason.meaning)));
    page += &item(&origin(reason));
    if !reason.aliases.is_empty() {
        page += &item(&format!("other spelling: {}", code(&reason.aliases)));
    }
    if let Some(message) = reason.says.first() {
        page += &item(&format!("example: \"{}\"", plain(message)));
    }
    if let Some(effect) = effect(reason) {
        page += &item(&format!("effect: {effect}"));
    }
    if !reason.resolved_by.is_empty() {
        page += &item(&format!("ended by {}", code(&reason.resolved_by)));
    }
    if let Some(retry) = reason.retry {
        let times = retry.times.map_or(String::new(), |times| format!(", {times} times"));
        let (first, longest) = (seconds(retry.first_ms), seconds(retry.max_ms));
        page += &item(&format!("retried after {first}, then with growing pauses up to {longest}{times}"));
    }
    for when in &reason.when {
        let words: Vec<String> = when.contains.iter().map(|text| format!("\"{text}\"")).collect();
        let (words, causes) = (words.join(" or "), links(&when.causes));
        let _ = writeln!(page, "- causes if the message has {words}: {causes}");
    }
    if !reason.causes.is_empty() {
        let _ = writeln!(page, "- causes: {}", links(&reason.causes));
    }
    if !reason.fallback.is_empty() {
        page += &item(&format!("otherwise: {}", plain(&reason.fallback)));
    }
    page
}

fn format_row(reason: &EventReason) -> String {
    let aliases =
        if reason.aliases.is_empty() { String::new() } else { format!(" ({})", code(&reason.aliases)) };
    let effect = effect(reason).map_or(String::new(), |effect| format!(" Effect: {effect}."));
    let has_end = !reason.resolved_by.is_empty() && reason.severity != Severity::Info;
    let end = if has_end { format!(" Ended by {}.", code(&reason.resolved_by)) } else { String::new() };
    let action = if reason.fallback.is_empty() { "Nothing." } else { reason.fallback.as_str() };
    format!(
        "| `{}`{aliases} | {} | {}{effect}{end} | {} |\n",
        reason.reason,
        origin(reason),
        plain(&reason.meaning),
        plain(action)
    )
}

fn format_subject(knowledge: &Knowledge, about: Subject) -> String {
    let reasons = || knowledge.reasons().iter().filter(|it| it.subject == about);
    if reasons().next().is_none() {
        return String::new();
    }
    let sections: String = reasons().filter(|it| has_section(it)).map(format_section).collect();
    let rows: String = reasons().filter(|it| !has_section(it)).map(format_row).collect();
    let heading = subject(about);
    let table = if rows.is_empty() {
        String::new()
    } else {
        let columns = "| reason | Event | meaning | do |\n|---|---|---|---|";
        format!("\n### {heading}: other reasons\n\n{columns}\n{rows}")
    };
    format!("\n## {heading}\n{sections}{table}")
}

fn format_cause(cause: &Cause) -> String {
    let mut page = format!("\n### {}\n\n{}\n", cause.id, paragraph(&plain(&cause.means)));
    let whose =
        if cause.providers.is_empty() { String::new() } else { format!(" ({})", cause.providers.join(", ")) };
    let all =
        if cause.all.is_empty() { String::new() } else { format!(" together with {}", code(&cause.all)) };
    let not = if cause.not.is_empty() { String::new() } else { format!(", without {}", code(&cause.not)) };
    page += &paragraph(&format!("Message: {}{all}{not}{whose}", code(&cause.any)));
    let checks: Vec<String> = cause.check.iter().map(|check| plain(check)).collect();
    let fixes: Vec<String> = cause.remedy.iter().map(format_fix).collect();
    page + &format_steps("Check", &checks) + &format_steps("Fix", &fixes)
}

fn format_fix(remedy: &Remedy) -> String {
    let risk = if remedy.risk == Risk::Safe { String::new() } else { format!("**{}**: ", remedy.risk) };
    format!("{risk}{}", plain(&remedy.action))
}

/// One step in a line with its label, several as a list.
fn format_steps(label: &str, steps: &[String]) -> String {
    match steps {
        [step] => format!("\n{}", paragraph(&format!("{label}: {step}"))),
        steps => format!("\n{label}:\n\n{}", steps.iter().map(|step| item(step)).collect::<String>()),
    }
}

fn format_symptoms(knowledge: &Knowledge) -> String {
    let head = "\n## Start from the symptom\n\n\
                | symptom | reasons | checks of `holdfast diagnose` | note |\n|---|---|---|---|\n";
    let is_linked =
        |word: &String| knowledge.reasons().iter().any(|it| it.reason == *word && has_section(it));
    let name = |word: &String| {
        if is_linked(word) { format!("[{word}](#{})", anchor(word)) } else { format!("`{word}`") }
    };
    let rows = knowledge.symptoms().iter().map(|it| {
        let reasons: Vec<String> = it.reasons.iter().map(name).collect();
        let reasons = if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") };
        format!("| {} | {reasons} | {} | {} |\n", plain(&it.seen), code(&it.checks), plain(&it.note))
    });
    head.to_owned() + &rows.collect::<String>()
}

fn format_refused_writes(knowledge: &Knowledge) -> String {
    let head = "\n## Errors at `kubectl apply`\n\nThe apiserver answers with these; there is no Event.\n\n\
                | message | cause |\n|---|---|\n";
    let rows = knowledge.refused_writes().iter();
    let rows =
        rows.map(|it| format!("| {} | [{}](#{}) |\n", code(&it.contains), it.cause, anchor(&it.cause)));
    head.to_owned() + &rows.collect::<String>()
}

fn format_nevers(knowledge: &Knowledge) -> String {
    let head = "\n## What not to do\n\n| never | because |\n|---|---|\n";
    let rows = knowledge.nevers().iter();
    let rows = rows.map(|it| format!("| {} | {} |\n", it.id.replace('-', " "), plain(&it.why)));
    head.to_owned() + &rows.collect::<String>()
}

fn page(knowledge: &Knowledge) -> String {
    let mut page = BEGIN.to_owned() + &format_symptoms(knowledge);
    page.extend(Subject::ALL.iter().map(|about| format_subject(knowledge, *about)));
    page += "\n## Causes\n";
    page.extend(knowledge.causes().iter().map(format_cause));
    page + &format_refused_writes(knowledge) + &format_nevers(knowledge)
}

#[test]
fn the_page_matches_the_knowledge() {
    expect_file!["../../../../docs/events.md"].assert_eq(&page(Knowledge::built_in()));
}

#[test]
fn every_linked_heading_exists() {
    let page = page(Knowledge::built_in());
    let headings: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches(['#', ' '])))
        .collect();
    for link in page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(headings.iter().any(|heading| heading == link), "no heading for {link}");
    }
}
