//! The report of a run: a line for each part, the failures, the slowest tests, and the sum as the last line.
//!
//! Invariant: the sum counts each test once. A requested part that could not run counts as a failure if `CI` is set,
//! and is always listed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::pool::Outcome;
use crate::supply::SupplyResult;

/// More unsteady tests than this in one run are no accident.
const UNSTEADY_MAX: usize = 2;

/// How many of the slowest tests are shown, and of those with most CPU time.
const LONGEST_SHOWN: usize = 10;

/// How many of the last lines of a failed test are shown at the end; more are shown where it failed.
const LINES_AT_END: usize = 40;

/// How many earlier lines that name failures are shown: a part may be one program with hundreds of tests, and its last
/// lines may be about others.
const LINES_OF_FAILURES: usize = 20;

/// The result of one part.
#[derive(Debug, Default)]
pub(crate) struct PartReport {
    pub(crate) name: String,
    pub(crate) passed: usize,
    pub(crate) failed: Vec<FailedTest>,
    /// Tests that failed among others and passed alone.
    pub(crate) unsteady: Vec<String>,
    /// What passed tests could not try on this machine, with their names.
    pub(crate) untried: Vec<String>,
    /// What the machine lacks to run it, with the remedy.
    pub(crate) unmet: Option<String>,
    /// Why it did not run, although the machine has what it needs.
    pub(crate) absent: Option<String>,
    pub(crate) waited: Duration,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) times: Vec<TestTime>,
}

/// What a test took.
#[derive(Clone, Debug)]
pub(crate) struct TestTime {
    pub(crate) test: String,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct FailedTest {
    pub(crate) test: String,
    pub(crate) how: String,
    pub(crate) output: String,
}

impl FailedTest {
    pub(crate) fn from_outcome(outcome: &Outcome) -> Self {
        let ended = &outcome.ended;
        Self { test: outcome.test.clone(), how: ended.how.clone(), output: ended.output() }
    }
}

impl PartReport {
    pub(crate) fn is_whole(&self) -> bool {
        self.has_run() && self.failed.is_empty() && self.passed > 0
    }

    fn has_run(&self) -> bool {
        self.unmet.is_none() && self.absent.is_none()
    }

    /// The line that is printed when the part has ended.
    pub(crate) fn line(&self) -> String {
        if let Some(why) = &self.absent {
            return format!("{:<24} not run: {why}", self.name);
        }
        let (wall, cpu) = (self.wall.as_secs_f64(), self.cpu.as_secs_f64());
        let mut line = format!(
            "{:<24} {:>5} passed {:>3} failed {wall:>7.1} s, CPU {cpu:.1} s",
            self.name,
            self.passed,
            self.failed.len()
        );
        if self.waited > Duration::from_secs(1) {
            let _ = write!(line, ", after waiting {:.0} s", self.waited.as_secs_f64());
        }
        line
    }
}

/// All parts of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) parts: Vec<PartReport>,
    pub(crate) supplies: Vec<(String, SupplyResult)>,
    /// The seconds of cargo's build before this program.
    pub(crate) build: Option<u64>,
    pub(crate) in_ci: bool,
}

impl Report {
    pub(crate) fn passed(&self) -> usize {
        self.parts.iter().map(|part| part.passed).sum()
    }

    pub(crate) fn failed(&self) -> usize {
        let failed: usize = self.parts.iter().map(|part| part.failed.len()).sum();
        let absent = self.parts.iter().filter(|part| !part.has_run()).count();
        let unsteady = usize::from(self.unsteady().count() > UNSTEADY_MAX);
        failed + unsteady + if self.in_ci { absent } else { 0 }
    }

    fn unsteady(&self) -> impl Iterator<Item = &String> {
        self.parts.iter().flat_map(|part| &part.unsteady)
    }

