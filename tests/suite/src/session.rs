//! A run of tests, from the request to the report.
//!
//! Invariant: each chosen part runs or is reported with the reason. Only fully passed parts get a row.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::iter::repeat;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::built::{self, Program, Test};
use crate::choose::{Selection, choose};
use crate::error::{SuiteError, at};
use crate::git;
use crate::needs;
use crate::pattern::fits;
use crate::pool::{Outcome, Pool};
use crate::process;
use crate::record::{Records, Row, supply_row};
use crate::report::{FailedTest, PartReport, Report};
use crate::supply::{self, Supplies, SupplyKey};
use crate::table::{Run, Table};
use crate::times::Times;

/// How many failed tests may run again alone: more have a common cause.
const AGAIN_MAX: usize = 3;

/// The paths of a run.
#[derive(Debug)]
pub(crate) struct Places {
    /// The folder of the repository.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// The cache that clones share.
    pub(crate) cache: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Session {
    places: Places,
    pub(crate) table: Table,
    pub(crate) records: Records,
    times: Times,
    tests: BTreeMap<String, Vec<Test>>,
    logs: PathBuf,
}

impl Session {
    pub(crate) fn open(places: Places) -> Result<Self, SuiteError> {
        let logs = places.target.join("suite/logs");
        let _ = fs::remove_dir_all(&logs);
        for folder in [&logs, &places.cache] {
            fs::create_dir_all(folder).map_err(at("create", folder))?;
        }
        let table = Table::read(&places.root)?;
        let records = Records::new(&places.root, &places.cache);
        let times = Times::read(places.cache.join("times.tsv"));
        Ok(Self { places, table, records, times, tests: BTreeMap::new(), logs })
    }

    /// Reads the tests from the built programs, and finds the part of each.
    pub(crate) fn find_tests(&mut self) -> Result<(), SuiteError> {
        for program in built(&self.places)? {
            for test in program.tests()? {
                let part =
                    self.part_of(&test.name).ok_or_else(|| SuiteError::Unclaimed(test.name.clone()))?;
                self.tests.entry(part).or_default().push(test);
            }
        }
        self.check_patterns()
    }

    fn part_of(&self, test: &str) -> Option<String> {
        let part = self.table.parts.iter().find(|part| part.tests.iter().any(|pattern| fits(pattern, test)));
        part.map(|part| part.name.clone())
    }

    /// A pattern without a match is left over from renamed tests.
    fn check_patterns(&self) -> Result<(), SuiteError> {
        let all = || self.tests.values().flatten();
        for part in &self.table.parts {
            let lost = part.tests.iter().find(|pattern| !all().any(|test| fits(pattern, &test.name)));
            if let Some(pattern) = lost {
                return Err(SuiteError::Empty { part: part.name.clone(), pattern: pattern.clone() });
            }
        }
        Ok(())
    }

    /// The tests of each part, in the table's order.
    pub(crate) fn listed(&self) -> Vec<(&str, &[Test])> {
        let of = |name: &String| self.tests.get(name).map_or(&[][..], Vec::as_slice);
        self.table.parts.iter().map(|part| (part.name.as_str(), of(&part.name))).collect()
    }

    /// The requested runs.
    pub(crate) fn choose(&self, asked: &Selection) -> Result<Vec<Run>, SuiteError> {
        let root = &self.places.root;
        let changed = |row: &Row, run: &Run| git::changed_since(root, &row.commit, &run.part.guards);
        choose(asked, &self.table, &self.records.rows()?, changed)
    }

    /// Runs the parts one after another, while the supplies of later ones are made.
    pub(crate) fn run(&mut self, runs: &[Run], build: Option<u64>) -> Result<Report, SuiteError> {
        let supplies = Supplies::default();
        let able = runs.iter().filter(|run| needs::unmet(&run.part.needs).is_none());
        let wanted: Vec<SupplyKey> = able.flat_map(|run| supply::wanted(&self.table, run)).collect();
        let logs = self.logs.clone();
        let parts = supply::beside(&supplies, &wanted, &logs, || self.run_parts(runs, &supplies))?;
        let in_ci = std::env::var_os("CI").is_some();
        let report = Report { parts, supplies: supplies.all(), build, in_ci };
        self.keep_supplies(&report)?;
        Ok(report)
    }

