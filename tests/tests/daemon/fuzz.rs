//! Fuzzes each parser for two seconds on every run; `make fuzz` runs longer.

use std::time::Duration;

use holdfast_tests::fuzz::{Target, feed, target};
use tempfile::TempDir;

const TIME: Duration = Duration::from_secs(2);

/// Four times the stack of the daemon's threads: unoptimised frames of a parser are that much larger.
const STACK_BYTES: usize = 8 << 20;

#[track_caller]
fn check(name: &'static str) {
    let fed = || feed(target(name).unwrap().as_mut(), 1, TIME, &std::env::temp_dir()).unwrap();
    let report = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(fed).unwrap().join().unwrap();
    assert!(report.inputs > 100 && report.answers > 10, "{name} hardly ran: {report:?}");
}

#[test]
fn broken_configurations_are_refused_or_can_be_served() {
    check("config");
}

#[test]
fn broken_manifests_affect_only_their_own_objects() {
    check("manifests");
}

#[test]
fn broken_dns_answers_give_only_records_that_they_contain() {
    check("names");
}

#[test]
fn broken_queries_are_answered() {
    check("query");
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
    let found = feed(&mut Picky("abc x"), 42, TIME, folder.path()).unwrap_err();
    assert!(found.starts_with("picky, seed 42: an x\ninput: /"), "{found}");
    let path = found.rsplit(' ').next().unwrap();
    assert!(std::fs::read(path).unwrap().contains(&b'x'));
    let panicked = std::panic::catch_unwind(|| feed(&mut Picky("abc y"), 42, TIME, folder.path()));
    assert!(panicked.is_err());
    let kept =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    assert_eq!(kept.filter(|input| input.contains(&b'y')).count(), 1, "the input that panicked");
}
