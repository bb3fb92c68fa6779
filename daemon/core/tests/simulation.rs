//! Short runs of the whole engine, for every change; `make simulate` runs longer ones.
#![cfg(test)]

use holdfast_core::hold::Bound;
use holdfast_core::snapshot::Reason;
use holdfast_laws::simulation::crowd::crowd;
use holdfast_laws::simulation::hostile::beside;
use holdfast_laws::simulation::policy::{Rule, Signs, rule};
use holdfast_laws::simulation::{simulate, simulate_by};

#[track_caller]
fn check(seed: u64, steps: u64, faults: u16) {
    let report = simulate(seed, steps, faults).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.ops > steps / 10 && report.rests > 0, "something must happen in a run: {report:?}");
}

#[test]
fn invariant_03_faults_and_crashes_are_repaired() {
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
fn the_engine_survives_a_few_faults() {
    check(21, 60_000, 100);
}

#[test]
fn invariant_10_freed_space_is_given_out_and_no_service_loses_any() {
    for seed in 51..=58 {
        let report = crowd(seed, 5_000).unwrap_or_else(|violation| panic!("{violation}"));
        let happened = report.waited > 0 && report.starved > 0 && report.restarts > 0;
        assert!(happened, "a service must wait in a run: {report:?}");
    }
}

#[test]
fn invariant_05_hostile_tenants_change_nothing_of_a_bystander() {
    for seed in 61..=64 {
        let report = beside(seed, 6_000).unwrap_or_else(|violation| panic!("{violation}"));
        let happened = [report.gone, report.held, report.heard, report.rests, report.fought];
        assert!(happened.iter().all(|count| *count > 0), "something must happen in each run: {report:?}");
    }
}

/// Every start and end of a hold, except those that need many services or a long time.
const HAPPENS: [(&str, &str); 11] = [
    ("held", "vanished"),
    ("held", "resync"),
    ("held", "control"),
    ("held", "mass-loss"),
    ("passing", "vanished"),
    ("refusing", "scaled-down"),
    ("refusing", "all-unready"),
    ("refusing", "hold-expired"),
    ("refusing", "probes-failed"),
    ("held", "hidden"),
    ("refusing", "hidden"),
];

#[test]
fn empty_lists_have_a_reason_and_holds_end_at_their_bound() {
    let turned = simulate(33, 100_000, 50).unwrap_or_else(|violation| panic!("{violation}")).turned;
    let missing: Vec<_> = HAPPENS.iter().filter(|it| !turned.contains_key(*it)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?} in {turned:?}");
}

/// Checks that the simulation notices an engine that follows another rule than `other`.
#[track_caller]
fn check_detected(other: Rule) {
    let found = simulate_by(other, 41, 60_000, 0).expect_err("the engine follows the wrong rule");
    assert!(found.what.contains("held") || found.what.contains("shows"), "{found}");
}

#[test]
fn simulation_finds_a_policy_that_never_holds() {
    check_detected(|_| None);
}

#[test]
fn simulation_finds_a_policy_that_always_holds() {
    check_detected(|signs| rule(signs).or(Some((Reason::Vanished, Bound::Guarded))));
}

#[test]
fn simulation_finds_a_policy_that_holds_without_bound() {
    check_detected(|signs| rule(signs).map(|(reason, _)| (reason, Bound::Unlimited)));
}

#[test]
fn simulation_finds_a_policy_that_takes_null_for_scaled_down() {
    check_detected(|signs| rule(&Signs { ended: signs.ended || !signs.unready, ..*signs }));
}

#[test]
fn simulation_finds_a_policy_that_takes_an_unready_endpoint_for_the_lost_ones() {
    check_detected(|signs| rule(&Signs { unready: signs.unready || signs.beside, ..*signs }));
}

#[test]
fn simulation_finds_a_policy_that_takes_a_label_for_scaled_down() {
    check_detected(|signs| rule(&Signs { ended: signs.ended || signs.hidden, ..*signs }));
}