    fn run_parts(&mut self, runs: &[Run], supplies: &Supplies) -> Result<Vec<PartReport>, SuiteError> {
        let mut parts = Vec::new();
        let mut left: VecDeque<&Run> = runs.iter().collect();
        let has_all = |table: &Table, run: &Run| supply::wanted(table, run).iter().all(|it| supplies.has(it));
        while let Some(run) = take_next(&mut left, |run| has_all(&self.table, run)) {
            let part = self.run_part(run, supplies)?;
            say(&part.line());
            self.keep_part(&part)?;
            parts.push(part);
        }
        Ok(parts)
    }

    fn run_part(&mut self, run: &Run, supplies: &Supplies) -> Result<PartReport, SuiteError> {
        let name = run.name();
        if let Some(why) = needs::unmet(&run.part.needs) {
            return Ok(PartReport { name, absent: Some(why), ..PartReport::default() });
        }
        let begun = Instant::now();
        for wanted in supply::wanted(&self.table, run) {
            if let Some(why) = supplies.wait(&wanted).failed {
                return Ok(PartReport {
                    name,
                    absent: Some(format!("{} failed: {why}", wanted.name)),
                    ..PartReport::default()
                });
            }
        }
        let waited = begun.elapsed();
        let begun = Instant::now();
        let part = if run.part.command.is_empty() { self.run_tests(run)? } else { self.run_command(run)? };
        Ok(PartReport { name, waited, wall: begun.elapsed(), ..part })
    }

    fn run_tests(&mut self, run: &Run) -> Result<PartReport, SuiteError> {
        let none = Vec::new();
        let tests = self.tests.get(&run.part.name).unwrap_or(&none);
        let pool = Pool { run, target: &self.places.target, logs: &self.logs };
        let outcomes = pool.all(tests, &self.times, run.part.at_once)?;
        let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.ended.passed).collect();
        failed.iter().for_each(|outcome| tell(&FailedTest::from_outcome(outcome)));
        let again: Vec<Test> =
            tests.iter().filter(|test| failed.iter().any(|it| it.test == test.name)).cloned().collect();
        let second = if run.part.again && again.len() <= AGAIN_MAX {
            pool.all(&again, &self.times, 1)?
        } else {
            Vec::new()
        };
        let unsteady: Vec<String> = second
            .iter()
            .filter(|outcome| outcome.ended.passed)
            .map(|outcome| outcome.test.clone())
            .collect();
        let lasting = failed.iter().filter(|outcome| !unsteady.contains(&outcome.test));
        let untried = outcomes.iter().filter(|outcome| outcome.ended.passed).flat_map(untried).collect();
        let part = PartReport {
            untried,
            passed: outcomes.len() - failed.len() + unsteady.len(),
            failed: lasting.map(|outcome| FailedTest::from_outcome(outcome)).collect(),
            unsteady,
            cpu: outcomes.iter().map(|outcome| outcome.ended.cpu).sum(),
            times: outcomes.iter().map(|outcome| (outcome.test.clone(), outcome.ended.wall)).collect(),
            ..PartReport::default()
        };
        self.times.learn(&outcomes);
        Ok(part)
    }