    /// The text at the end.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.tell_failures(&mut text);
        self.tell_unsteady(&mut text);
        self.tell_times(&mut text);
        for what in self.parts.iter().flat_map(|part| &part.untried) {
            let _ = writeln!(text, "not tried: {what}");
        }
        for part in self.parts.iter().filter(|part| part.absent.is_some()) {
            let _ = writeln!(text, "{}", part.line());
        }
        self.tell_unmet(&mut text);
        let _ = write!(text, "{} passed, {} failed", self.passed(), self.failed());
        text
    }

    fn tell_failures(&self, text: &mut String) {
        for part in &self.parts {
            for failed in &part.failed {
                let _ = writeln!(text, "failed: {} ({}), of part {}", failed.test, failed.how, part.name);
                for line in telling(&failed.output) {
                    let _ = writeln!(text, "  | {line}");
                }
            }
        }
    }

    fn tell_unsteady(&self, text: &mut String) {
        let all: Vec<&String> = self.unsteady().collect();
        for test in &all {
            let _ = writeln!(text, "unsteady: {test}");
        }
        if all.len() > UNSTEADY_MAX {
            let _ = writeln!(text, "more than {UNSTEADY_MAX} unsteady tests are a failure");
        }
    }

    /// Names the parts that cannot run on this machine, in one line for each need.
    fn tell_unmet(&self, text: &mut String) {
        let mut needs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for part in &self.parts {
            if let Some(need) = &part.unmet {
                needs.entry(need).or_default().push(&part.name);
            }
        }
        for (need, parts) in needs {
            let _ = writeln!(text, "not run ({need}): {}", parts.join(", "));
        }
    }

    fn tell_times(&self, text: &mut String) {
        let _ = writeln!(text, "\nWhere the time went:");
        if let Some(seconds) = self.build {
            let _ = writeln!(text, "{:<24} {seconds:>5} s", "build");
        }
        for (name, made) in &self.supplies {
            let (wall, cpu) = (made.wall.as_secs_f64(), made.cpu.as_secs_f64());
            let _ = writeln!(
                text,
                "{:<24} {wall:>5.0} s, CPU {cpu:.0} s, beside the tests",
                format!("supply {name}")
            );
        }
        for part in self.parts.iter().filter(|part| part.has_run()) {
            let _ = writeln!(text, "{}", part.line());
        }
        self.tell_longest(text, "The slowest tests", |time| time.wall);
        self.tell_longest(text, "The tests with most CPU time", |time| time.cpu);
        text.push('\n');
    }

    fn tell_longest(&self, text: &mut String, head: &str, of: impl Fn(&TestTime) -> Duration) {
        let mut times: Vec<&TestTime> = self.parts.iter().flat_map(|part| &part.times).collect();
        times.sort_by_key(|time| std::cmp::Reverse(of(time)));
        let _ = writeln!(text, "\n{head}:");
        for time in times.into_iter().take(LONGEST_SHOWN) {
            let _ = writeln!(text, "{:>7.1} s  {}", of(time).as_secs_f64(), time.test);
        }
    }
}

