//! A run of tests, from the request to the report.
//!
//! Invariant: each chosen part runs or is reported with the reason. Only fully passed parts get a row.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::iter::repeat;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::built::{self, Program, Test};
use crate::choose::{Selection, choose};
use crate::error::{SuiteError, at};
use crate::git;
use crate::machine::Machine;
use crate::needs;
use crate::pattern::fits;
use crate::pool::{Hooks, Outcome, Pool};
use crate::process::ProcessResult;
use crate::progress::{Expected, Progress};
use crate::record::{Records, Row, Rows, supply_row};
use crate::report::{FailedTest, PartReport, Report, TestTime};
use crate::slowdown::{self, Slowdown};
use crate::supply::{self, Supplies, SupplyKey};
use crate::table::{Run, Set, Table};
use crate::terminal::say;
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
    slowdown: Slowdown,
    /// The cgroup below which those of tests lie, in a slow run.
    beds: Option<PathBuf>,
}

impl Session {
    pub(crate) fn open(places: Places, slowdown: Slowdown) -> Result<Self, SuiteError> {
        let logs = places.target.join("suite/logs");
        let _ = fs::remove_dir_all(&logs);
        for folder in [&logs, &places.cache] {
            fs::create_dir_all(folder).map_err(at("create", folder))?;
        }
        let table = Table::read(&places.root)?;
        let records = Records::new(&places.root, &places.cache);
        let times = Times::read(places.cache.join("times.tsv"));
        Ok(Self { places, table, records, times, tests: BTreeMap::new(), logs, slowdown, beds: None })
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

    /// Runs the parts, on a machine as slow as requested.
    pub(crate) fn run(&mut self, runs: &[Run], build: Option<u64>) -> Result<Report, SuiteError> {
        self.slowdown.beside(|beds| {
            self.beds = beds.map(Path::to_owned);
            self.run_at_speed(runs, build)
        })
    }

    /// Runs the parts, while the supplies of later ones are made.
    fn run_at_speed(&mut self, runs: &[Run], build: Option<u64>) -> Result<Report, SuiteError> {
        let supplies = Supplies::default();
        let before = nix::unistd::geteuid().is_root().then(Machine::observe);
        let able = runs.iter().filter(|run| needs::unmet(&run.part.needs).is_none());
        let wanted: Vec<SupplyKey> = able.flat_map(|run| supply::wanted(&self.table, run)).collect();
        let logs = self.logs.clone();
        let rows = self.records.rows()?;
        let progress = Progress::new(self.expected(runs, &rows));
        let run_all = || progress.beside(|| self.run_parts(runs, &supplies, (&progress, &rows)));
        let mut parts = supply::beside(&supplies, &wanted, &logs, run_all)?;
        let after = before.as_ref().map(Machine::check);
        after.iter().for_each(|part| say(&part.line()));
        parts.extend(after);
        let in_ci = std::env::var_os("CI").is_some();
        let report = Report { parts, supplies: supplies.all(), build, in_ci };
        self.keep_supplies(&report)?;
        Ok(report)
    }

    /// What each run takes by the record of its last one, or by the times of its tests.
    fn expected(&self, runs: &[Run], rows: &Rows) -> BTreeMap<String, Expected> {
        let expect = |run: &Run| {
            let tests = self.tests.get(&run.part.name).map_or(&[][..], Vec::as_slice);
            let row = rows.get(&run.name());
            let sum: Duration = tests.iter().map(|test| self.times.last(&test.name)).sum();
            let at_once = u32::try_from(run.part.at_once).unwrap_or(1);
            let wall = row.map_or(sum / at_once, |row| Duration::from_secs(row.seconds));
            let count = if tests.is_empty() { row.map_or(1, |row| row.tests) } else { tests.len() };
            (run.name(), Expected { tests: count, wall, sum })
        };
        runs.iter().map(expect).collect()
    }

    /// A part begins while the last tests of the former one run: most of these wait. Failed tests run again, alone,
    /// after all parts.
    fn run_parts(
        &self,
        runs: &[Run],
        supplies: &Supplies,
        (progress, rows): (&Progress, &Rows),
    ) -> Result<Vec<PartReport>, SuiteError> {
        let mut parts = Vec::new();
        let mut left: VecDeque<&Run> = runs.iter().collect();
        let has_all = |run: &Run| supply::wanted(&self.table, run).iter().all(|it| supplies.has(it));
        thread::scope(|scope| {
            let mut former: Option<ScopedJoinHandle<'_, Result<EndedPart<'_>, SuiteError>>> = None;
            while let Some(run) = take_next(&mut left, has_all) {
                if !may_overlap(run) {
                    former
                        .take()
                        .into_iter()
                        .try_for_each(|last| self.end_part(last).map(|it| parts.push(it)))?;
                }
                let (few_left, wait) = mpsc::channel();
                let part = scope.spawn(move || {
                    let part = self.run_part(run, supplies, (progress, rows), &few_left);
                    progress.end_part(&run.name());
                    part
                });
                if let Some(former) = former.replace(part) {
                    parts.push(self.end_part(former)?);
                }
                // An error: the part has ended.
                let _ = wait.recv();
            }
            former.into_iter().try_for_each(|last| self.end_part(last).map(|part| parts.push(part)))
        })?;
        parts.into_iter().map(|part| self.try_again(part)).collect()
    }

    fn end_part<'a>(
        &self,
        part: ScopedJoinHandle<'_, Result<EndedPart<'a>, SuiteError>>,
    ) -> Result<EndedPart<'a>, SuiteError> {
        let part = part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        if part.report.unmet.is_none() {
            say(&part.report.line());
        }
        if part.again.is_empty() {
            self.keep_part(&part.report)?;
        }
        Ok(part)
    }

    fn run_part<'a>(
        &self,
        run: &'a Run,
        supplies: &Supplies,
        (progress, rows): (&Progress, &Rows),
        few_left: &Sender<()>,
    ) -> Result<EndedPart<'a>, SuiteError> {
        let name = run.name();
        progress.begin_part(&name);
        let ended = |report| EndedPart { run, report, again: Vec::new() };
        if let Some(need) = needs::unmet(&run.part.needs) {
            return Ok(ended(PartReport { name, unmet: Some(need), ..PartReport::default() }));
        }
        let begun = Instant::now();
        for wanted in supply::wanted(&self.table, run) {
            let takes = rows.get(&supply_row(&wanted.name)).map_or(0, |row| row.seconds);
            progress.begin_wait(&name, &wanted.name, Duration::from_secs(takes));
            if let Some(why) = supplies.wait(&wanted).failed {
                let failed = Some(format!("{} failed: {why}", wanted.name));
                return Ok(ended(PartReport { name, absent: failed, ..PartReport::default() }));
            }
        }
        progress.end_wait(&name);
        let (waited, begun) = (begun.elapsed(), Instant::now());
        let part = if run.part.command.is_empty() {
            self.run_tests(run, progress, few_left)?
        } else {
            ended(self.run_command(run)?)
        };
        let report = PartReport { name, waited, wall: begun.elapsed(), ..part.report };
        Ok(EndedPart { report, ..part })
    }

    fn run_tests<'a>(
        &self,
        run: &'a Run,
        progress: &Progress,
        few_left: &Sender<()>,
    ) -> Result<EndedPart<'a>, SuiteError> {
        let tests = self.tests.get(&run.part.name).map_or(&[][..], Vec::as_slice);
        let name = run.name();
        let begin_next = || {
            if may_overlap(run) {
                let _ = few_left.send(());
            }
        };
        let count = |outcome: &Outcome| {
            progress.end_test(&name, (self.times.last(&outcome.test), outcome.ended.wall));
        };
        let hooks = Hooks { test_ended: &count, few_left: &begin_next };
        let outcomes = self.pool(run).all(tests, &self.times, run.part.at_once, hooks)?;
        let (passed, failed): (Vec<_>, Vec<_>) = outcomes.iter().partition(|outcome| outcome.ended.passed);
        let failed: Vec<FailedTest> = failed.into_iter().map(FailedTest::from_outcome).collect();
        failed.iter().for_each(tell);
        let has_failed = |test: &&Test| failed.iter().any(|it| it.test == test.name);
        let may_again = run.part.again && failed.len() <= AGAIN_MAX;
        let again = tests.iter().filter(|test| may_again && has_failed(test)).cloned().collect();
        let report = PartReport {
            untried: passed.iter().flat_map(|outcome| untried(outcome)).collect(),
            passed: passed.len(),
            failed,
            cpu: outcomes.iter().map(|outcome| outcome.ended.cpu).sum(),
            times: outcomes.iter().map(|outcome| test_time(outcome.test.clone(), &outcome.ended)).collect(),
            ..PartReport::default()
        };
        Ok(EndedPart { run, report, again })
    }

    /// Runs the failed tests of a part once more, one by one, with the machine for themselves.
    fn try_again(&self, part: EndedPart<'_>) -> Result<PartReport, SuiteError> {
        let EndedPart { run, mut report, again } = part;
        if again.is_empty() {
            return Ok(report);
        }
        let second = self.pool(run).all(&again, &self.times, 1, Hooks::NONE)?;
        let passed = second.into_iter().filter(|outcome| outcome.ended.passed);
        report.unsteady = passed.map(|outcome| outcome.test).collect();
        report.passed += report.unsteady.len();
        report.failed.retain(|failed| !report.unsteady.contains(&failed.test));
        say(&format!(
            "{}: {} of {} failed tests pass alone",
            report.name,
            report.unsteady.len(),
            again.len()
        ));
        self.keep_part(&report)?;
        Ok(report)
    }

    fn pool<'a>(&'a self, run: &'a Run) -> Pool<'a> {
        let slower = self.slowdown.factor(slowdown::count_processors());
        Pool { run, target: &self.places.target, logs: &self.logs, beds: self.beds.as_deref(), slower }
    }

    /// Runs a part's own program, which prints how many tests passed, or counts as one.
    fn run_command(&self, run: &Run) -> Result<PartReport, SuiteError> {
        let mut words = run.part.command.iter().map(|word| run.with_turn(word));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&self.places.root);
        let ended = self.pool(run).run_command(command)?;
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
            times: vec![test_time(run.name(), &ended)],
            ..PartReport::default()
        })
    }

    /// Records a fully passed part, if the tree is a commit: at once, because a run may be interrupted.
    fn keep_part(&self, part: &PartReport) -> Result<(), SuiteError> {
        let Some(commit) = git::commit(&self.places.root) else { return Ok(()) };
        if let Some(name) = self.slowdown.row_name(&part.name).filter(|_| part.is_whole()) {
            self.records.add(&row(name, &commit, (part.wall, part.passed)))?;
        }
        part.unsteady.iter().try_for_each(|test| self.records.add_unsteady(test, &commit))
    }

    fn keep_supplies(&mut self, report: &Report) -> Result<(), SuiteError> {
        if self.slowdown != Slowdown::NONE {
            return Ok(());
        }
        let tests = &self.tests;
        self.times.learn(report.parts.iter().flat_map(|part| &part.times));
        self.times.keep(|name| tests.values().flatten().any(|test| test.name == name));
        let Some(commit) = git::commit(&self.places.root) else { return Ok(()) };
        let made = report.supplies.iter().filter(|(_, made)| made.failed.is_none());
        made.map(|(name, made)| row(supply_row(name), &commit, (made.wall, 0)))
            .try_for_each(|row| self.records.add(&row))
    }
}

/// A part whose tests have run, and those that are to run again.
struct EndedPart<'a> {
    run: &'a Run,
    report: PartReport,
    again: Vec<Test>,
}

/// The parts of `make test` are made for it; the others have the machine for themselves.
fn may_overlap(run: &Run) -> bool {
    run.part.by == Set::Test
}

/// The first part whose supplies exist, because slow ones are made meanwhile; else the first one.
fn take_next<'a>(left: &mut VecDeque<&'a Run>, is_ready: impl Fn(&Run) -> bool) -> Option<&'a Run> {
    let position = left.iter().position(|run| is_ready(run)).unwrap_or_default();
    left.remove(position)
}

fn test_time(test: String, ended: &ProcessResult) -> TestTime {
    TestTime { test, wall: ended.wall, cpu: ended.cpu }
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
