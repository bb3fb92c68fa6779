//! The table of verdicts: for each policy, client and target, whether a connection from before the policy and a new one
//! pass.
//!
//! Invariant: kube-proxy's verdicts are recorded, and asked anew in each run.

use std::collections::BTreeMap;

use super::stage::{Stage, policy_name};

const POLICIES: &str = include_str!("policies.yaml");

pub(crate) const HEADING: &str = "policy\tclient\ttarget\tfrom before\tnew\n";

/// A new connection for which holdfast differs by decision: policy, client, target and verdict.
pub(crate) type Difference = [&'static str; 4];

/// Compares a table with kube-proxy's, apart from the differences.
#[track_caller]
pub(crate) fn compare(recorded: &str, differences: &[Difference], table: &str) {
    let expected: Vec<String> = recorded.lines().map(|row| with_differences(row, differences)).collect();
    let (expected, table): (Vec<&str>, Vec<&str>) =
        (expected.iter().map(String::as_str).collect(), table.lines().collect());
    let other: Vec<&&str> = table.iter().filter(|row| !expected.contains(row)).collect();
    assert!(other.is_empty() && expected == table, "not as with kube-proxy: {other:#?}");
}

fn with_differences(row: &str, all: &[Difference]) -> String {
    let columns: Vec<&str> = row.split('\t').collect();
    let [policy, client, target, before, _] = columns[..] else { return row.to_owned() };
    let differing = all.iter().find(|it| it[..3] == [policy, client, target]);
    differing.map_or_else(|| row.to_owned(), |it| [policy, client, target, before, it[3]].join("\t"))
}

pub(crate) fn policies() -> impl Iterator<Item = &'static str> {
    POLICIES.split("---\n")
}

/// Asks, and lifts the policy.
pub(crate) fn rows_of(stage: &Stage, policy: &str) -> String {
    let (old, new) = stage.held_and_new();
    stage.lift(policy);
    let rows = new.iter().map(|((client, target), ways)| {
        let before = &old[&(*client, target.clone())];
        let row = [policy_name(policy), client, target, &in_words(before), &in_words(ways)].join("\t");
        println!("{row}");
        row + "\n"
    });
    rows.collect()
}

/// One word if all ways have the same verdict, else the ways of each.
fn in_words(ways: &BTreeMap<String, String>) -> String {
    let mut by_verdict: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (way, verdict) in ways {
        by_verdict.entry(verdict).or_default().push(way);
    }
    if by_verdict.len() == 1 {
        return by_verdict.into_keys().collect();
    }
    let parts = by_verdict.into_iter().map(|(verdict, ways)| format!("{verdict}: {}", ways.join(" ")));
    parts.collect::<Vec<_>>().join("; ")
}
