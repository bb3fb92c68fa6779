//! Measures how many Events are recognised per second on one core, and the memory of the knowledge: `cargo bench -p
//! holdfast-knowledge`.

// This program measures and prints.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, clippy::cast_precision_loss)]

#[allow(dead_code, unreachable_pub)]
#[path = "../../../tests/src/size.rs"]
mod size;

use std::hint::black_box;

use holdfast_fixtures::clock::Stopwatch;
use holdfast_knowledge::{ClusterEvent, Knowledge};
use serde_json::{Value, json};

const MESSAGES: &str = include_str!("../src/tests/fixtures/messages.tsv");

/// The goal: a hundred thousand per second.
const WANTED: f64 = 100_000.0;

fn value(line: &str) -> Value {
    let fields: Vec<&str> = line.splitn(6, '\t').collect();
    json!({
        "metadata": {"uid": "7d8c", "creationTimestamp": "2026-03-01T12:00:00Z"},
        "involvedObject": {"kind": fields[2], "namespace": "shop", "name": "web", "uid": "8a1f"},
        "reason": fields[0], "type": "Warning", "message": fields[5], "source": {"component": fields[1]},
        "firstTimestamp": "2026-03-01T12:00:00Z", "lastTimestamp": "2026-03-01T12:30:00Z", "count": 7,
    })
}

/// The resident memory of this process in megabytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// Calls per second.
fn rate(rounds: usize, count: usize, mut act: impl FnMut()) -> f64 {
    let begun = Stopwatch::start();
    (0..rounds).for_each(|_| act());
    (rounds * count) as f64 / begun.read().as_secs_f64()
}

fn main() {
    let rounds = size::sized(2_000, 2);
    let before = resident();
    let begun = Stopwatch::start();
    let knowledge = Knowledge::built_in();
    println!(
        "knowledge: read in {:.1} ms; {:.1} MB resident; {} reasons, {} causes",
        begun.read().as_secs_f64() * 1e3,
        resident() - before,
        knowledge.reasons().len(),
        knowledge.causes().len()
    );
    let values: Vec<Value> = MESSAGES.lines().skip(1).map(value).collect();
    let events: Vec<ClusterEvent> = values.iter().map(ClusterEvent::from_json).collect();
    let read = rate(rounds, values.len(), || {
        values.iter().for_each(|value| drop(black_box(ClusterEvent::from_json(value))));
    });
    let recognised = rate(rounds, events.len(), || {
        events.iter().for_each(|event| drop(black_box(knowledge.recognise(event))));
    });
    let longest: Vec<ClusterEvent> = events
        .iter()
        .map(|event| ClusterEvent { message: format!("{:x<1024}", event.message), ..event.clone() })
        .collect();
    let slowest = rate(rounds / 2, longest.len(), || {
        longest.iter().for_each(|event| drop(black_box(knowledge.recognise(event))));
    });
    println!("events read from JSON: {read:.0}/s");
    println!("events recognised: {recognised:.0}/s, {:.1} times what is asked", recognised / WANTED);
    println!("… with messages of 1,024 bytes: {slowest:.0}/s");
}
