//! The cases in `cases.md`: each is a real daemon's answer in a test here, up to its next step.
//!
//! Invariant: a case that differs from the daemon's answer fails its test, and so does one without a test. Numbers,
//! times and addresses are from the run that recorded it.

use std::fs;
use std::sync::{Mutex, PoisonError};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systems/cluster/cases.md");

/// The heading of the guide's section with the cases.
const CASES: &str = "\n## Cases of a real control plane\n";

/// Several tests write to the same page.
static PAGE: Mutex<()> = Mutex::new(());

/// Compares an answer with the case that begins with this sentence; with `BLESS`, writes it there.
#[track_caller]
pub(crate) fn shows(case: &str, text: &str) {
    let _page = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let page = fs::read_to_string(GUIDE).unwrap();
    let (begins, ends) = place(&page, case).unwrap_or_else(|| panic!("{GUIDE} has no {case:?} with a block"));
    let said = head(text);
    if std::env::var_os("BLESS").is_some() {
        fs::write(GUIDE, [&page[..begins], &said, &page[ends..]].concat()).unwrap();
        return;
    }
    let shown = &page[begins..ends];
    assert_eq!(alike(&said), alike(shown), "{case}: BLESS=1 writes what is said now into {GUIDE}:\n{said}");
}

/// The range of a case's block.
fn place(page: &str, case: &str) -> Option<(usize, usize)> {
    let after = |from: usize, what: &str| Some(from + page[from..].find(what)? + what.len());
    let named = after(after(0, CASES)?, &format!("\n{case} (`"))?;
    let begins = after(named, "\n```\n")?;
    Some((begins, begins + page[begins..].find("```\n")?))
}

/// The head of a diagnosis and its answer with the next step; without a step, also the lasting findings.
fn head(text: &str) -> String {
    let parts: Vec<&str> = text.split("\n\n").collect();
    let has_next = parts.get(1).is_some_and(|answer| answer.contains("\nNext"));
    let findings = parts.get(2).filter(|part| !has_next && !part.starts_with("  endpoints"));
    let besides = findings.map(|part| lasting(part)).filter(|part| !part.is_empty());
    let shown: Vec<&str> = parts.iter().take(2).copied().chain(besides.as_deref()).collect();
    format!("{}\n", shown.join("\n\n").trim_end())
}

/// Findings that depend neither on a test's other services, nor on its duration, nor on when the apiserver records the
/// address that it has given to a Service.
fn lasting(findings: &str) -> String {
    const PASSING: [&str; 3] = [" svc.shared-backends ", " history.", " ipallocator-repair-controller "];
    let mut is_shown = true;
    let lines = findings.lines().filter(|line| {
        if line.starts_with("  ") && !line.starts_with("   ") {
            is_shown = !PASSING.iter().any(|passing| line.contains(passing));
        }
        is_shown
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The words that are equal in every run.
fn alike(text: &str) -> Vec<&str> {
    let differs = |word: &str| {
        word.contains(|it: char| it.is_ascii_digit())
            || is_unit(word)
            || is_of_nobody(word)
            || is_made_up(word)
    };
    text.split_whitespace().filter(|word| !differs(word)).collect()
}

fn bare(word: &str) -> &str {
    word.trim_matches(|it: char| !it.is_alphanumeric())
}

/// At an address without a host, the first connection times out, and a later one may get EHOSTUNREACH.
fn is_of_nobody(word: &str) -> bool {
    matches!(bare(word), "timed" | "out" | "unreachable")
}

fn is_unit(word: &str) -> bool {
    matches!(bare(word), "s" | "min" | "h" | "d" | "ago" | "now")
}

/// The name of a slice ends with five random characters, without vowels.
fn is_made_up(word: &str) -> bool {
    let last = bare(word).rsplit_once('-').map_or("", |(_, last)| last);
    last.len() == 5 && last.chars().all(|it| "bcdfghjklmnpqrstvwxz2456789".contains(it))
}

#[test]
fn every_case_of_the_guide_is_one_of_a_test() {
    let page = fs::read_to_string(GUIDE).unwrap();
    let cases = page.split_once(CASES).unwrap().1.split("\n## ").next().unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/systems/cluster/");
    let all: Vec<(&str, &str)> =
        cases.lines().filter_map(|line| line.strip_suffix("`):")?.rsplit_once(" (`")).collect();
    assert!(all.len() >= 30, "{all:?}");
    for (case, file) in all {
        let test =
            fs::read_to_string(format!("{folder}{file}")).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(test.contains(&format!("\"{case}\"")), "{file} has no {case:?}");
    }
}

#[test]
fn answers_of_two_runs_match_and_those_of_two_causes_differ() {
    let one = "default/a  ClusterIP  192.168.1.7:80/TCP\n\nIts slice web-x7k2p has waited for 26 s.\n";
    let other = "default/a  ClusterIP  192.168.200.1:80/TCP\n\nIts slice web-bcdfg has waited for 3 min.\n";
    assert_eq!(alike(one), alike(other));
    assert_ne!(alike(one), alike(&one.replace("waited", "failed")));
}
