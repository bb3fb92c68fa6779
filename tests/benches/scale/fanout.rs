//! The bytes that an apiserver sends to all nodes, computed from those to one node.
//!
//! Each node watches each slice, so the sum is one node's bytes times the number of nodes: holdfast saves nothing
//! there, nor does any other proxy that watches slices.

use holdfast_tests::figures::{self, Figure};

const NODES: [u32; 3] = [10, 1_000, 10_000];

const GROUP: &str = "MB from all apiservers to all nodes, computed";

/// Writes of a slice while ten pods are replaced one after the other: each new one is added and becomes ready, each
/// old one terminates and is removed.
const WRITES_OF_A_ROLLOUT: f64 = 40.0;

/// Pods that come and go per second in a large cluster.
const CHURN: f64 = 10.0;

/// Adds the rows that follow from the measurements of one node.
pub(super) fn tell() {
    let Some(file) = figures::file() else { return };
    let all = figures::read(&file).unwrap();
    let of = |services: &str, what: &str| {
        let found = all.iter().find(|it| it.of == services && it.what.starts_with(what));
        found.map_or(f64::NAN, |it| it.median)
    };
    let slice = of("10000 services", "kB from the apiserver for a slice") / 1e3;
    let lists = of("10000 services", "MB of lists");
    for nodes in NODES {
        let tell = |what: &str, of_one: f64| {
            Figure::from_draws(GROUP, what, &format!("{nodes} nodes"), vec![of_one * f64::from(nodes)])
                .tell()
                .unwrap();
        };
        tell("one change of a slice of 10 endpoints", slice);
        tell("a rollout of 10 pods, 40 writes of their slice", slice * WRITES_OF_A_ROLLOUT);
        tell("a second in which 10 pods come or go, 2 writes each", slice * CHURN * 2.0);
        tell("all nodes list 10,000 services at once", lists);
    }
}
