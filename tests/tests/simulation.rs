//! Short lives of the whole engine, for every change; `make simulate` lives longer ones.
#![cfg(test)]

use holdfast_tests::simulation::simulate;

#[track_caller]
fn check(seed: u64, steps: u64, faults: u16) {
    let report = simulate(seed, steps, faults).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.ops > steps / 10 && report.rests > 0, "a life in which something happens: {report:?}");
}

#[test]
fn invariant_03_what_faults_and_crashes_leave_is_repaired() {
    for seed in 1..=4 {
        check(seed, 40_000, 400);
    }
}

#[test]
fn invariant_04_clients_meet_whole_lists_between_any_two_ops() {
    for seed in 11..=14 {
        check(seed, 60_000, 0);
    }
}

#[test]
fn a_few_faults_are_survived_too() {
    check(21, 60_000, 100);
}
