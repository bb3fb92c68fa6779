//! Fuzzes every parser of outside input: configuration, manifests, HTTP requests, DNS answers.
//!
//! A seed decides every input. Inputs with a new kind of answer join the corpus, so that later ones go deeper.
//!
//! Invariant: no input makes a reader panic, take long or exceed a limit; an input that does is kept in a file. Long is
//! far longer than ordinary text takes on the same machine. It measures no coverage, which would need a nightly
//! compiler.

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
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, measure};
use mutate::{INPUT_BYTES_MAX, Mutator};

/// How many times longer than ordinary text of the greatest length an input may take.
const SLOW_FACTOR: u32 = 20;

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

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    Inputs(u64),
    Until(Deadline),
}

/// The summary of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Mutated inputs that were read.
    pub inputs: u64,
    /// The first answer of each kind.
    pub answers: Vec<String>,
}

/// Feeds one target. `Err` names the finding, the seed, and the file with the input.
pub fn feed(target: &mut dyn Target, seed: u64, length: Length, findings: &Path) -> Result<Report, String> {
    catch_panics();
    let name = target.name();
    let mut feeder = Feeder { corpus: target.corpus(), target, seed, findings };
    let report = feeder.feed(length).map_err(|what| found(name, &what));
    current().remove(name);
    report
}

struct Feeder<'a> {
    target: &'a mut dyn Target,
    corpus: Vec<Vec<u8>>,
    seed: u64,
    findings: &'a Path,
}

impl Feeder<'_> {
    fn feed(&mut self, length: Length) -> Result<Report, String> {
        let mut mutator = Mutator::new(self.seed, self.corpus.clone());
        let mut kinds = BTreeSet::new();
        let mut report = Report::default();
        let mut slow = self.measure_slow()?;
        while length.covers(report.inputs) {
            let input = mutator.next_input();
            let answer = self.read_in_time(&input, &mut slow)?;
            report.inputs += 1;
            if kinds.insert(kind_of(&answer)) {
                mutator.keep(input);
                report.answers.push(answer);
            }
        }
        Ok(report)
    }

    /// Reads an input that must not be slow each time. `slow` is measured again when the input exceeds it.
    fn read_in_time(&mut self, input: &[u8], slow: &mut Duration) -> Result<String, String> {
        let mut answer = String::new();
        for _ in 0..SLOW_TRIES {
            let (time, result) = measure(|| self.read(input));
            answer = result?;
            if time < *slow {
                return Ok(answer);
            }
            *slow = self.measure_slow()?.max(*slow);
        }
        Err(format!("takes more than {slow:?} each time, and says {answer}"))
    }

    /// The time from which on an input is slow.
    fn measure_slow(&mut self) -> Result<Duration, String> {
        let corpus = self.corpus.clone();
        let (time, result) = measure(|| corpus.iter().try_for_each(|input| self.read(input).map(drop)));
        let bytes = corpus.iter().map(Vec::len).sum::<usize>().max(1);
        let texts = u32::try_from(INPUT_BYTES_MAX / bytes).unwrap_or(u32::MAX).max(1);
        result.map(|()| time * texts * SLOW_FACTOR)
    }

    fn read(&mut self, input: &[u8]) -> Result<String, String> {
        let reader = std::thread::current().id();
        let reading =
            Current { reader, seed: self.seed, input: input.to_vec(), folder: self.findings.to_owned() };
        current().insert(self.target.name(), reading);
        self.target.read(input)
    }
}

impl Length {
    fn covers(self, inputs: u64) -> bool {
        match self {
            Self::Inputs(count) => inputs < count,
            Self::Until(end) => !end.is_over(),
        }
    }
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
