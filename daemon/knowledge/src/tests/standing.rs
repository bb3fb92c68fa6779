//! Which Events still describe the present.

use super::event;
use crate::{ClosedReason, ClusterEvent, CurrentObject, EventType, Knowledge, Time};

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
fn check(events: &[ClusterEvent], present: CurrentObject<'_>, expected: &[Option<ClosedReason>]) {
    let states = Knowledge::built_in().judge_events(events, present, NOW);
    let closed: Vec<Option<ClosedReason>> = states.iter().map(|it| it.closed).collect();
    assert_eq!(closed, expected, "{events:?}");
    assert!(states.iter().all(|it| it.is_open() == it.closed.is_none()));
}

#[test]
fn only_a_later_success_ends_a_failure() {
    let failed = "SyncLoadBalancerFailed";
    check(&[at(failed, 60)], CurrentObject::default(), &[None]);
    let ended = [at(failed, 60), at("EnsuredLoadBalancer", 30)];
    check(&ended, CurrentObject::default(), &[Some(ClosedReason::Resolved), None]);
    let again = [at("EnsuredLoadBalancer", 60), at(failed, 30)];
    check(&again, CurrentObject::default(), &[None, None]);
    let trying = [at(failed, 60), at("EnsuringLoadBalancer", 30)];
    check(&trying, CurrentObject::default(), &[None, None]);
}

#[test]
fn an_end_in_the_same_second_closes_progress_but_no_failure() {
    let failed = [at("EnsuredLoadBalancer", 9), at("SyncLoadBalancerFailed", 9)];
    check(&failed, CurrentObject::default(), &[None, None]);
    let fast = [at("EnsuringLoadBalancer", 9), at("EnsuredLoadBalancer", 9)];
    check(&fast, CurrentObject::default(), &[Some(ClosedReason::Resolved), None]);
}

#[test]
fn a_changed_or_replaced_object_closes_an_event() {
    let mut former = at("SyncLoadBalancerFailed", 60);
    former.object.uid = "a".to_owned();
    let events = [former, at("SyncLoadBalancerFailed", 60)];
    let present = CurrentObject { uid: Some("b"), changed: None };
    check(&events, present, &[Some(ClosedReason::FormerObject), None]);
    check(&events[..1], CurrentObject { uid: Some("a"), changed: None }, &[None]);
    let changed = |ago| CurrentObject { uid: None, changed: Some(Time(NOW.0 - ago)) };
    check(&events[1..], changed(30), &[Some(ClosedReason::Changed)]);
    check(&events[1..], changed(90), &[None]);
}

#[test]
fn an_event_of_a_former_object_ends_nothing() {
    let mut former = at("EnsuredLoadBalancer", 10);
    former.object.uid = "a".to_owned();
    let present = CurrentObject { uid: Some("b"), changed: None };
    check(&[at("SyncLoadBalancerFailed", 60), former], present, &[None, Some(ClosedReason::FormerObject)]);
}

#[test]
fn a_nodes_name_as_its_uid_is_the_same_node() {
    let mut node = event("NodeNotReady", "kubelet", "Node", "x");
    (node.object.uid, node.last) = (node.object.name.clone(), Some(NOW));
    check(&[node], CurrentObject { uid: Some("real"), changed: None }, &[None]);
}

#[test]
fn an_event_expires_after_an_hour_or_without_a_time() {
    check(&[at("SyncLoadBalancerFailed", 3_600)], CurrentObject::default(), &[None]);
    check(&[at("SyncLoadBalancerFailed", 3_601)], CurrentObject::default(), &[Some(ClosedReason::Expired)]);
    let mut undated = at("SyncLoadBalancerFailed", 0);
    undated.last = None;
    check(&[undated], CurrentObject::default(), &[Some(ClosedReason::Expired)]);
}

#[test]
fn a_time_in_the_future_counts_as_now() {
    let ahead = [at("EnsuredLoadBalancer", -99_999), at("SyncLoadBalancerFailed", 0)];
    check(&ahead, CurrentObject::default(), &[None, None]);
    let huge = ClusterEvent { last: Some(Time(i64::MAX)), ..at("SyncLoadBalancerFailed", 0) };
    check(&[huge], CurrentObject::default(), &[None]);
}
