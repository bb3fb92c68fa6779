//! The cost of a node's proxy compared with its peers, each as users run it, at one real control plane: the time until
//! all is served, the latency of a change, memory, and processor time; and the control planes alone. Needs root; `make
//! bench-peers`.
//!
//! Each peer serves the same network, one after another, with the same services written before it starts. An outside
//! client measures. The real kube-proxy has its own defaults, which delay changes by up to a second.

mod programming;
mod stage;

use std::path::Path;
use std::time::Duration;

use holdfast_tests::figures::{self, Figure};
use holdfast_tests::size::{self, sized};

use programming::{Into, Rates};
use stage::{Failed, Measured, PEERS, Stage};

/// The numbers of services besides the changing one.
const SERVICES: [u32; 3] = [1, 1_000, 10_000];

/// The output files of the whole run, in the repository.
const TABLES: &str = "docs/peers.md";
const PICTURE: &str = "docs/pictures/peers.svg";

/// The tables in the chart.
const SHOWN: [&str; 4] =
    ["Through a Service, of plain routing (more is better)", CHANGE, MEMORY, PROGRAMMING];

const CHANGE: &str = "Milliseconds until a client meets a change (less is better)";
const START: &str = "Seconds from its start until all is served (less is better)";
const CPU: &str = "Seconds of a processor, for that start (less is better)";
const MEMORY: &str = "MB resident (less is better)";
const PROGRAMMING: &str = "Services a second, of 50,000 by the control plane alone (more is better)";
const IDLE: &str = "Thousandths of a processor while nothing changes (less is better)";

fn figure(group: &str, what: &str, of: &str, values: Vec<f64>) -> Result<(), Failed> {
    Ok(Figure::from_draws(group, what, of, values).tell()?)
}

fn tell(services: u32, of: &str, measured: &Measured) -> Result<(), Failed> {
    let seconds = |time: &Duration| time.as_secs_f64();
    let services = &if services == 1 { "1 service".to_owned() } else { format!("{services} services") };
    figure(START, services, of, vec![seconds(&measured.start)])?;
    figure(CPU, services, of, vec![seconds(&measured.cpu)])?;
    figure(CHANGE, services, of, measured.changes.iter().map(|it| seconds(it) * 1e3).collect())?;
    figure(MEMORY, services, of, vec![measured.megabytes])?;
    figure(IDLE, services, of, vec![measured.idle * 1e3])
}

fn measure() -> Result<(), Failed> {
    for services in SERVICES.into_iter().take(sized(SERVICES.len(), 1)) {
        let Some(stage) = Stage::start(services)? else { return Ok(()) };
        for (name, peer) in PEERS {
            tell(services, name, &stage.measure(peer)?)?;
        }
    }
    Ok(())
}

/// Measures the control planes alone.
fn program() -> Result<(), Failed> {
    for (into, maps) in [(Into::Memory, "memory"), (Into::Kernel, "the kernel's maps")] {
        for (of, rounds) in ["holdfast", "Cilium"].into_iter().zip(programming::rounds(into)?) {
            let all = |rate: fn(&Rates) -> f64| rounds.iter().map(rate).collect::<Vec<_>>();
            if !rounds.is_empty() {
                figure(PROGRAMMING, &format!("written to {maps}"), of, all(|it| it.inserted))?;
                figure(PROGRAMMING, &format!("taken away, {maps}"), of, all(|it| it.deleted))?;
            }
        }
    }
    Ok(())
}

/// Writes this run's results to the page and the chart.
fn publish() -> Result<(), Failed> {
    let Some(file) = figures::file() else { return Ok(()) };
    let all = figures::read(&file)?;
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
    figures::publish(Path::new(&format!("{root}{TABLES}")), MARKS, &all)?;
    Ok(std::fs::write(format!("{root}{PICTURE}"), figures::picture(&all, &SHOWN))?)
}

/// The text around these marks is written by hand.
const MARKS: (&str, &str) = (
    "<!-- What follows is written by `make bench-peers`. -->",
    "<!-- What is above is written by `make bench-peers`. -->",
);

type Part = (&'static str, fn() -> Result<(), Failed>);

fn main() -> Result<(), Failed> {
    let wanted = size::wanted();
    let parts: [Part; 3] = [("measure", measure), ("programming", program), ("publish", publish)];
    let chosen = parts.iter().filter(|(name, _)| wanted.as_deref().is_none_or(|it| it == *name));
    chosen.into_iter().try_for_each(|(_, part)| part())
}
