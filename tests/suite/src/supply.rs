//! Supplies that parts need and that are made once: tools, kernels, servers, packages. They are made in the background
//! at low priority, in the order of the parts.
//!
//! Invariant: a part begins only when all its supplies exist. A failed supply has a reason.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::SuiteError;
use crate::process::{self, ProcessResult, RunningProcess};
use crate::table::{Run, Supply, Table};

/// The longest time to make a supply: an hour on a slow network.
const LIMIT: Duration = Duration::from_secs(3600);

/// A supply's name and turn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SupplyKey {
    pub(crate) name: String,
    command: Vec<String>,
}

/// The result of making a supply.
#[derive(Clone, Debug, Default)]
pub(crate) struct SupplyResult {
    /// Why it failed.
    pub(crate) failed: Option<String>,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Supplies {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    made: BTreeMap<SupplyKey, SupplyResult>,
    /// The process group that is making a supply.
    making: Option<i32>,
    /// Whether a part waits.
    is_awaited: bool,
}

/// A part's supplies, in its order.
pub(crate) fn wanted(table: &Table, run: &Run) -> Vec<SupplyKey> {
    let supply = |name: &String| table.supplies.iter().find(|supply| supply.name == *name);
    run.part.supplies.iter().filter_map(supply).map(|supply| SupplyKey::new(supply, run)).collect()
}

impl SupplyKey {
    fn new(supply: &Supply, run: &Run) -> Self {
        let command: Vec<String> = supply.command.iter().map(|word| run.with_turn(word)).collect();
        let name = if command == supply.command {
            supply.name.clone()
        } else {
            format!("{}@{}", supply.name, run.with_turn("{turn}"))
        };
        Self { name, command }
    }

    fn start(&self, niceness: i32, log: &Path) -> Result<RunningProcess, SuiteError> {
        let mut command = Command::new("nice");
        command.args(["-n", &niceness.to_string()]).args(&self.command);
        process::start(&mut command, log)
    }
}

impl SupplyResult {
    fn from_process(wanted: &SupplyKey, ended: &ProcessResult) -> Self {
        let why = || format!("`{}`: {}\n{}", wanted.command.join(" "), ended.how, ended.output());
        Self { failed: (!ended.passed).then(why), wall: ended.wall, cpu: ended.cpu }
    }
}

impl Supplies {
    /// Makes all supplies, each once.
    fn make(&self, all: &[SupplyKey], logs: &Path) {
        let log = logs.join("supply.log");
        for wanted in all {
            if !self.state().made.contains_key(wanted) {
                let made = self.make_one(wanted, &log);
                self.state().made.insert(wanted.clone(), made);
                self.news.notify_all();
            }
        }
    }

    fn make_one(&self, wanted: &SupplyKey, log: &Path) -> SupplyResult {
        // The lock covers the start, so that a part that begins to wait either finds the group or is seen by the
        // start.
        let started = {
            let mut state = self.state();
            let started = wanted.start(state.niceness(), log);
            state.making = started.as_ref().ok().map(RunningProcess::group);
            started
        };
        let made = match started {
            Ok(started) => SupplyResult::from_process(wanted, &started.finish(LIMIT)),
            Err(error) => {
                SupplyResult { failed: Some(error.to_string()), wall: Duration::ZERO, cpu: Duration::ZERO }
            }
        };
        self.state().making = None;
        made
    }

    /// Waits until it was made or has failed. Meanwhile, supplies get normal priority.
    pub(crate) fn wait(&self, wanted: &SupplyKey) -> SupplyResult {
        let mut state = self.state();
        while !state.made.contains_key(wanted) {
            if !state.is_awaited {
                state.is_awaited = true;
                state.renice();
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_awaited = false;
        state.renice();
        state.made.get(wanted).cloned().unwrap_or_default()
    }

    /// Whether making it was tried.
    pub(crate) fn has(&self, wanted: &SupplyKey) -> bool {
        self.state().made.contains_key(wanted)
    }

    /// All supplies that were made, by name.
    pub(crate) fn all(&self) -> Vec<(String, SupplyResult)> {
        self.state().made.iter().map(|(wanted, made)| (wanted.name.clone(), made.clone())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tests depend on time and go first. The idle class would be too low: on a busy machine, awaited supplies would
    /// never finish.
    fn niceness(&self) -> i32 {
        if self.is_awaited { 0 } else { 19 }
    }

    /// Without root, a running supply keeps its niceness.
    fn renice(&self) {
        let Some(group) = self.making else { return };
        let mut command = Command::new("renice");
        command.args(["-n", &self.niceness().to_string(), "-g", &group.to_string()]);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Runs `during` while supplies are made.
pub(crate) fn beside<T>(
    supplies: &Supplies,
    all: &[SupplyKey],
    logs: &Path,
    during: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        scope.spawn(|| supplies.make(all, logs));
        during()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(script: &str) -> SupplyKey {
        SupplyKey { name: script.to_owned(), command: ["sh", "-c", script].map(str::to_owned).to_vec() }
    }

    #[test]
    fn an_awaited_supply_loses_its_niceness() {
        let folder = tempfile::tempdir().unwrap();
        let (begun, seen) = (folder.path().join("begun"), folder.path().join("seen"));
        let nice = "cut -d ' ' -f 19 /proc/self/stat";
        let script = format!(
            "{nice} > {0}; i=0; while [ $({nice}) = 19 ] && [ $i -lt 3000 ]; do i=$((i + 1)); sleep 0.01; done; {nice} > {1}",
            begun.display(),
            seen.display()
        );
        let (supplies, slow) = (Supplies::default(), wanted(&script));
        let made = beside(&supplies, std::slice::from_ref(&slow), folder.path(), || {
            while std::fs::read_to_string(&begun).unwrap_or_default().is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            supplies.wait(&slow)
        });
        assert_eq!(made.failed, None);
        assert_eq!(std::fs::read_to_string(begun).unwrap(), "19\n");
        if nix::unistd::geteuid().is_root() {
            assert_eq!(std::fs::read_to_string(seen).unwrap(), "0\n");
        }
    }

    #[test]
    fn a_failed_supply_reports_why_and_is_tried_once() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let broken = wanted(&format!("echo x >> {}; echo no network; exit 1", count.display()));
        let supplies = Supplies::default();
        let made =
            beside(&supplies, &[broken.clone(), broken.clone()], folder.path(), || supplies.wait(&broken));
        assert!(made.failed.unwrap().contains("no network"));
        assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
        assert_eq!(supplies.all().len(), 1);
    }
}