    /// Runs a part's own program, which prints how many tests passed, or counts as one.
    fn run_command(&self, run: &Run) -> Result<PartReport, SuiteError> {
        let mut words = run.part.command.iter().map(|word| run.with_turn(word));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&self.places.root);
        command.envs(run.environment(&self.places.target));
        let log = Pool { run, target: &self.places.target, logs: &self.logs }.log();
        let ended = process::run(&mut command, Duration::from_secs(run.part.limit), &log)?;
        let output = ended.output();
        let (passed, failed) =
            sums(&output).unwrap_or((usize::from(ended.passed), usize::from(!ended.passed)));
        let failed = failed.max(usize::from(!ended.passed));
        let failure = |output| FailedTest { test: run.name(), how: ended.how.clone(), output };
        // Its output is shown once.
        let failures: Vec<FailedTest> =
            [output].into_iter().chain(repeat(String::new())).take(failed).map(failure).collect();
        failures.first().into_iter().for_each(tell);
        Ok(PartReport {
            passed,
            failed: failures,
            cpu: ended.cpu,
            times: vec![(run.name(), ended.wall)],
            ..PartReport::default()
        })
    }

    /// Records a fully passed part, if the tree is a commit: at once, because a run may be interrupted.
    fn keep_part(&self, part: &PartReport) -> Result<(), SuiteError> {
        let Some(commit) = git::commit(&self.places.root) else { return Ok(()) };
        if part.is_whole() {
            self.records.add(&row(part.name.clone(), &commit, (part.wall, part.passed)))?;
        }
        part.unsteady.iter().try_for_each(|test| self.records.add_unsteady(test, &commit))
    }

    fn keep_supplies(&mut self, report: &Report) -> Result<(), SuiteError> {
        let tests = &self.tests;
        self.times.keep(|name| tests.values().flatten().any(|test| test.name == name));
        let Some(commit) = git::commit(&self.places.root) else { return Ok(()) };
        let made = report.supplies.iter().filter(|(_, made)| made.failed.is_none());
        made.map(|(name, made)| row(supply_row(name), &commit, (made.wall, 0)))
            .try_for_each(|row| self.records.add(&row))
    }
}

/// The first part whose supplies exist, because slow ones are made meanwhile; else the first one.
fn take_next<'a>(left: &mut VecDeque<&'a Run>, is_ready: impl Fn(&Run) -> bool) -> Option<&'a Run> {
    let position = left.iter().position(|run| is_ready(run)).unwrap_or_default();
    left.remove(position)
}

fn row(part: String, (commit, day): &(String, String), (wall, tests): (Duration, usize)) -> Row {
    let (commit, day) = (commit.clone(), day.clone());
    Row { part, landing: 0, commit, day, seconds: wall.as_secs() + 1, tests }
}

/// What a passed test reports that it could not try here.
fn untried(outcome: &Outcome) -> Vec<String> {
    let output = outcome.ended.output();
    let lines = output.lines().filter_map(|line| line.strip_prefix("not tried: "));
    lines.map(|what| format!("{}: {what}", outcome.test)).collect()
}

/// The numbers of passed and failed tests in the last such line.
fn sums(output: &str) -> Option<(usize, usize)> {
    output.lines().rev().find_map(|line| {
        let (passed, rest) = line.split_once(" passed, ")?;
        let (failed, _) = rest.split_once(" failed")?;
        Some((passed.parse().ok()?, failed.parse().ok()?))
    })
}

fn tell(failed: &FailedTest) {
    say(&format!("failed: {} ({})\n{}", failed.test, failed.how, failed.output));
}

/// The test programs of the last build, as `scripts/test-programs.sh` has recorded them.
pub(crate) fn built(places: &Places) -> Result<Vec<Program>, SuiteError> {
    let path = places.target.join("suite/built.json");
    let messages = fs::read_to_string(&path).map_err(at("read", &path))?;
    Ok(built::programs(&messages))
}

/// Prints a line; a closed pipe is no reason to stop.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_with_its_supplies_runs_before_a_waiting_one() {
        let (waits, ready) = (Run { turn: Some("waits".to_owned()), ..Run::for_tests() }, Run::for_tests());
        let mut left = VecDeque::from([&waits, &ready]);
        let mut next = || take_next(&mut left, |run| run.turn.is_none()).map(|run| run.turn.clone());
        assert_eq!([next(), next(), next()], [Some(None), Some(Some("waits".to_owned())), None]);
    }

    #[test]
    fn the_last_sums_line_of_a_command_counts() {
        assert_eq!(sums("3 passed, 1 failed\nmore\n5 passed, 0 failed\nend"), Some((5, 0)));
        assert_eq!(sums("kernel 5.10: 3 passed, 1 failed"), None);
        assert_eq!(sums(""), None);
    }
}
