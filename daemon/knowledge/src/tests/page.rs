//! Generates docs/events.md from the knowledge, so that the two cannot differ.

use std::fmt::Write as _;

use expect_test::expect_file;

use crate::{Cause, Emitted, EventReason, Knowledge, Risk, Subject};

/// The width of the page; tables and lines with links may be wider.
const COLUMNS: usize = 120;

const BEGIN: &str = "\
# What Kubernetes says

Kubernetes' components report what they do and what fails as Events. This page has every reason of such an Event that
concerns Services, load balancers, endpoints, addresses and the network of pods: what it means, who sends it, what comes
before and after it, what is behind its message and what helps. It is made of the files in `knowledge/`, which are also
what the daemon recognises Events by.

What to know first:

- Events are kept for an hour, are left out and merged where there are many, and cannot be written by a component that
  is dead. That there is none proves nothing.
- No Event says \"no endpoints\", and none says that traffic was dropped. Ask `holdfast explain` for that.
- Whoever may create Events may forge them. holdfast shows their text and what it knows of it; no Event ever changes
  what it serves.

A remedy without a word before it is safe: it only reads, or is undone by the reverse step. A **disruptive** one
interrupts traffic or a component, a **destructive** one may lose data or resources of a cloud. NAMESPACE, NAME, POD,
NODE, ADDRESS and PORT stand for those of the object.
";

fn subject(subject: Subject) -> &'static str {
    match subject {
        Subject::LoadBalancer => "Load balancers",
        Subject::Endpoints => "Endpoints and EndpointSlices",
        Subject::Addresses => "Addresses and node ports",
        Subject::Pods => "Pods",
        Subject::Nodes => "Nodes and service proxies",
        Subject::Controllers => "Controllers of others",
        Subject::Other => "Others",
    }
}

