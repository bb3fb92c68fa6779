//! The real kube-proxy's results in the same cluster, and how a run differs from them.
//!
//! Invariant: only tests in the baseline are judged. A regression counts unless it is an exception with a reason.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ClusterError;
use crate::error::{at, write};
use crate::report::{Report, State};

/// The folder of the tables.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline");

/// The intended differences.
const EXCEPTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/differences.tsv");

/// The recorded states of all tests for one topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    states: BTreeMap<String, State>,
}

impl Baseline {
    /// The baseline of a topology; empty if none was recorded.
    pub fn load(topology: &str) -> Result<Self, ClusterError> {
        let path = file(topology);
        match path.exists() {
            true => Self::parse(&fs::read_to_string(&path).map_err(at("read", &path))?),
            false => Ok(Self::default()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Records the states of all tests that ran, and keeps those of others.
    pub fn record(mut self, topology: &str, report: &Report) -> Result<(), ClusterError> {
        self.states.extend(report.outcomes.iter().map(|(name, outcome)| (name.clone(), outcome.state)));
        write(&file(topology), self.to_string())
    }

    fn parse(text: &str) -> Result<Self, ClusterError> {
        let rows = pairs(text, "a baseline")?;
        let states = rows.into_iter().map(|(state, name)| Ok((name, state.parse()?)));
        Ok(Self { states: states.collect::<Result<_, ClusterError>>()? })
    }
}

/// One line for each test, its state first.
impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.states.iter().try_for_each(|(name, state)| writeln!(f, "{state}\t{name}"))
    }
}

/// The tests whose expectation the project does not share, each with the reason.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    reasons: BTreeMap<String, String>,
}

impl Exceptions {
    pub fn read() -> Result<Self, ClusterError> {
        let path = Path::new(EXCEPTIONS);
        let rows = pairs(&fs::read_to_string(path).map_err(at("read", path))?, EXCEPTIONS)?;
        Ok(Self { reasons: rows.into_iter().collect() })
    }
}

/// How a test's result differs from kube-proxy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// kube-proxy passes it, and this run did not: the result, and why.
    Worse(String),
    /// As `Worse`, but intended: the reason.
    OnPurpose(String),
    /// An exception that no longer applies.
    NoExceptionAnyMore,
    Better,
    /// Neither passes it.
    Neither(String),
    /// The baseline lacks it.
    NotInBaseline(State),
}

/// A run compared with its baseline.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub passed: usize,
    pub differences: Vec<(String, Difference)>,
    /// Failures outside of the tests.
    pub troubles: Vec<String>,
}

impl Comparison {
    pub fn new(baseline: &Baseline, report: &Report, exceptions: &Exceptions) -> Self {
        let mut differences: Vec<(String, Difference)> = Vec::new();
        for (name, outcome) in &report.outcomes {
            let here = format!("{} here after {} s: {}", outcome.state, outcome.seconds, outcome.why);
            let difference = match (baseline.states.get(name), outcome.state, exceptions.reasons.get(name)) {
                (None, state, _) => Some(Difference::NotInBaseline(state)),
                (Some(_), State::Passed, Some(_)) => Some(Difference::NoExceptionAnyMore),
                (Some(State::Passed), State::Passed, None) => None,
                (Some(State::Passed), _, Some(reason)) => Some(Difference::OnPurpose(reason.clone())),
                (Some(State::Passed), _, None) => Some(Difference::Worse(here)),
                (Some(_), State::Passed, None) => Some(Difference::Better),
                (Some(there), _, _) => Some(Difference::Neither(format!("{there} there, {here}"))),
            };
            differences.extend(difference.map(|difference| (name.clone(), difference)));
        }
        // A renamed test would otherwise be lost silently.
        let gone = baseline.states.keys().filter(|name| !report.known.contains(name));
        differences.extend(gone.map(|name| {
            (name.clone(), Difference::Worse("no such test any more: record the baseline anew".to_owned()))
        }));
        let passed = report.outcomes.values().filter(|outcome| outcome.state == State::Passed).count();
        Self { passed, differences, troubles: report.troubles.clone() }
    }

    /// Regressions, and everything that kept tests from running.
    pub fn failed(&self) -> usize {
        let worse =
            self.differences.iter().filter(|(_, difference)| matches!(difference, Difference::Worse(_)));
        worse.count() + self.troubles.len()
    }
}

