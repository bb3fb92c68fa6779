//! The output of one guest's test programs: how many tests passed and failed, and what they observed.
//!
//! Invariant: an aborted program counts as a failure, so that a test that did not run never looks passed.

use std::fmt;

/// The prefix of a program's name in a guest's output.
pub(crate) const PROGRAM: &str = "program ";

/// The prefix of an observation; a name, a tab and a value follow.
const OBSERVED: &str = "observed\t";

/// The prefix of a test's line; its name follows.
const TEST: &str = "test ";

/// The summary that ends each test program.
const RESULT: &str = "test result: ";

/// The tests of one guest.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    programs: Vec<Program>,
    observed: Vec<(String, String)>,
    lines: Vec<String>,
    /// Selected names of which no test ran.
    absent: Vec<String>,
}

#[derive(Debug)]
struct Program {
    name: String,
    /// Passed and failed; `None` before the summary.
    result: Option<(u32, u32)>,
}

impl Tally {
    /// Parses a line of the guest.
    pub(crate) fn hear(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix(PROGRAM) {
            self.programs.push(Program { name: name.to_owned(), result: None });
        } else if let (Some(program), Some(counts)) = (self.programs.last_mut(), line.strip_prefix(RESULT)) {
            program.result = Some((count(counts, "passed;"), count(counts, "failed;")));
        } else if let Some((name, value)) = line.split_once(OBSERVED).and_then(|(_, it)| it.split_once('\t'))
        {
            self.observed.push((name.to_owned(), value.to_owned()));
        }
        self.lines.push(line.to_owned());
    }

    /// Fails for each of these that is in no name of a test that ran: a renamed test would be left out unnoticed.
    pub(crate) fn require(&mut self, names: &[&str]) {
        let ran = |name: &str| self.lines.iter().any(|line| line.starts_with(TEST) && line.contains(name));
        self.absent = names.iter().filter(|name| !ran(name)).map(|&name| name.to_owned()).collect();
    }

    /// All lines.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The tests' observations: names and values.
    pub(crate) fn observed(&self) -> &[(String, String)] {
        &self.observed
    }

    /// Failures, aborted programs, absent tests, and a guest without any program.
    pub(crate) fn failed(&self) -> u32 {
        let failed: u32 =
            self.programs.iter().map(|program| program.result.map_or(1, |(_, failed)| failed)).sum();
        let absent = u32::try_from(self.absent.len()).unwrap_or(u32::MAX);
        failed.saturating_add(absent).max(u32::from(self.passed() == 0))
    }

    fn passed(&self) -> u32 {
        self.programs.iter().filter_map(|program| program.result).map(|(passed, _)| passed).sum()
    }
}

/// `61 passed, 0 failed: kernel_life 15, kernel_maps 6 …`
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed(), self.failed())?;
        for (at, program) in self.programs.iter().enumerate() {
            let before = if at == 0 { ": " } else { ", " };
            match program.result {
                Some((passed, _)) => write!(f, "{before}{} {passed}", program.name)?,
                None => write!(f, "{before}{} broke off", program.name)?,
            }
        }
        self.absent.iter().try_for_each(|name| write!(f, "; no test is called {name}"))
    }
}

/// The number before a word.
fn count(counts: &str, word: &str) -> u32 {
    let mut words = counts.split_whitespace().rev().skip_while(|it| *it != word).skip(1);
    words.next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(said: &str, line: &str, failed: u32) {
        let mut tally = Tally::default();
        said.lines().for_each(|line| tally.hear(line));
        assert_eq!((tally.to_string().as_str(), tally.failed()), (line, failed), "of {said:?}");
    }

    #[test]
    fn the_tests_of_all_programs_are_counted() {
        let one =
            "program a\ntest x ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored; 7 filtered out\n";
        check(one, "2 passed, 0 failed: a 2", 0);
        let other = format!("{one}program b\ntest result: FAILED. 3 passed; 1 failed; 0 ignored\n");
        check(&other, "5 passed, 1 failed: a 2, b 3", 1);
        check(&format!("{one}program b\nthread panicked"), "2 passed, 1 failed: a 2, b broke off", 1);
        check("", "0 passed, 1 failed", 1);
    }

    #[test]
    fn a_selected_name_without_a_test_fails() {
        let mut tally = Tally::default();
        let said =
            "program a\nfiltered a::d\ntest a::b_c ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        said.lines().for_each(|line| tally.hear(line));
        tally.require(&["a::b_"]);
        assert_eq!((tally.to_string().as_str(), tally.failed()), ("1 passed, 0 failed: a 1", 0));
        tally.require(&["a::b_", "a::d"]);
        let expected = "1 passed, 1 failed: a 1; no test is called a::d";
        assert_eq!((tally.to_string().as_str(), tally.failed()), (expected, 1));
    }

    #[test]
    fn a_tests_observations_are_kept() {
        let mut tally = Tally::default();
        tally.hear("test x ... observed\tan errno\tECONNREFUSED");
        tally.hear("observed\tnothing");
        assert_eq!(tally.observed(), [("an errno".to_owned(), "ECONNREFUSED".to_owned())]);
    }
}