fn emitted(reason: &EventReason) -> String {
    let today = match reason.emitted {
        Emitted::Current => "sent today",
        Emitted::Variant => "not sent under this spelling",
        Emitted::Old => "sent by old versions alone",
        Emitted::Never => "never sent",
        Emitted::ThirdParty => "not Kubernetes' own",
    };
    let since = reason.since.as_ref().map_or(String::new(), |since| format!(", since {since}"));
    let frequency = reason.frequency.as_ref().map_or(String::new(), |often| format!(", frequency {often}"));
    format!("{today}{since}{frequency}")
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

fn reason(reason: &EventReason) -> String {
    let mut page = format!("\n### {}\n\n", reason.reason);
    page += &paragraph(&plain(&reason.meaning));
    page.push('\n');
    let senders = if reason.components.is_empty() { "anybody".to_owned() } else { code(&reason.components) };
    page += &item(&format!(
        "{} by {senders}, about {}; {}; told as {}",
        reason.event_type,
        reason.kinds.join(" and "),
        emitted(reason),
        reason.severity
    ));
    if !reason.aliases.is_empty() {
        page += &item(&format!("also spelled {}", code(&reason.aliases)));
    }
    for says in &reason.says {
        page += &item(&format!("says \"{}\"", plain(says)));
    }
    if let Some(impact) = &reason.impact {
        for (whom, how) in
            [("users", &impact.user), ("the Service", &impact.service), ("the cluster", &impact.cluster)]
        {
            page += &item(&format!("impact on {whom}: {}", plain(how)));
        }
    }
    for (name, words) in [
        ("comes after", &reason.before),
        ("is followed by", &reason.after),
        ("is ended by", &reason.resolved_by),
    ] {
        if !words.is_empty() {
            page += &item(&format!("{name} {}", code(words)));
        }
    }
    if let Some(retry) = reason.retry {
        let times = retry.times.map_or(String::new(), |times| format!(", {times} times"));
        let text = format!(
            "is tried again after {}, then later and later up to {}{times}",
            seconds(retry.first_ms),
            seconds(retry.max_ms)
        );
        page += &item(&text);
    }
    for when in &reason.when {
        let words: Vec<String> = when.contains.iter().map(|text| format!("\"{text}\"")).collect();
        let _ =
            writeln!(page, "- causes, first, where it says {}: {}", words.join(" or "), links(&when.causes));
    }
    if !reason.causes.is_empty() {
        let _ = writeln!(page, "- causes, in this order: {}", links(&reason.causes));
    }
    if let Some(why) = &reason.no_causes {
        page += &item(&format!("no causes: {}", plain(why)));
    }
    if !reason.fallback.is_empty() {
        page += &item(&format!("otherwise: {}", plain(&reason.fallback)));
    }
    page + &beliefs(&reason.id)
}

fn beliefs(id: &str) -> String {
    Knowledge::built_in()
        .beliefs()
        .iter()
        .filter(|belief| belief.about.iter().any(|about| about == id))
        .map(|belief| {
            format!("- believed, and not so: [{}](#what-people-believe)\n", belief.id.replace('-', " "))
        })
        .collect()
}

fn cause(cause: &Cause) -> String {
    let mut page = format!("\n### {}\n\n", cause.id);
    page += &paragraph(&plain(&cause.means));
    page.push('\n');
    let whose =
        if cause.providers.is_empty() { String::new() } else { format!(" ({})", cause.providers.join(", ")) };
    let all =
        if cause.all.is_empty() { String::new() } else { format!(" together with {}", code(&cause.all)) };
    let not = if cause.not.is_empty() { String::new() } else { format!(", without {}", code(&cause.not)) };
    page += &item(&format!("found by {}{all}{not}{whose}", code(&cause.any)));
    page += &beliefs(&cause.id);
    page += "\nTo look at:\n\n";
    page.extend(cause.check.iter().map(|check| item(&plain(check))));
    page += "\nWhat helps:\n\n";
    for remedy in &cause.remedy {
        let risk = if remedy.risk == Risk::Safe { String::new() } else { format!("**{}**: ", remedy.risk) };
        page += &item(&format!("{risk}{}", plain(&remedy.action)));
    }
    page
}

fn symptoms(knowledge: &Knowledge) -> String {
    let head =
        "\n## What is seen, and where to look\n\n| seen | reasons | checks | note |\n|---|---|---|---|\n";
    let rows = knowledge.symptoms().iter().map(|it| {
        let reasons: Vec<String> =
            it.reasons.iter().map(|word| format!("[{word}](#{})", anchor(word))).collect();
        let reasons = if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") };
        format!("| {} | {reasons} | {} | {} |\n", plain(&it.seen), code(&it.checks), plain(&it.note))
    });
    head.to_owned() + &rows.collect::<String>()
}

fn believed(knowledge: &Knowledge) -> String {
    let head = "\n## What people believe\n\n| believed | true |\n|---|---|\n";
    let rows = knowledge.beliefs().iter();
    let rows = rows.map(|it| format!("| {} | {} |\n", plain(&it.believed), plain(&it.truth)));
    head.to_owned() + &rows.collect::<String>()
}

fn refused_writes(knowledge: &Knowledge) -> String {
    let head = "\n## Errors that are answered at once\n\nThe apiserver says these to whoever writes a Service; there is \
                never an Event of them.\n\n| says | cause |\n|---|---|\n";
    let rows = knowledge.refused_writes().iter();
    let rows =
        rows.map(|it| format!("| {} | [{}](#{}) |\n", code(&it.contains), it.cause, anchor(&it.cause)));
    head.to_owned() + &rows.collect::<String>()
}

fn nevers(knowledge: &Knowledge) -> String {
    let head = "\n## What is never advised\n\nA test sees to it that no remedy above does.\n\n\
                | not | because |\n|---|---|\n";
    let rows = knowledge.nevers().iter();
    let rows = rows.map(|it| format!("| {} | {} |\n", it.id.replace('-', " "), plain(&it.why)));
    head.to_owned() + &rows.collect::<String>()
}

fn page(knowledge: &Knowledge) -> String {
    let mut page = BEGIN.to_owned() + &symptoms(knowledge) + &believed(knowledge);
    for about in Subject::ALL {
        let reasons: String =
            knowledge.reasons().iter().filter(|it| it.subject == *about).map(self::reason).collect();
        if !reasons.is_empty() {
            let _ = write!(page, "\n## {}\n{reasons}", subject(*about));
        }
    }
    page += "\n## Causes\n";
    page.extend(knowledge.causes().iter().map(self::cause));
    page + &refused_writes(knowledge) + &nevers(knowledge)
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
