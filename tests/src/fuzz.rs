//! Broken input for everything that reads: configuration, manifests, HTTP requests, answers of name servers.
//!
//! A seed decides every input. Inputs that are answered in a new way join the corpus, so that later ones go
//! deeper. Invariant: whatever the input, the reader neither panics nor takes long nor lets anything past a limit,
//! and the input that shows otherwise is kept in a file. It does not measure coverage, for which the compiler
//! would have to be nightly.

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

/// No reader may think for longer about one input.
const SLOW: Duration = Duration::from_secs(1);

/// A busy machine makes any input slow once; one that is slow so many times in a row is slow by itself.
const SLOW_TRIES: usize = 3;

/// What reads the input.
pub trait Target {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// What mutation starts from.
    fn corpus(&self) -> Vec<Vec<u8>>;
    /// Reads one input. Gives what became of it, in words, or what must not be.
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

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Inputs that were read.
    pub inputs: u64,
    /// Different answers among them.
    pub answers: usize,
}

/// Feeds one target for some time. `Err` tells what was found, the seed, and where the input is.
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

/// Answers that differ in numbers or in quoted text alone are one kind.
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

/// The input that each target reads: where the panic hook finds it, whatever thread panics, even when panics abort.
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

/// Keeps the input that a target was reading and says all that is needed to see it again.
fn found(target: &str, what: &str) -> String {
    let Some(Current { seed, input, folder, .. }) = current().remove(target) else { return what.to_owned() };
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let path = folder.join(format!("fuzz-{target}-{:016x}", hasher.finish()));
    let kept = std::fs::write(&path, &input);
    let place = kept.map_or_else(|error| format!("not kept: {error}"), |()| path.display().to_string());
    format!("{target}, seed {seed}: {what}\ninput: {place}")
}

/// Keeps the input that the panicking thread read; if it read none itself, as a server does not, that of any thread.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            default(panic);
            for target in suspects() {
                // Written by hand: the process may end before any other thread gets to print.
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
