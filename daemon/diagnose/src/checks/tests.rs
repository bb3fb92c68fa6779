//! Runs every case from a file: the evidence, and the findings that it must give.
//!
//! Kubernetes objects go through the objects crate and the real engine over maps in memory, so the checks judge what
//! the product makes of them.

mod any;
mod given;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use expect_test::expect_file;
use serde::Deserialize;
use serde_json::Value;

use super::ALL;
use crate::diagnosis_result::{DiagnosisResult, Finding, judge_evidence};
use crate::evidence::Evidence;
use crate::evidence_source::{EvidenceSource, SourceSet};
use crate::finding::{Remedy, State};
use crate::json::Diagnosis;
use crate::limits::COLUMNS_MAX;
use crate::text;
use given::Given;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/diagnose");

/// One file: a case and its variants. Each variant changes some of the evidence.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    given: Value,
    expect: Expected,
    #[serde(default)]
    variants: BTreeMap<String, Variant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variant {
    /// The changes of the case, part by part; null removes a part.
    change: Value,
    expect: Expected,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Expected {
    /// The headline's check; `none`: all is well.
    headline: Option<String>,
    /// Id and state of findings, with the confidence if it is not certain.
    findings: BTreeMap<String, String>,
    /// Explained findings: the effect, and its cause.
    explained: BTreeMap<String, String>,
    /// Findings that must be no trouble.
    absent: Vec<String>,
    /// Texts of some remedies, in this order.
    remedies: Vec<String>,
    /// Texts that no remedy contains.
    never: Vec<String>,
    /// Texts of the headline.
    says: Vec<String>,
    /// Texts of the finding with that id, in its sentence or its evidence.
    tells: BTreeMap<String, Vec<String>>,
    exit: u8,
}

fn files() -> Vec<(String, File)> {
    let names = std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = names.filter(|path| path.extension().is_some_and(|it| it == "yaml")).collect();
    files.sort();
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let file = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, file)
    };
    files.into_iter().map(read).collect()
}

/// Every case and every variant, with its evidence and its expected result.
fn all() -> &'static [(String, Given, Expected)] {
    static ALL: OnceLock<Vec<(String, Given, Expected)>> = OnceLock::new();
    ALL.get_or_init(read)
}

fn read() -> Vec<(String, Given, Expected)> {
    let mut all = Vec::new();
    for (name, file) in files() {
        for (variant, Variant { change, expect }) in file.variants {
            let mut given = file.given.clone();
            merge(&mut given, change);
            all.push((format!("{name}/{variant}"), Given::new(given), expect));
        }
        all.push((name, Given::new(file.given), file.expect));
    }
    all
}

/// Merges a patch like RFC 7396: parts are replaced, null removes one. Lists are replaced whole.
fn merge(given: &mut Value, change: Value) {
    match (given, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                match change {
                    Value::Null => drop(fields.remove(&name)),
                    change => merge(fields.entry(name).or_insert(Value::Null), change),
                }
            }
        }
        (given, Value::Object(changes)) => {
            *given = Value::Object(changes.into_iter().filter(|(_, value)| !value.is_null()).collect());
        }
        (given, change) => *given = change,
    }
}

#[track_caller]
fn find<'a>(answer: &'a DiagnosisResult, id: &str) -> &'a Finding {
    answer.findings.iter().find(|it| it.check.id == id).unwrap_or_else(|| panic!("no check {id}"))
}

/// The differences from the expected result.
fn wrong(evidence: &Evidence, answer: &DiagnosisResult, expected: &Expected) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, got: String, wanted: &str| {
        if got != wanted {
            wrong.push(format!("{what}: {got}, not {wanted}"));
        }
    };
    let first = answer.headline();
    let headline = first.map_or("none", |it| it.check.id).to_owned();
    compare("headline", headline, expected.headline.as_deref().unwrap_or("none"));
    compare("exit", answer.exit.code().to_string(), &expected.exit.to_string());
    for (id, state) in &expected.findings {
        let judgement = &find(answer, id).judgement;
        let got = match judgement.confidence.as_str() {
            "certain" => judgement.state.as_str().to_owned(),
            confidence => format!("{} {confidence}", judgement.state.as_str()),
        };
        compare(id, got, state);
    }
    for (effect, cause) in &expected.explained {
        compare(
            &format!("what explains {effect}"),
            find(answer, effect).explained_by.unwrap_or("nothing").into(),
            cause,
        );
        let is_listed = find(answer, cause).explains.iter().any(|it| it == effect);
        compare(&format!("{cause} explains {effect}"), is_listed.to_string(), "true");
    }
    for id in &expected.absent {
        compare(
            &format!("{id} is trouble"),
            find(answer, id).judgement.state.is_trouble().to_string(),
            "false",
        );
    }
    let first = &Diagnosis::new(evidence, answer, "1.0.0").verdict.headline;
    for text in &expected.says {
        compare(&format!("{first:?} says {text:?}"), first.contains(text).to_string(), "true");
    }
    for (id, texts) in &expected.tells {
        let judgement = &find(answer, id).judgement;
        let finding =
            format!("{} {}", judgement.sentence, serde_json::to_string(&judgement.evidence).unwrap());
        for text in texts {
            compare(&format!("{id} tells {text:?} in {finding}"), finding.contains(text).to_string(), "true");
        }
    }
    wrong.extend(wrong_remedies(answer, expected));
    wrong
}

