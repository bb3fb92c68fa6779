//! Fuzzes each parser with the same inputs on every run; `make fuzz` runs longer.

use holdfast_tests::fuzz::{Length, Target, feed, target};
use tempfile::TempDir;

/// A few inputs per kind of mutation and seed; the fuzzing of all parsers takes some seconds.
const INPUTS: Length = Length::Inputs(1_000);

/// Four times the stack of the daemon's threads: unoptimised frames of a parser are that much larger.
const STACK_BYTES: usize = 8 << 20;

/// Feeds the thousand inputs of one seed. They must reach these answers, and this many kinds in all.
#[track_caller]
fn check(name: &'static str, kinds: usize, reached: &[&str]) {
    let fed = || feed(target(name).unwrap().as_mut(), 1, INPUTS, &std::env::temp_dir()).unwrap();
    let answers =
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(fed).unwrap().join().unwrap().answers;
    assert!(answers.len() >= kinds, "{name}: {} kinds: {answers:#?}", answers.len());
    for words in reached {
        assert!(answers.iter().any(|answer| answer.contains(words)), "{name}: no {words:?}: {answers:#?}");
    }
}

#[test]
fn broken_configurations_are_refused_or_can_be_served() {
    check("config", 200, &["a configuration with", "this is not TOML", "is not a legal name"]);
}

#[test]
fn broken_manifests_affect_only_their_own_objects() {
    check("manifests", 100, &["ClusterIP", "LoadBalancer", "slice ", "rejected"]);
}

#[test]
fn broken_dns_answers_give_only_records_that_they_contain() {
    check("names", 8, &["A: one none", "Srv: none one", "it answered with FORMERR"]);
}

#[test]
fn broken_queries_are_answered() {
    check("query", 60, &["200 ", "400 ", "404 "]);
}

/// Rejects every input with an `x`, and panics on a `y`.
struct Picky(&'static str);

impl Target for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        vec![self.0.as_bytes().to_vec()]
    }

    fn read(&mut self, input: &[u8]) -> Result<String, String> {
        assert!(!input.contains(&b'y'), "a y");
        if input.contains(&b'x') { Err("an x".to_owned()) } else { Ok("fine".to_owned()) }
    }
}

#[test]
fn a_finding_saves_its_input_to_a_file() {
    let folder = TempDir::new().unwrap();
    let found = feed(&mut Picky("abc x"), 42, INPUTS, folder.path()).unwrap_err();
    assert!(found.starts_with("picky, seed 42: an x\ninput: /"), "{found}");
    let path = found.rsplit(' ').next().unwrap();
    assert!(std::fs::read(path).unwrap().contains(&b'x'));
    let panicked = std::panic::catch_unwind(|| feed(&mut Picky("abc y"), 42, INPUTS, folder.path()));
    assert!(panicked.is_err());
    let kept =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    assert_eq!(kept.filter(|input| input.contains(&b'y')).count(), 1, "the input that panicked");
}
