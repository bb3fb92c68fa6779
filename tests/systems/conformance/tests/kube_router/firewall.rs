//! kube-router for policies alone, which comes while packets bypass the stack, and goes again.
//!
//! Invariant: the clients dial only once packets go through the stack again.

use holdfast_fixtures::clock::Stopwatch;

use super::alone::NODES;
use super::later::LATER;
use super::policies::stage::Stage;
use super::policies::verdicts::HEADING;
use super::typing::{eventually, typed};

/// Waits until holdfast's packets bypass the stack of each node, to the other node and to pods.
pub(crate) fn wait_for_shortcuts(stage: &Stage) {
    let words = ["packets to other nodes bypass the stack", "packets to its pods bypass the stack"];
    for node in NODES {
        eventually("packets bypass the stack", || {
            let datapath = typed(&stage.cluster, node, "holdfast datapath");
            words.iter().all(|words| datapath.contains(words))
        });
    }
}

/// Checks that connections from outside bypass the stack: most, because one that needs a neighbour first does not.
pub(crate) fn assert_shortcuts(stage: &Stage) {
    let flows = typed(&stage.cluster, "n1", "holdfast -o wide flows");
    let open: Vec<Vec<&str>> = flows
        .lines()
        .map(|row| row.split_whitespace().collect())
        .filter(|row: &Vec<&str>| row.get(3) == Some(&"open") && row[0].starts_with("172.30.0.100:"))
        .collect();
    let short = open.iter().filter(|row| row.contains(&"yes")).count();
    assert!(short >= 4 && short * 2 > open.len(), "{flows}");
}

/// Waits until holdfast names the rules for which no packet bypasses the stack, which takes it up to a second.
pub(crate) fn wait_for_the_stack(stage: &Stage) {
    let begun = Stopwatch::start();
    for node in NODES {
        eventually("packets go through the stack", || {
            let datapath = typed(&stage.cluster, node, "holdfast datapath");
            !datapath.contains("bypass the stack")
                && datapath.contains("packets go through the stack: table ip")
        });
    }
    println!("no packet bypasses the rules after {} ms", begun.read().as_millis());
}

/// The rows of the policies that come with it.
pub(crate) fn within(recorded: &str) -> String {
    let is_later = |row: &str| LATER.iter().any(|policy| row.split('\t').next() == Some(policy));
    let rows = recorded.split_inclusive('\n').filter(|row| *row == HEADING || is_later(row));
    rows.collect()
}
