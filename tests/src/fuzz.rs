//! Fuzzes every parser of outside input: configuration, manifests, HTTP requests, DNS answers.
//!
//! A seed decides every input. Inputs with a new kind of answer join the corpus, so that later ones go deeper.
//!
//! Invariant: no input makes a reader panic, take long or exceed a limit; an input that does is kept in a file. It
//! measures no coverage, which would need a nightly compiler.

mod config;
mod manifests;
mod mutate;
mod names;
mod query;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use mutate::Mutator;

/// The longest time for one input.
const SLOW: Duration = Duration::from_secs(1);

/// A busy machine makes any input slow once; an input that is slow this many times in a row is slow by itself.
const SLOW_TRIES: usize = 3;

/// The parser under test.
pub trait Target {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// The inputs from which mutation starts.
    fn corpus(&self) -> Vec<Vec<u8>>;
    /// Reads one input. Returns a description of the result, or of the violation.
    fn read(&mut self, input: &[u8]) -> Result<String, String>;
}

/// The names of all targets.
pub const TARGETS: [&str; 4] = ["config", "manifests", "names", "query"];

/// A target by its name.
pub fn target(name: &str) -> Result<Box<dyn Target>, String> {
    match name {
        "config" => Ok(Box::new(config::Configuration)),
        "manifests" => Ok(Box::new(manifests::Manifests::new()?)),
        "names" => Ok(Box::new(names::Answers::new()?)),
        "query" => Ok(Box::new(query::Requests::new()?)),
        other => Err(format!("no target {other:?}; legal: {}, all", TARGETS.join(", "))),
    }
}

/// The summary of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Inputs that were read.
    pub inputs: u64,
    /// Different kinds of answers among them.
    pub answers: usize,
}

/// Feeds one target for a while. `Err` names the finding, the seed, and the file with the input.
pub fn feed(target: &mut dyn Target, seed: u64, time: Duration, findings: &Path) -> Result<Report, String> {
    catch_panics();
    let mut mutator = Mutator::new(seed, target.corpus());
    let mut answers = BTreeSet::new();
    let mut report = Report::default();
    let started = Instant::now();
    while started.elapsed() < time {
        let input = mutator.next_input();
        let reader = std::thread::current().id();
        let reading = Current { reader, seed, input: input.clone(), folder: findings.to_owned() };
        current().insert(target.name(), reading);
        let answer = timed(target, &input).map_err(|what| found(target.name(), &what))?;
        report.inputs += 1;
        if answers.insert(kind_of(&answer)) {
            mutator.keep(input);
        }
    }
    current().remove(target.name());
    report.answers = answers.len();
    Ok(report)
}

fn timed(target: &mut dyn Target, input: &[u8]) -> Result<String, String> {
    let mut answer = String::new();
    for _ in 0..SLOW_TRIES {
        let began = Instant::now();
        answer = target.read(input)?;
        if began.elapsed() < SLOW {
            return Ok(answer);
        }
    }
    Err(format!("takes more than {} s each time, and says {answer}", SLOW.as_secs()))
}

/// Answers that differ only in numbers or quoted text are one kind.
fn kind_of(answer: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (place, part) in answer.split('"').enumerate() {
        let letters: String = part.chars().filter(|c| !c.is_numeric()).take(120).collect();
        if place % 2 == 0 {
            letters.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The current input of each target, where the panic hook finds it in any thread, even if panics abort.
static CURRENT: Mutex<BTreeMap<&'static str, Current>> = Mutex::new(BTreeMap::new());

struct Current {
    reader: ThreadId,
    seed: u64,
    input: Vec<u8>,
    folder: PathBuf,
}

fn current() -> MutexGuard<'static, BTreeMap<&'static str, Current>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Saves the input that a target was reading and says how to reproduce the finding.
fn found(target: &str, what: &str) -> String {
    let Some(Current { seed, input, folder, .. }) = current().remove(target) else { return what.to_owned() };
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let path = folder.join(format!("fuzz-{target}-{:016x}", hasher.finish()));
    let kept = std::fs::write(&path, &input);
    let place = kept.map_or_else(|error| format!("not kept: {error}"), |()| path.display().to_string());
    format!("{target}, seed {seed}: {what}\ninput: {place}")
}

/// Installs a panic hook that saves the input of the panicking thread, or of any thread if it read none, as in a
/// server.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            default(panic);
            for target in suspects() {
                // Written directly to stderr: the process may end before another thread prints.
                let _told = writeln!(std::io::stderr(), "{}", found(target, "something panicked"));
            }
        }));
    });
}

fn suspects() -> Vec<&'static str> {
    let (current, here) = (current(), std::thread::current().id());
    let reading = |(target, it): (&&'static str, &Current)| (it.reader == here).then_some(*target);
    match current.iter().find_map(reading) {
        Some(target) => vec![target],
        None => current.keys().copied().collect(),
    }
}
