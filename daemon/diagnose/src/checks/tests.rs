//! Every case as a file: what is there, and what must be found.
//!
//! Objects of Kubernetes go through the objects crate and through the real engine over maps in memory, so that what is
//! judged is what the product makes of them.

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

/// One file: a case and its variants, each of which changes some of what is given.
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
    /// What is other than in the case, part by part; null takes a part away.
    change: Value,
    expect: Expected,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Expected {
    /// What is said first; `none`: all is well.
    headline: Option<String>,
    /// Id and state, with the confidence if it is not certain.
    findings: BTreeMap<String, String>,
    /// Which finding explains another: the effect, and its cause.
    explained: BTreeMap<String, String>,
    /// Findings that must be no trouble.
    absent: Vec<String>,
    /// Texts that some remedy has, in this order.
    remedies: Vec<String>,
    /// Texts that no remedy has.
    never: Vec<String>,
    /// Texts that the sentence said first has.
    says: Vec<String>,
    /// Texts that the finding of that id has, in its sentence or its evidence.
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

/// Every case and every variant with what is given in it, and what must be found.
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

/// As RFC 7396 patches: parts are replaced, null takes away. Lists are replaced whole.
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

/// What is other than the file says.
fn wrong(material: &Evidence, answer: &DiagnosisResult, expected: &Expected) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, got: String, wanted: &str| {
        if got != wanted {
            wrong.push(format!("{what}: {got}, not {wanted}"));
        }
    };
    let said = answer.headline();
    let headline = said.map_or("none", |it| it.check.id).to_owned();
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
    let first = &Diagnosis::new(material, answer, "1.0.0").verdict.headline;
    for text in &expected.says {
        compare(&format!("{first:?} says {text:?}"), first.contains(text).to_string(), "true");
    }
    for (id, texts) in &expected.tells {
        let judgement = &find(answer, id).judgement;
        let told = format!("{} {}", judgement.sentence, serde_json::to_string(&judgement.evidence).unwrap());
        for text in texts {
            compare(&format!("{id} tells {text:?} in {told}"), told.contains(text).to_string(), "true");
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
fn findings_told(answer: &DiagnosisResult) -> String {
    let bad = answer.findings.iter().filter(|it| !matches!(it.judgement.state, State::Ok | State::Skipped));
    bad.map(|it| format!("    {} {}: {}\n", it.judgement.state.as_str(), it.check.id, it.judgement.sentence))
        .collect()
}

#[test]
fn each_case_is_answered_as_its_file_says() {
    let mut all_wrong = String::new();
    for (name, given, expected) in all() {
        let material = given.material();
        let answer = judge_evidence(&material);
        let wrong = wrong(&material, &answer, expected);
        if !wrong.is_empty() {
            all_wrong.push_str(&format!("{name}:\n  {}\n{}", wrong.join("\n  "), findings_told(&answer)));
        }
    }
    assert!(all_wrong.is_empty(), "\n{all_wrong}");
}

#[test]
fn every_check_has_a_case_in_which_something_is_to_be_said() {
    let mut lacking: BTreeSet<&str> = ALL.iter().map(|check| check.id).collect();
    for (_, given, _) in all() {
        for finding in judge_evidence(&given.material()).findings {
            if !matches!(finding.judgement.state, State::Ok | State::Skipped) {
                lacking.remove(finding.check.id);
            }
        }
    }
    // It says how far a load balancer has come; what is wrong with that, the others say.
    assert_eq!(lacking, ["lb.state"].into());
}

#[test]
fn every_trouble_has_a_remedy_and_a_sentence_that_ends() {
    for (name, given, _) in all() {
        for finding in judge_evidence(&given.material()).findings {
            let judgement = &finding.judgement;
            if judgement.state.is_trouble() {
                assert!(!judgement.remedies.is_empty(), "{name}: {}", finding.check.id);
                assert!(judgement.sentence.ends_with(['.', '…', ')', '?']), "{name}: {}", judgement.sentence);
            }
        }
    }
}

#[test]
fn no_remedy_says_what_must_never_be_said() {
    let never =
        ["cluster-admin", "finalizers\":[]", "--force", "8.8.8.8", "1.1.1.1", "annotate endpointslice"];
    for (name, given, _) in all() {
        for remedy in judge_evidence(&given.material()).findings.iter().flat_map(|it| &it.judgement.remedies)
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

/// How a diagnosis reads, of each case as it is without variants.
#[test]
fn a_diagnosis_is_told_to_the_letter() {
    let mut book = String::new();
    for (name, given, _) in all().iter().filter(|(name, ..)| !name.contains('/')) {
        let material = given.material();
        let answer = judge_evidence(&material);
        let text = text::render_text(&Diagnosis::new(&material, &answer, "1.0.0"), false);
        book.push_str(&format!("== {name}\n{text}\n"));
    }
    expect_file!["tests/diagnoses.txt"].assert_eq(&book);
}

#[test]
fn two_backends_of_one_address_count_as_two_endpoints() {
    let (_, given, _) =
        all().iter().find(|(name, ..)| name == "no-traffic/two-backends-of-one-address").unwrap();
    let material = given.material();
    let endpoints = Diagnosis::new(&material, &judge_evidence(&material), "1.0.0").endpoints;
    assert_eq!((endpoints.ready, endpoints.unready), (2, 0));
}

/// People read one row for all questions that one silent apiserver left open; programs read each of them.
#[test]
fn checks_that_could_not_look_for_one_reason_share_a_row() {
    for (case, why) in [
        ("no-traffic/an-apiserver-that-is-away-is-told-once", "because of self.control"),
        ("no-traffic/nobody-else-may-be-told", "no answer within 1 s"),
    ] {
        let (_, given, _) = all().iter().find(|(name, ..)| name == case).unwrap();
        let material = given.material();
        let answer = judge_evidence(&material);
        let text = text::render_text(&Diagnosis::new(&material, &answer, "1.0.0"), false);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("  unknown ")).collect();
        let silent = answer
            .findings
            .iter()
            .filter_map(Finding::as_unknown)
            .filter(|it| it.explained_by.is_some() || it.reason == Some("no answer within 1 s"));
        let number = silent.count();
        assert!(number > 3 && text.contains(why), "{number}: {text}");
        let shared = format!("  unknown  {number} checks");
        assert_eq!(rows.iter().filter(|row| row.starts_with(&shared)).count(), 1, "{text}");
        let wide = text::render_text(&Diagnosis::new(&material, &answer, "1.0.0"), true);
        assert_eq!(
            wide.lines().filter(|line| line.starts_with("  unknown ")).count(),
            answer.count(State::Unknown)
        );
    }
}

#[test]
fn no_line_is_longer_than_a_terminal_and_none_moves_its_cursor() {
    for (name, given, _) in all() {
        let material = given.material();
        let answer = judge_evidence(&material);
        let text = text::render_text(&Diagnosis::new(&material, &answer, "1.0.0"), true);
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
fn the_example_of_the_page_is_what_is_told() {
    let page = include_str!("../../../../docs/diagnose.md");
    let (_, given, _) = all().iter().find(|(name, ..)| name == "selector").unwrap();
    let material = given.material();
    let text = text::render_text(&Diagnosis::new(&material, &judge_evidence(&material), "1.0.0"), false);
    assert!(page.contains(&text), "docs/diagnose.md has another example than:\n{text}");
}

/// What a check reads is noted as it reads. Its row in the list of checks, and in the page, is what it reads in all
/// cases together.
#[test]
fn a_check_is_said_to_look_where_it_looks() {
    let mut looked: BTreeMap<&str, SourceSet> = BTreeMap::new();
    for (_, given, _) in all() {
        for finding in judge_evidence(&given.material()).findings {
            let known = looked.entry(finding.check.id).or_default();
            *known = finding.sources.iter().fold(*known, SourceSet::with_source);
        }
    }
    let said = |id: &str, places: &mut dyn Iterator<Item = EvidenceSource>| {
        format!("{id}: {}\n", places.map(EvidenceSource::as_str).collect::<Vec<_>>().join(", "))
    };
    let of_list: String = ALL.iter().map(|it| said(it.id, &mut it.sources.iter().copied())).collect();
    let of_cases: String = ALL.iter().map(|it| said(it.id, &mut looked[it.id].iter())).collect();
    assert_eq!(of_list, of_cases);
}
