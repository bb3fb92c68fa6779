//! Which Events still say something about now.

use super::event;
use crate::{Closed, ClusterEvent, EventType, Knowledge, Present, Time};

const NOW: Time = Time(1_772_370_000);

fn at(reason: &str, ago: i64) -> ClusterEvent {
    let mut event = event(reason, "service-controller", "Service", "x");
    event.last = Some(Time(NOW.0 - ago));
    if !reason.ends_with("Failed") && reason != "UnAvailableLoadBalancer" {
        event.event_type = EventType::Normal;
    }
    event
}

#[track_caller]
fn check(events: &[ClusterEvent], present: Present<'_>, expected: &[Option<Closed>]) {
    let standing = Knowledge::built_in().standing(events, present, NOW);
    let closed: Vec<Option<Closed>> = standing.iter().map(|it| it.closed).collect();
    assert_eq!(closed, expected, "{events:?}");
    assert!(standing.iter().all(|it| it.is_open() == it.closed.is_none()));
}

#[test]
fn only_what_is_seen_later_ends_a_failure() {
    let failed = "SyncLoadBalancerFailed";
    check(&[at(failed, 60)], Present::default(), &[None]);
    let ended = [at(failed, 60), at("EnsuredLoadBalancer", 30)];
    check(&ended, Present::default(), &[Some(Closed::Resolved), None]);
    let again = [at("EnsuredLoadBalancer", 60), at(failed, 30)];
    check(&again, Present::default(), &[None, None]);
    let trying = [at(failed, 60), at("EnsuringLoadBalancer", 30)];
    check(&trying, Present::default(), &[None, None]);
}

#[test]
fn of_one_second_a_failure_stays_and_progress_ends() {
    let failed = [at("EnsuredLoadBalancer", 9), at("SyncLoadBalancerFailed", 9)];
    check(&failed, Present::default(), &[None, None]);
    let fast = [at("EnsuringLoadBalancer", 9), at("EnsuredLoadBalancer", 9)];
    check(&fast, Present::default(), &[Some(Closed::Resolved), None]);
}

#[test]
fn an_object_that_was_changed_or_replaced_ends_it() {
    let mut former = at("SyncLoadBalancerFailed", 60);
    former.object.uid = "a".to_owned();
    let events = [former, at("SyncLoadBalancerFailed", 60)];
    let present = Present { uid: Some("b"), changed: None };
    check(&events, present, &[Some(Closed::FormerObject), None]);
    check(&events[..1], Present { uid: Some("a"), changed: None }, &[None]);
    let changed = |ago| Present { uid: None, changed: Some(Time(NOW.0 - ago)) };
    check(&events[1..], changed(30), &[Some(Closed::Changed)]);
    check(&events[1..], changed(90), &[None]);
}

#[test]
fn an_event_of_a_former_object_ends_nothing() {
    let mut former = at("EnsuredLoadBalancer", 10);
    former.object.uid = "a".to_owned();
    let present = Present { uid: Some("b"), changed: None };
    check(&[at("SyncLoadBalancerFailed", 60), former], present, &[None, Some(Closed::FormerObject)]);
}

#[test]
fn the_name_of_a_node_in_place_of_its_uid_is_no_other_node() {
    let mut node = event("NodeNotReady", "kubelet", "Node", "x");
    (node.object.uid, node.last) = (node.object.name.clone(), Some(NOW));
    check(&[node], Present { uid: Some("real"), changed: None }, &[None]);
}

#[test]
fn an_event_is_over_after_an_hour_or_without_a_time() {
    check(&[at("SyncLoadBalancerFailed", 3_600)], Present::default(), &[None]);
    check(&[at("SyncLoadBalancerFailed", 3_601)], Present::default(), &[Some(Closed::Expired)]);
    let mut undated = at("SyncLoadBalancerFailed", 0);
    undated.last = None;
    check(&[undated], Present::default(), &[Some(Closed::Expired)]);
}

#[test]
fn a_clock_that_is_ahead_makes_nothing_later_than_now() {
    let ahead = [at("EnsuredLoadBalancer", -99_999), at("SyncLoadBalancerFailed", 0)];
    check(&ahead, Present::default(), &[None, None]);
    let huge = ClusterEvent { last: Some(Time(i64::MAX)), ..at("SyncLoadBalancerFailed", 0) };
    check(&[huge], Present::default(), &[None]);
}