/// The most useful lines of a failed test: which tests failed, where and why they panicked, and the end.
fn telling(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(LINES_AT_END));
    let panicked = |line: &str| line.contains(" panicked at ");
    let previous = std::iter::once("").chain(before.iter().copied());
    let says =
        |(line, previous): &(&str, &str)| line.ends_with("FAILED") || panicked(line) || panicked(previous);
    let failures = before.iter().copied().zip(previous).filter(says).map(|(line, _)| line);
    failures.take(LINES_OF_FAILURES).chain(end.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, passed: usize, failed: &[&str], unsteady: &[&str]) -> PartReport {
        let failed = failed.iter().map(|test| FailedTest {
            test: (*test).to_owned(),
            how: "exit status: 101".to_owned(),
            output: "panicked".to_owned(),
        });
        PartReport {
            name: name.to_owned(),
            passed,
            failed: failed.collect(),
            unsteady: unsteady.iter().map(|test| (*test).to_owned()).collect(),
            ..PartReport::default()
        }
    }

    fn unmet(name: &str) -> PartReport {
        PartReport {
            name: name.to_owned(),
            unmet: Some("needs root: run it as root".to_owned()),
            ..PartReport::default()
        }
    }

    fn last_line(parts: Vec<PartReport>, in_ci: bool) -> String {
        let report = Report { parts, in_ci, ..Report::default() };
        report.text().lines().last().unwrap().to_owned()
    }

    #[test]
    fn the_last_line_is_the_sum() {
        assert_eq!(
            last_line(vec![part("a", 3, &[], &[]), part("b", 2, &["x"], &[])], false),
            "5 passed, 1 failed"
        );
    }

    #[test]
    fn a_part_that_cannot_run_fails_in_ci_and_is_reported() {
        assert_eq!(last_line(vec![part("a", 3, &[], &[]), unmet("page")], false), "3 passed, 0 failed");
        assert_eq!(last_line(vec![part("a", 3, &[], &[]), unmet("page")], true), "3 passed, 1 failed");
    }

    #[test]
    fn parts_that_need_the_same_are_named_once_in_one_line() {
        let text = Report { parts: vec![unmet("page"), unmet("kernel")], ..Report::default() }.text();
        assert!(text.contains("\nnot run (needs root: run it as root): page, kernel\n0 passed"), "{text}");
        assert_eq!(text.matches("page").count(), 1, "{text}");
        let failed = PartReport { absent: Some("tools failed: x".to_owned()), ..part("host", 0, &[], &[]) };
        let text = Report { parts: vec![failed], ..Report::default() }.text();
        assert!(text.contains("not run: tools failed: x"), "{text}");
    }

    #[test]
    fn the_tests_with_most_cpu_time_are_listed_beside_the_slowest() {
        let time = |test: &str, wall, cpu| TestTime {
            test: test.to_owned(),
            wall: Duration::from_secs(wall),
            cpu: Duration::from_secs(cpu),
        };
        let times = vec![time("waits", 9, 1), time("computes", 3, 5)];
        let text =
            Report { parts: vec![PartReport { times, ..part("a", 2, &[], &[]) }], ..Report::default() }
                .text();
        assert!(text.contains("slowest tests:\n    9.0 s  waits\n    3.0 s  computes"), "{text}");
        assert!(text.contains("most CPU time:\n    5.0 s  computes\n    1.0 s  waits"), "{text}");
    }

    #[test]
    fn more_than_two_unsteady_tests_are_a_failure() {
        assert_eq!(last_line(vec![part("a", 3, &[], &["x", "y"])], false), "3 passed, 0 failed");
        assert_eq!(
            last_line(vec![part("a", 3, &[], &["x", "y"]), part("b", 1, &[], &["z"])], false),
            "4 passed, 1 failed"
        );
    }

    #[test]
    fn failures_are_listed_at_the_end_with_their_part() {
        let report = Report { parts: vec![part("a", 0, &["t/x"], &[])], ..Report::default() };
        let text = report.text();
        assert!(text.contains("failed: t/x (exit status: 101), of part a\n  | panicked"), "{text}");
        assert!(!report.parts[0].is_whole());
    }

    #[test]
    fn only_the_failed_test_of_a_program_is_shown() {
        let passed =
            |from: u32| (from..from + 60).map(|at| format!("test t{at} ... ok\n")).collect::<String>();
        let failed = "thread 'x' panicked at a.rs:1:\nassertion failed: why\nstack\ntest x ... FAILED\n";
        let output = format!("{}{failed}{}", passed(0), passed(100));
        let told = telling(&output);
        assert_eq!(
            told[..4],
            [
                "thread 'x' panicked at a.rs:1:",
                "assertion failed: why",
                "test x ... FAILED",
                "test t120 ... ok"
            ]
        );
        assert_eq!(told.len(), 3 + LINES_AT_END);
        assert_eq!(telling("test x ... FAILED\n"), ["test x ... FAILED"], "nothing is shown twice");
    }
}
