//! The control planes alone: services with one endpoint each as events, until all are written, and until all are
//! removed, into memory maps and into the kernel's. Cilium is measured by its own benchmark, with its own services of
//! the same shape.
//!
//! Invariant: the two take turns, each with a new heap and new maps.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::time::ClockReading;
use holdfast_datapath::KernelMaps;
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Deadline, Stopwatch};
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::Shape;
use holdfast_tests::bed::succeed;
use holdfast_tests::size::sized;

use super::stage::Failed;

/// The default of Cilium's benchmark.
const SERVICES: u32 = 50_000;

const ROUNDS: usize = 7;

/// The largest group of events that the daemon takes before it writes.
const BATCH: usize = 1_024;

/// The program that `scripts/cilium.sh` unpacks, in the target folder.
const BENCHMARK: &str = "cilium/layer/opt/cilium/usr/bin/cilium-lb-benchmark";

/// Makes Cilium's benchmark use the kernel's maps.
const REAL: (&str, &str) = ("PRIVILEGED_TESTS", "1");

/// Gives Cilium's benchmark a bpffs for its pins, which a machine may lack. It goes with the process.
const OWN_BPFFS: &str = r#"mount -t bpf bpf /sys/fs/bpf && exec "$@""#;

/// The longest time of its round.
const ENDED: Duration = Duration::from_secs(120);

/// Services per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub(super) inserted: f64,
    pub(super) deleted: f64,
}

/// The target maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    Memory,
    Kernel,
}

/// The rates of holdfast and, if it was built, of Cilium in each round.
pub(super) fn rounds(into: Into) -> Result<[Vec<Rates>; 2], Failed> {
    let shape = Shape { services: sized(SERVICES, 500), endpoints: 1 };
    let benchmark = benchmark()?;
    let [mut own, mut ciliums] = [Vec::new(), Vec::new()];
    for _ in 0..sized(ROUNDS, 1) {
        own.push(match into {
            Into::Memory => round(MemoryMaps::default(), shape, |maps| maps.entries() == 0)?,
            Into::Kernel => {
                let maps = KernelMaps::without_programs(Capacity::default())?;
                round(maps, shape, |maps| maps.status().frontends == [0, 0])?
            }
        });
        if let Some(benchmark) = &benchmark {
            ciliums.push(round_of_cilium(benchmark, shape.services, into)?);
        }
    }
    Ok([own, ciliums])
}

fn round<M: Maps>(maps: M, shape: Shape, is_empty: impl Fn(&M) -> bool) -> Result<Rates, Failed> {
    let (mut engine, _) = Engine::start(maps, Seed(7), &[Source::Kubernetes])?;
    engine.apply(Event::Synced(Source::Kubernetes));
    let (inserts, deletions) = (shape.events(), shape.deletions());
    let inserted = feed(&mut engine, inserts, Engine::is_written)?;
    let deleted = feed(&mut engine, deletions, |engine| engine.is_written() && is_empty(engine.maps()))?;
    let rate = |took: Duration| f64::from(shape.services) / took.as_secs_f64();
    Ok(Rates { inserted: rate(inserted), deleted: rate(deleted) })
}

/// Runs until the maps match the events.
fn feed<M: Maps>(
    engine: &mut Engine<M>,
    events: Vec<Event>,
    is_done: impl Fn(&Engine<M>) -> bool,
) -> Result<Duration, Failed> {
    let begun = Stopwatch::start();
    let mut waiting = events.into_iter().peekable();
    while waiting.peek().is_some() {
        waiting.by_ref().take(BATCH).for_each(|event| engine.apply(event));
        step(engine, begun);
    }
    let deadline = Deadline::after(TEST_TIMEOUT);
    // Kernel maps are cleared after their last reader, which takes milliseconds.
    while !is_done(engine) {
        if deadline.is_over() {
            return Err("the maps are not as they should be".into());
        }
        step(engine, begun);
    }
    Ok(begun.read())
}

fn step<M: Maps>(engine: &mut Engine<M>, begun: Stopwatch) {
    step_whole(engine, ClockReading { wall: Timestamp(1_800_000_000), mono: begun.read() }, &mut drop);
}

fn benchmark() -> Result<Option<PathBuf>, Failed> {
    let program = std::env::current_exe()?;
    Ok(program.ancestors().map(|folder| folder.join(BENCHMARK)).find(|program| program.exists()))
}

fn round_of_cilium(benchmark: &PathBuf, services: u32, into: Into) -> Result<Rates, Failed> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", OWN_BPFFS, "sh"]).arg(benchmark);
    command.args(["--iterations", "1", "--services", &services.to_string()]);
    if into == Into::Kernel {
        command.env(REAL.0, REAL.1);
    }
    let said = succeed(command, ENDED)?;
    let rate = |what: &str| -> Result<f64, Failed> {
        let lines = said.lines().skip_while(|line| !line.starts_with(what));
        let average = lines.into_iter().find(|line| line.starts_with("Avg:")).unwrap_or_default();
        let words: Vec<&str> = average.split_whitespace().collect();
        let at =
            words.iter().position(|word| *word == "services").and_then(|at| words.get(at.checked_sub(1)?));
        Ok(at.ok_or_else(|| format!("Cilium's benchmark said {said}"))?.parse()?)
    };
    Ok(Rates { inserted: rate("Insert statistics")?, deleted: rate("Delete statistics")? })
}
