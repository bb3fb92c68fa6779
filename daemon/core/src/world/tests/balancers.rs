//! The history of load balancers, from turn to turn and over a restart.

use super::holds::restarted;
use super::*;
use crate::facts::{BalancerFacts, Ingress};
use crate::lifecycle::{self, BalancerState, FindingId};
use crate::time::Uptime;
use alloc::boxed::Box;

/// A service that requests a load balancer and has these addresses.
fn balanced(name: &str, created: i64, addresses: &[&str]) -> Event {
    let meta = Meta { created: Some(Timestamp(created)), ..Meta::default() };
    applied(ServiceFacts {
        kind: ServiceType::LoadBalancer,
        meta,
        ingress: addresses.iter().map(|it| Ingress { address: ip(it), proxied: false }).collect(),
        balancer: Some(Box::default()),
        ..service(name, "10.0.0.1", &[])
    })
}

fn found(rig: &Rig, snapshot: &Snapshot, name: &str) -> (BalancerState, Option<i64>, Vec<FindingId>) {
    let view = view(snapshot, name);
    let found = lifecycle::assess_without_events(
        view.facts.as_ref().unwrap(),
        view.balancer_history.as_deref(),
        rig.clock(),
    );
    (found.state, found.since.map(|at| at.0), found.findings.iter().map(|it| it.id).collect())
}

#[test]
fn a_balancer_address_that_flaps_is_recorded() {
    let mut rig = Rig::new();
    let snapshot = rig.turn(vec![balanced("a", -9_000, &[])]);
    assert_eq!(
        found(&rig, &snapshot, "a"),
        (BalancerState::Requested, Some(101), vec![]),
        "it came while it was watched"
    );
    let snapshot = rig.turn(vec![balanced("a", -9_000, &["203.0.113.7"])]);
    assert_eq!(found(&rig, &snapshot, "a"), (BalancerState::Ready, Some(102), vec![]));
    rig.now += 100;
    let snapshot = rig.turn(vec![slice("a", &["1.1.1.1"])]);
    assert_eq!(
        found(&rig, &snapshot, "a"),
        (BalancerState::Ready, Some(102), vec![]),
        "endpoints change nothing of it"
    );
    let snapshot = rig.turn(vec![balanced("a", -9_000, &["203.0.113.8"])]);
    assert_eq!(found(&rig, &snapshot, "a"), (BalancerState::Ready, Some(102), vec![]));
    let snapshot = rig.turn(vec![balanced("a", -9_000, &[])]);
    assert_eq!(found(&rig, &snapshot, "a"), (BalancerState::Requested, Some(205), vec![FindingId::Flapping]));
    rig.now += 600;
    let snapshot = rig.turn(vec![]);
    assert_eq!(found(&rig, &snapshot, "a"), (BalancerState::Requested, Some(205), vec![FindingId::Pending]));
}

#[test]
fn a_step_of_the_wall_clock_makes_no_load_balancer_late() {
    let mut rig = Rig::new();
    rig.turn(vec![balanced("a", 100, &[])]);
    rig.ahead = 86_400;
    let snapshot = rig.turn(vec![]);
    assert_eq!(found(&rig, &snapshot, "a"), (BalancerState::Requested, Some(86_501), vec![]));
}

/// The history is not saved, so the object's own times count.
#[test]
fn after_a_restart_a_load_balancers_age_comes_from_its_object() {
    let mut rig = Rig::new();
    rig.now = 10_000;
    let events = vec![balanced("a", 7_000, &[]), balanced("b", 9_990, &["203.0.113.7"])];
    let snapshot = rig.turn(events.clone());
    assert_eq!(found(&rig, &snapshot, "a").1, Some(10_001));
    let mut next = restarted(&rig, &snapshot);
    let snapshot = next.turn([events, vec![Event::Synced(SOURCE)]].concat());
    assert_eq!(
        found(&next, &snapshot, "a"),
        (BalancerState::Requested, Some(7_000), vec![FindingId::Pending])
    );
    assert_eq!(found(&next, &snapshot, "b"), (BalancerState::Ready, Some(9_990), vec![]));
    let mut first = restarted(&rig, &Snapshot::default());
    let snapshot = first.turn(vec![balanced("a", 7_000, &[]), Event::Synced(SOURCE)]);
    assert_eq!(
        found(&first, &snapshot, "a"),
        (BalancerState::Requested, Some(7_000), vec![FindingId::Pending])
    );
    let snapshot = first.turn(vec![balanced("c", 7_000, &[])]);
    assert_eq!(
        found(&first, &snapshot, "c"),
        (BalancerState::Requested, Some(10_003), vec![]),
        "the list was whole by then"
    );
}

#[test]
fn a_service_without_load_balancer_has_no_history() {
    let mut rig = Rig::new();
    let snapshot = rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
    assert_eq!(view(&snapshot, "a").balancer_history, None);
    let snapshot = rig.turn(vec![balanced("a", 100, &[])]);
    assert_eq!(view(&snapshot, "a").balancer_history.as_ref().map(|seen| seen.since), Some(Uptime(102)));
    let snapshot = rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
    assert_eq!(view(&snapshot, "a").balancer_history, None);
}

/// A finalizer keeps a deleted object.
#[test]
fn a_stuck_deletion_is_recorded() {
    let mut rig = Rig::new();
    rig.turn(vec![balanced("a", 100, &["203.0.113.7"])]);
    let finalizers = ["service.kubernetes.io/load-balancer-cleanup".into()].into();
    let balancer = BalancerFacts { deleted: Some(Timestamp(102)), finalizers, ..BalancerFacts::default() };
    let going = ServiceFacts {
        kind: ServiceType::LoadBalancer,
        balancer: Some(Box::new(balancer)),
        ..service("a", "10.0.0.1", &[])
    };
    let snapshot = rig.turn(vec![applied(going)]);
    assert_eq!(found(&rig, &snapshot, "a"), (BalancerState::Deleting, Some(102), vec![]));
    rig.now += 600;
    assert_eq!(
        found(&rig, &snapshot, "a"),
        (BalancerState::Deleting, Some(102), vec![FindingId::DeleteStuck])
    );
    let snapshot = rig.turn(vec![deleted("a")]);
    assert!(snapshot.services.iter().all(|view| view.key != service_key("a")));
}

#[test]
fn invariant_05_a_load_balancer_changes_nothing_of_another_service() {
    let mut rig = Rig::new();
    let before = rig.turn(vec![balanced("a", 100, &[]), balanced("b", 100, &[])]);
    let after = rig.turn(vec![balanced("a", 100, &["203.0.113.7"])]);
    assert!(Arc::ptr_eq(&view(&before, "b"), &view(&after, "b")));
}