/// A paragraph for each kind of difference.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_kind: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (name, difference) in &self.differences {
            let (kind, more) = described(difference);
            let more = if more.is_empty() { String::new() } else { format!("\n      {more}") };
            by_kind.entry(kind).or_default().push(format!("  {name}{more}"));
        }
        for (kind, lines) in by_kind {
            writeln!(f, "{kind} ({}):\n{}", lines.len(), lines.join("\n"))?;
        }
        self.troubles.iter().try_for_each(|trouble| writeln!(f, "trouble: {trouble}"))
    }
}

fn described(difference: &Difference) -> (&'static str, String) {
    match difference {
        Difference::Worse(how) => ("kube-proxy passes, not here", how.clone()),
        Difference::OnPurpose(reason) => ("not here, on purpose", reason.clone()),
        Difference::NoExceptionAnyMore => ("passes here: take it out of differences.tsv", String::new()),
        Difference::Better => ("passes here, not with kube-proxy", String::new()),
        Difference::Neither(how) => ("neither passes", how.clone()),
        Difference::NotInBaseline(state) => ("not in the baseline", state.to_string()),
    }
}

/// The two columns of a table; lines with `#` are comments.
fn pairs(text: &str, from: &str) -> Result<Vec<(String, String)>, ClusterError> {
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let split = rows.map(|row| {
        let columns = row.split_once('\t').ok_or_else(|| ClusterError::Malformed {
            from: from.to_owned(),
            why: format!("two columns with a tab between them, not `{row}`"),
        });
        columns.map(|(first, second)| (first.to_owned(), second.to_owned()))
    });
    split.collect()
}

fn file(topology: &str) -> PathBuf {
    Path::new(FOLDER).join(topology).with_extension("tsv")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    fn report(states: &[(&str, State)]) -> Report {
        let outcome = |state| Outcome { state, seconds: 1, why: "so".to_owned() };
        Report {
            outcomes: states.iter().map(|(name, state)| ((*name).to_owned(), outcome(*state))).collect(),
            known: ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec(),
            troubles: Vec::new(),
        }
    }

    fn compared(baseline: &str, states: &[(&str, State)]) -> Comparison {
        let reasons = BTreeMap::from([("e".to_owned(), "we do it otherwise".to_owned())]);
        Comparison::new(&Baseline::parse(baseline).unwrap(), &report(states), &Exceptions { reasons })
    }

    #[test]
    fn only_an_unexpected_regression_counts() {
        let baseline = "passed\ta\npassed\tb\nfailed\tc\nskipped\td\npassed\te\npassed\tf\n";
        let states = [State::Passed, State::Failed, State::Passed, State::Skipped, State::Failed];
        let named: Vec<(&str, State)> = ["a", "b", "c", "d", "e"].into_iter().zip(states).collect();
        let comparison = compared(baseline, &named);
        assert_eq!((comparison.passed, comparison.failed()), (2, 1));
        expect_test::expect![[r"
            kube-proxy passes, not here (1):
              b
                  failed here after 1 s: so
            neither passes (1):
              d
                  skipped there, skipped here after 1 s: so
            not here, on purpose (1):
              e
                  we do it otherwise
            passes here, not with kube-proxy (1):
              c
        "]]
        .assert_eq(&comparison.to_string());
    }

    #[test]
    fn a_test_that_kube_proxy_passes_must_not_be_skipped() {
        assert_eq!(compared("passed\ta\n", &[("a", State::Skipped)]).failed(), 1);
    }

    #[test]
    fn a_removed_test_is_reported() {
        assert_eq!(compared("passed\tx\n", &[]).failed(), 1);
        assert_eq!(compared("passed\tf\n", &[]).failed(), 0, "it is there and was not chosen");
    }

    #[test]
    fn failures_outside_of_tests_count() {
        let report = Report { troubles: vec!["Suite Timeout Elapsed".to_owned()], ..Report::default() };
        let comparison = Comparison::new(&Baseline::default(), &report, &Exceptions::default());
        assert_eq!(comparison.failed(), 1);
    }

    #[test]
    fn every_committed_table_round_trips() {
        let mut count = 0;
        for entry in fs::read_dir(FOLDER).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            assert_eq!(Baseline::parse(&text).unwrap().to_string(), text);
            count += 1;
        }
        assert!(count >= 4, "{count} tables");
        for name in Exceptions::read().unwrap().reasons.keys() {
            assert!(name.starts_with("[sig-network]"), "{name}");
        }
    }
}