fn wrong_remedies(answer: &DiagnosisResult, expected: &Expected) -> Vec<String> {
    let remedies = answer.findings.iter().flat_map(|it| &it.judgement.remedies);
    let texts: Vec<String> = remedies.map(written).collect();
    let mut left = texts.iter();
    let lacking = expected.remedies.iter().filter(|wanted| !left.any(|text| text.contains(*wanted)));
    let lacking: Vec<String> =
        lacking.map(|wanted| format!("no remedy {wanted:?} in its place: {texts:?}")).collect();
    let never = expected.never.iter().filter(|never| texts.iter().any(|text| text.contains(*never)));
    lacking.into_iter().chain(never.map(|never| format!("{never:?} in {texts:?}"))).collect()
}

fn written(it: &Remedy) -> String {
    format!("{} {}", it.text, it.command.as_ref().map(ToString::to_string).unwrap_or_default())
}

/// All findings that are neither ok nor skipped, for the message of a failed test.
fn list_findings(answer: &DiagnosisResult) -> String {
    let bad = answer.findings.iter().filter(|it| !matches!(it.judgement.state, State::Ok | State::Skipped));
    bad.map(|it| format!("    {} {}: {}\n", it.judgement.state.as_str(), it.check.id, it.judgement.sentence))
        .collect()
}

#[test]
fn each_case_has_the_result_of_its_file() {
    let mut all_wrong = String::new();
    for (name, given, expected) in all() {
        let evidence = given.evidence();
        let answer = judge_evidence(&evidence);
        let wrong = wrong(&evidence, &answer, expected);
        if !wrong.is_empty() {
            all_wrong.push_str(&format!("{name}:\n  {}\n{}", wrong.join("\n  "), list_findings(&answer)));
        }
    }
    assert!(all_wrong.is_empty(), "\n{all_wrong}");
}

#[test]
fn every_check_has_a_case_that_is_not_ok() {
    let mut lacking: BTreeSet<&str> = ALL.iter().map(|check| check.id).collect();
    for (_, given, _) in all() {
        for finding in judge_evidence(&given.evidence()).findings {
            if !matches!(finding.judgement.state, State::Ok | State::Skipped) {
                lacking.remove(finding.check.id);
            }
        }
    }
    // It reports the state of a load balancer; other checks report its faults.
    assert_eq!(lacking, ["lb.state"].into());
}

#[test]
fn every_warning_and_error_has_a_remedy_and_a_full_stop() {
    for (name, given, _) in all() {
        for finding in judge_evidence(&given.evidence()).findings {
            let judgement = &finding.judgement;
            if judgement.state.is_trouble() {
                assert!(!judgement.remedies.is_empty(), "{name}: {}", finding.check.id);
                assert!(judgement.sentence.ends_with(['.', '…', ')', '?']), "{name}: {}", judgement.sentence);
            }
        }
    }
}

#[test]
fn no_remedy_contains_a_forbidden_phrase() {
    let never =
        ["cluster-admin", "finalizers\":[]", "--force", "8.8.8.8", "1.1.1.1", "annotate endpointslice"];
    for (name, given, _) in all() {
        for remedy in judge_evidence(&given.evidence()).findings.iter().flat_map(|it| &it.judgement.remedies)
        {
            let text = format!(
                "{} {}",
                remedy.text,
                remedy.command.as_ref().map(ToString::to_string).unwrap_or_default()
            );
            assert!(never.iter().all(|word| !text.contains(word)), "{name}: {text}");
        }
    }
}

