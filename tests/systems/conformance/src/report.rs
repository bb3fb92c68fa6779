//! The results of Kubernetes' tests, from ginkgo's report.
//!
//! Invariant: a deselected test is not in a report, and a test that should have run and did not counts as missing; the
//! two are never confused.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::Deserialize;

use crate::ClusterError;
use crate::error::at;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Passed,
    /// Failed, timed out, was interrupted or panicked.
    Failed,
    /// The test found the cluster unsuitable.
    Skipped,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        let all = [Self::Passed, Self::Failed, Self::Skipped];
        all.into_iter().find(|state| state.as_str() == text).ok_or_else(|| ClusterError::Malformed {
            from: format!("`{text}`"),
            why: "a test has passed, failed or skipped itself".to_owned(),
        })
    }
}

/// One test that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub state: State,
    pub seconds: u64,
    /// The first line of the reason of a failure or skip.
    pub why: String,
}

/// All tests that ran, by their names.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub outcomes: BTreeMap<String, Outcome>,
    /// Every existing test, selected or not.
    pub known: Vec<String>,
    /// Failures outside of the tests: a timeout, tests that never ran.
    pub troubles: Vec<String>,
}

impl Report {
    pub fn read(path: &Path) -> Result<Self, ClusterError> {
        let text = std::fs::read_to_string(path).map_err(at("read", path))?;
        Self::parse(&text).map_err(|error| ClusterError::Malformed {
            from: path.display().to_string(),
            why: error.to_string(),
        })
    }

    fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let suites: Vec<Suite> = serde_json::from_str(text)?;
        let mut report = Self::default();
        suites.into_iter().for_each(|suite| report.add(suite));
        Ok(report)
    }

    fn add(&mut self, suite: Suite) {
        let chosen = suite.planned.unwrap_or_default().chosen;
        let (before, specs) = (self.outcomes.len(), suite.specs.unwrap_or_default());
        for spec in specs {
            let outcome = spec.outcome();
            if spec.is_test() {
                self.known.push(spec.name());
                self.outcomes.extend(outcome.map(|outcome| (spec.name(), outcome)));
            } else if let Some(outcome) = outcome.filter(|outcome| outcome.state == State::Failed) {
                self.troubles.push(format!("{}: {}", spec.kind, outcome.why));
            }
        }
        let ran = self.outcomes.len() - before;
        if ran < chosen {
            self.troubles.push(format!("{} tests were to run and did not", chosen - ran));
        }
        self.troubles.extend(suite.reasons.unwrap_or_default());
    }
}

/// Ginkgo's format; missing fields are empty.
#[derive(Deserialize)]
struct Suite {
    #[serde(rename = "PreRunStats")]
    planned: Option<Planned>,
    #[serde(rename = "SpecReports")]
    specs: Option<Vec<Spec>>,
    #[serde(rename = "SpecialSuiteFailureReasons")]
    reasons: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct Planned {
    #[serde(rename = "SpecsThatWillRun", default)]
    chosen: usize,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(rename = "ContainerHierarchyTexts")]
    containers: Option<Vec<String>>,
    #[serde(rename = "LeafNodeType")]
    kind: String,
    #[serde(rename = "LeafNodeText")]
    text: String,
    #[serde(rename = "State")]
    state: String,
    #[serde(rename = "RunTime", default)]
    nanoseconds: u64,
    #[serde(rename = "Failure", default)]
    failure: Failure,
}

#[derive(Default, Deserialize)]
struct Failure {
    #[serde(rename = "Message", default)]
    message: String,
}

impl Spec {
    fn is_test(&self) -> bool {
        self.kind == "It"
    }

    fn name(&self) -> String {
        let containers = self.containers.iter().flatten();
        containers.chain([&self.text]).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// `None` for a deselected test, which ginkgo also calls skipped, without a reason.
    fn outcome(&self) -> Option<Outcome> {
        let why = self.failure.message.lines().next().unwrap_or_default().to_owned();
        let state = match self.state.as_str() {
            "passed" => State::Passed,
            "skipped" if why.is_empty() => return None,
            "skipped" => State::Skipped,
            "pending" => return None,
            _ => State::Failed,
        };
        Some(Outcome { state, seconds: self.nanoseconds / 1_000_000_000, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(specs: &str, chosen: usize) -> Report {
        let text = format!(
            r#"[{{"PreRunStats": {{"TotalSpecs": 9, "SpecsThatWillRun": {chosen}}}, "SpecReports": [{specs}],
            "SpecialSuiteFailureReasons": null}}]"#
        );
        Report::parse(&text).unwrap()
    }

    fn spec(name: &str, state: &str, message: &str) -> String {
        format!(
            r#"{{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It",
            "LeafNodeText": "{name}", "State": "{state}", "RunTime": 2500000000, "Failure": {{"Message": "{message}"}}}}"#
        )
    }

    #[test]
    fn each_test_state_counts_once_and_unselected_tests_do_not() {
        let states =
            [("a", "passed", ""), ("b", "timedout", "late\\nmore"), ("c", "skipped", "needs 3 zones")];
        let specs: Vec<String> = states.map(|(name, state, why)| spec(name, state, why)).to_vec();
        let report = report(&[specs, vec![spec("d", "skipped", "")]].concat().join(","), 3);
        let seen: Vec<(State, &str)> = report.outcomes.values().map(|o| (o.state, o.why.as_str())).collect();
        assert_eq!(seen, [(State::Passed, ""), (State::Failed, "late"), (State::Skipped, "needs 3 zones")]);
        assert_eq!(report.outcomes.keys().next().unwrap(), "[sig-network] Services a");
        assert_eq!((report.known.len(), report.troubles.len()), (4, 0));
    }

    #[test]
    fn tests_that_never_ran_fail_the_report() {
        let report = report(&spec("a", "passed", ""), 3);
        assert_eq!(report.troubles, ["2 tests were to run and did not"]);
    }
}
