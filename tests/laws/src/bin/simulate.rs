//! `simulate --steps N --seed S --faults PER_MILLE` runs three simulations in turn and reports violations: one with
//! failing maps and crashes, one with too little capacity, and one alongside hostile tenants.
//!
//! There is one thread, so a seed gives the same simulations on every machine.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;

use holdfast_fixtures::clock::Stopwatch;
use holdfast_laws::simulation::crowd::crowd;
use holdfast_laws::simulation::hostile::beside;
use holdfast_laws::simulation::simulate;

const USAGE: &str = "usage: simulate [--steps N] [--seed S] [--faults PER_MILLE]";

struct Arguments {
    steps: u64,
    seed: u64,
    faults: u16,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments { steps: 1_000_000, seed: random_seed(), faults: 100 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--steps" => found.steps = value.parse().ok()?,
            "--seed" => found.seed = value.parse().ok()?,
            "--faults" => found.faults = value.parse().ok().filter(|share| *share <= 1000)?,
            _ => return None,
        }
    }
    Some(found)
}

fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn main() -> ExitCode {
    let Some(Arguments { steps, seed, faults }) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    println!("seed {seed}: {steps} steps, up to {faults} of 1000 ops fail");
    let started = Stopwatch::start();
    let lived = simulate(seed, steps, faults)
        .and_then(|report| Ok((report, crowd(seed, steps)?, beside(seed, steps)?)));
    match lived {
        Ok((report, crowded, beside)) => {
            let seconds = started.read().as_secs_f64();
            println!("no violation: {report:?}, {crowded:?}, {beside:?}, {seconds:.1} s");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}