/// The text of a diagnosis for each case, without variants.
#[test]
fn the_text_of_each_case_matches_the_golden() {
    let mut book = String::new();
    for (name, given, _) in all().iter().filter(|(name, ..)| !name.contains('/')) {
        let evidence = given.evidence();
        let answer = judge_evidence(&evidence);
        let text = text::render_text(&Diagnosis::new(&evidence, &answer, "1.0.0"), false);
        book.push_str(&format!("== {name}\n{text}\n"));
    }
    expect_file!["tests/diagnoses.txt"].assert_eq(&book);
}

#[test]
fn two_backends_of_one_address_count_as_two_endpoints() {
    let (_, given, _) =
        all().iter().find(|(name, ..)| name == "no-traffic/two-backends-of-one-address").unwrap();
    let evidence = given.evidence();
    let endpoints = Diagnosis::new(&evidence, &judge_evidence(&evidence), "1.0.0").endpoints;
    assert_eq!((endpoints.ready, endpoints.unready), (2, 0));
}

/// People read one row for all queries that nobody answered, and none where a finding explains them; programs read each
/// of them.
#[test]
fn unknown_checks_with_one_reason_share_a_row() {
    for (case, row_count, why) in [
        (
            "no-traffic/an-apiserver-that-is-away-is-told-once",
            0,
            "checks without an answer (-o wide names them)",
        ),
        ("no-traffic/nobody-else-may-be-told", 1, "no answer within 1 s"),
    ] {
        let (_, given, _) = all().iter().find(|(name, ..)| name == case).unwrap();
        let evidence = given.evidence();
        let answer = judge_evidence(&evidence);
        let text = text::render_text(&Diagnosis::new(&evidence, &answer, "1.0.0"), false);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("  unknown ")).collect();
        let silent = answer
            .findings
            .iter()
            .filter_map(Finding::as_unknown)
            .filter(|it| it.explained_by.is_some() || it.reason == Some("no answer within 1 s"));
        let number = silent.count();
        assert!(number > 3 && text.contains(why), "{number}: {text}");
        let shared = format!("  unknown  {number} checks");
        assert_eq!(rows.iter().filter(|row| row.starts_with(&shared)).count(), row_count, "{text}");
        let told = format!("explains: {number} checks without an answer");
        assert_eq!(text.contains(&told), row_count == 0, "{text}");
        let wide = text::render_text(&Diagnosis::new(&evidence, &answer, "1.0.0"), true);
        assert_eq!(
            wide.lines().filter(|line| line.starts_with("  unknown ")).count(),
            answer.count(State::Unknown)
        );
    }
}

#[test]
fn no_line_is_longer_than_a_terminal_and_none_moves_its_cursor() {
    for (name, given, _) in all() {
        let evidence = given.evidence();
        let answer = judge_evidence(&evidence);
        let text = text::render_text(&Diagnosis::new(&evidence, &answer, "1.0.0"), true);
        for line in text.lines().filter(|line| !line.trim_start().starts_with("kubectl")) {
            assert!(line.chars().count() <= COLUMNS_MAX, "{name}: {line}");
            assert!(!line.chars().any(char::is_control), "{name}: {line:?}");
        }
        for line in text.lines().filter_map(|line| line.strip_prefix("  ok       ")) {
            let id = line.split(' ').next().unwrap();
            assert!(ALL.iter().any(|check| check.id == id), "{name}: {line}");
        }
    }
}

#[test]
fn the_example_of_the_page_is_the_real_text() {
    let page = include_str!("../../../../docs/diagnose.md");
    let (_, given, _) = all().iter().find(|(name, ..)| name == "selector").unwrap();
    let evidence = given.evidence();
    let text = text::render_text(&Diagnosis::new(&evidence, &judge_evidence(&evidence), "1.0.0"), false);
    assert!(page.contains(&text), "docs/diagnose.md has another example than:\n{text}");
}

/// A check's row in the list of checks, and in the page, names the sources that it reads in all cases together.
#[test]
fn the_list_of_checks_names_the_sources_that_each_reads() {
    let mut read: BTreeMap<&str, SourceSet> = BTreeMap::new();
    for (_, given, _) in all() {
        for finding in judge_evidence(&given.evidence()).findings {
            let known = read.entry(finding.check.id).or_default();
            *known = finding.sources.iter().fold(*known, SourceSet::with_source);
        }
    }
    let row = |id: &str, places: &mut dyn Iterator<Item = EvidenceSource>| {
        format!("{id}: {}\n", places.map(EvidenceSource::as_str).collect::<Vec<_>>().join(", "))
    };
    let listed: String = ALL.iter().map(|it| row(it.id, &mut it.sources.iter().copied())).collect();
    let expected: String = ALL.iter().map(|it| row(it.id, &mut read[it.id].iter())).collect();
    assert_eq!(listed, expected);
}
