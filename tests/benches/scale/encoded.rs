//! The cost of an encoding to a node: for whole lists, and for single changes.
//!
//! Both encodings take turns, so that both run under equal conditions.

use holdfast_tests::figures::Figure;
use holdfast_tests::size::sized;

use super::process::{cpu, megabytes};
use super::stage::{Bystander, ENDPOINTS, Size, Stage, start};

const SERVICES: u32 = 10_000;

/// An odd number has a middle.
const ROUNDS: u32 = 5;

/// Slices that change after the start, one right after the other.
const CHANGES: u32 = 2_000;

const ENCODINGS: [&str; 2] = ["protobuf", "json"];

const GROUP: &str = "What a node with 10,000 services of 10 endpoints takes, by encoding (less is better)";

const ROWS: [&str; 4] = [
    "s until all is served, from the apiserver",
    "s of a processor for it",
    "MB resident at most until then",
    "ms of a processor for each slice of 10 endpoints that changes",
];

pub(super) fn measure() {
    let stage = Stage::new(Size { services: sized(SERVICES, 50), endpoints: ENDPOINTS });
    let mut draws: [[Vec<f64>; ROWS.len()]; ENCODINGS.len()] = Default::default();
    // The initial slices of a stage have version 1.
    let mut version = 1;
    for _ in 0..sized(ROUNDS, 1) {
        for (encoding, draws) in ENCODINGS.iter().zip(&mut draws) {
            version += 1;
            let taken = taken(&stage, encoding, version);
            draws.iter_mut().zip(taken).for_each(|(draws, value)| draws.push(value));
        }
    }
    for (encoding, draws) in ENCODINGS.iter().zip(draws) {
        for (row, draws) in ROWS.iter().zip(draws) {
            Figure::from_draws(GROUP, row, encoding, draws).tell().unwrap();
        }
    }
}

/// The rows of one new node, while slices of this version arrive.
fn taken(stage: &Stage, encoding: &str, version: u32) -> [f64; ROWS.len()] {
    let mut daemon = stage.daemon_with(&format!("encoding = {encoding:?}\n"));
    let served = start(&mut daemon).as_secs_f64();
    let pid = daemon.pid().unwrap();
    let (spent, (_, most)) = (cpu(pid), megabytes(pid));
    let mut bystander = Bystander::arrive(&daemon);
    bystander.change(stage);
    let (before, changes) = (cpu(pid), CHANGES.min(stage.size.services));
    (0..changes).for_each(|at| stage.write(at, version));
    bystander.change(stage);
    let each = (cpu(pid) - before).as_secs_f64() * 1e3 / f64::from(changes);
    daemon.stop().unwrap();
    daemon.cleanup().unwrap();
    [served, spent.as_secs_f64(), most, each]
}
