//! Runs many test processes at once.
//!
//! Invariant: each test runs once, at most the given number at the same time, and the longest begin first, so that
//! none runs alone at the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::built::Test;
use crate::error::SuiteError;
use crate::process::{self, ProcessResult};
use crate::slowdown::CGROUP;
use crate::table::Run;
use crate::times::Times;

/// A test and its result.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) test: String,
    pub(crate) ended: ProcessResult,
}

/// How the tests of one part run.
#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pub(crate) run: &'a Run,
    /// Cargo's target folder.
    pub(crate) target: &'a Path,
    /// The folder for their output.
    pub(crate) logs: &'a Path,
    /// The cgroup below which those of the tests lie, in a slow run.
    pub(crate) beds: Option<&'a Path>,
    /// By how much their limits grow.
    pub(crate) slower: u32,
}

/// What is called during a run.
#[derive(Clone, Copy)]
pub(crate) struct Hooks<'a> {
    /// After each test.
    pub(crate) test_ended: &'a (dyn Fn(&Outcome) + Sync),
    /// Once, when no test waits and half of those that run at once have ended.
    pub(crate) few_left: &'a (dyn Fn() + Sync),
}

impl Hooks<'_> {
    pub(crate) const NONE: Self = Self { test_ended: &|_| (), few_left: &|| () };
}

static LOGS: AtomicUsize = AtomicUsize::new(0);

impl Pool<'_> {
    /// Runs all tests; the results have the order in which the tests ended.
    pub(crate) fn all(
        &self,
        tests: &[Test],
        times: &Times,
        at_once: usize,
        hooks: Hooks<'_>,
    ) -> Result<Vec<Outcome>, SuiteError> {
        let mut waiting: Vec<&Test> = tests.iter().collect();
        // `pop` takes the last one.
        waiting.sort_by_key(|test| times.last(&test.name));
        let (workers, idle) = (at_once.min(tests.len()), AtomicUsize::new(0));
        let (waiting, ended) = (Mutex::new(waiting), Mutex::new(Vec::new()));
        // Releases the lock before the test begins.
        let next = || lock(&waiting).pop();
        let work = || {
            while let Some(test) = next() {
                let outcome = self.one(test);
                outcome.iter().for_each(hooks.test_ended);
                lock(&ended).push(outcome);
            }
            if idle.fetch_add(1, Ordering::Relaxed) + 1 == workers.div_ceil(2) {
                (hooks.few_left)();
            }
        };
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(work);
            }
        });
        ended.into_inner().unwrap_or_default().into_iter().collect()
    }

    fn one(&self, test: &Test) -> Result<Outcome, SuiteError> {
        let mut command = test.program.command();
        command.args(&test.arguments);
        Ok(Outcome { test: test.name.clone(), ended: self.run_command(command)? })
    }

    /// Runs a command of the part, until its limit.
    pub(crate) fn run_command(&self, mut command: Command) -> Result<ProcessResult, SuiteError> {
        command.envs(self.run.environment(self.target)).envs(self.beds.map(|beds| (CGROUP, beds)));
        let limit = Duration::from_secs(self.run.part.limit) * self.slower;
        process::run(&mut command, limit, &self.log())
    }

    /// A file that no other process writes.
    fn log(&self) -> PathBuf {
        self.logs.join(format!("{}.log", LOGS.fetch_add(1, Ordering::Relaxed)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::built::Program;

    /// Two tests that each wait for the start of the other.
    #[test]
    fn as_many_tests_as_requested_run_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let meet =
            "touch $1; i=0; while [ ! -e $2 ]; do sleep 0.01; i=$((i + 1)); [ $i -lt 6000 ] || exit 1; done";
        let test = |own: &str, other: &str| Test {
            name: own.to_owned(),
            program: Program::at_path("/bin/sh", folder.path()),
            arguments: ["-c", meet, "sh", own, other].map(str::to_owned).to_vec(),
        };
        let run = Run::for_tests();
        let pool = Pool { run: &run, target: folder.path(), logs: folder.path(), beds: None, slower: 1 };
        let times = Times::read(folder.path().join("times"));
        let outcomes = pool.all(&[test("a", "b"), test("b", "a")], &times, 2, Hooks::NONE).unwrap();
        assert!(outcomes.iter().all(|outcome| outcome.ended.passed), "{outcomes:?}");
    }

    #[test]
    fn few_are_left_once_half_of_those_at_once_have_no_other_test() {
        let folder = tempfile::tempdir().unwrap();
        let (release, order) = (folder.path().join("release"), Mutex::new(Vec::new()));
        let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", release.display());
        let test = |name: &str, script: &str| Test {
            name: name.to_owned(),
            program: Program::at_path("/bin/sh", folder.path()),
            arguments: ["-c", script].map(str::to_owned).to_vec(),
        };
        let run = Run::for_tests();
        let pool = Pool { run: &run, target: folder.path(), logs: folder.path(), beds: None, slower: 1 };
        let hooks = Hooks {
            test_ended: &|outcome| lock(&order).push(outcome.test.clone()),
            few_left: &|| {
                lock(&order).push("few left".to_owned());
                std::fs::write(&release, "").unwrap();
            },
        };
        let tests = [test("long", &wait), test("one", "true"), test("two", "true")];
        pool.all(&tests, &Times::read(folder.path().join("times")), 2, hooks).unwrap();
        let order = order.into_inner().unwrap();
        assert_eq!(order[2..], ["few left", "long"], "{order:?}");
    }
}
