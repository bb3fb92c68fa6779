//! Every way to recognise a state.

use super::*;

#[track_caller]
fn check(object: &str, events: &str, expected: BalancerState, since: Option<i64>) {
    let found = look(object, events, ControllerLiveness::Unknown);
    assert_eq!((found.state, seconds(&found)), (expected, since), "{object:?} with {events:?}");
}

#[test]
fn a_service_that_requests_no_load_balancer_is_none() {
    check("age=100", "", BalancerState::None, None);
    check("age=100", "-", BalancerState::None, None);
    check("age=100 other", "", BalancerState::None, None);
    check("age=100", "Ensuring-50", BalancerState::None, None);
    // Leftover addresses change nothing.
    check("age=100 ip", "", BalancerState::None, None);
}

#[test]
fn a_balancer_of_a_class_without_events_is_foreign() {
    check("lb class age=30", "", BalancerState::Foreign, Some(30));
    check("lb class age=30", "-", BalancerState::Foreign, Some(30));
    check("lb class age=30", "Other-10", BalancerState::Ensuring, Some(30));
    check("lb class cleanup age=30", "", BalancerState::Ensuring, Some(30));
    check("lb class age=30 ip", "", BalancerState::Ready, Some(30));
    check("lb class age=30", "SyncFailed-5!", BalancerState::Failing, Some(5));
}

#[test]
fn a_balancer_without_finalizer_event_and_address_is_requested() {
    check("lb age=5", "", BalancerState::Requested, Some(5));
    check("lb age=5", "-", BalancerState::Requested, Some(5));
    check("lb", "", BalancerState::Requested, None);
    // It had another type before, and is requested again.
    check("lb age=900", "Deleted-600", BalancerState::Ensuring, Some(900));
}

#[test]
fn a_begun_balancer_without_a_result_is_ensuring() {
    check("lb cleanup age=100", "Ensuring-40", BalancerState::Ensuring, Some(40));
    check("lb cleanup age=100", "Ensuring-40 Ensured-60", BalancerState::Ensuring, Some(40));
    check("lb cleanup age=100", "Ensuring-40 SyncFailed-60!", BalancerState::Ensuring, Some(40));
    check("lb cleanup age=100", "-", BalancerState::Ensuring, Some(100));
    check("lb cleanup age=100", "NoNodes-10!", BalancerState::Ensuring, Some(100));
    check("lb age=100", "Ensuring-?", BalancerState::Ensuring, None);
    check("lb age=100", "Ensured-10", BalancerState::Ensuring, Some(100));
}

#[test]
fn a_creating_event_of_an_old_controller_is_creating() {
    check("lb age=100", "Creating-40", BalancerState::Creating, Some(40));
    check("lb age=100", "Ensuring-41 Creating-40", BalancerState::Creating, Some(40));
    check("lb age=100", "Creating-40 Created-30", BalancerState::Ensuring, Some(100));
}

#[test]
fn an_open_failure_as_the_newest_event_is_failing() {
    check("lb cleanup age=600", "Ensuring-40x8 SyncFailed-38x7!", BalancerState::Failing, Some(38));
    check("lb cleanup age=600", "Ensuring-40x8 SyncFailed-38/590x7!", BalancerState::Failing, Some(590));
    check("lb cleanup age=600", "Ensuring-38 SyncFailed-38!", BalancerState::Failing, Some(38));
    check("lb cleanup age=600", "Ensuring-38 SyncFailed-38", BalancerState::Ensuring, Some(38));
    check("lb cleanup age=600", "SyncFailed-200! Ensured-10", BalancerState::Ensuring, Some(600));
    // Five minutes lie between two tries.
    check("lb cleanup age=3000", "Ensuring-299 SyncFailed-298!", BalancerState::Failing, Some(298));
}

#[test]
fn an_address_without_an_open_failure_is_ready() {
    check("lb age=600 ip", "", BalancerState::Ready, Some(600));
    check("lb age=600 ip", "-", BalancerState::Ready, Some(600));
    check("lb age=600 host", "", BalancerState::Ready, Some(600));
    check("lb age=600 written=500 ip", "", BalancerState::Ready, Some(500));
    check("lb age=600 ip", "Ensuring-500 Ensured-490", BalancerState::Ready, Some(600));
    // No Event reports a balancer done that another controller makes.
    check("lb age=600 ip", "Ensuring-500 Other-400", BalancerState::Ready, Some(600));
    check("lb age=600 ip", "AddressAssigned-590", BalancerState::Ready, Some(600));
    check("lb age=600 ip", "SyncFailed-30 Ensured-20", BalancerState::Ready, Some(600));
}

#[test]
fn ensuring_after_a_result_with_an_address_is_updating() {
    check("lb age=600 ip", "Ensured-490 Ensuring-20", BalancerState::Updating, Some(20));
    check("lb age=600 ip", "Updated-490 Ensuring-20", BalancerState::Updating, Some(20));
    check("lb age=600 ip", "Ensuring-490 Ensured-490", BalancerState::Ready, Some(600));
    check("lb age=600 ip", "Ensured-490 Ensuring-20 Updated-10", BalancerState::Ready, Some(600));
    // The Event of its end was lost; the status was written since.
    check("lb age=600 written=5 ip", "Ensured-490 Ensuring-20", BalancerState::Ready, Some(5));
    check("lb age=600 ip", "Ensured-490 Ensuring-?", BalancerState::Ready, Some(600));
}

#[test]
fn an_address_with_an_open_failure_is_degraded() {
    for failed in ["UpdateFailed", "SyncFailed", "NoNodes"] {
        check("lb age=600 ip", &alloc::format!("{failed}-30/90!"), BalancerState::Degraded, Some(90));
        check("lb age=600 ip", &alloc::format!("{failed}-30 Ensured-20"), BalancerState::Ready, Some(600));
        check(
            "lb age=600 ip",
            &alloc::format!("Ensured-200 {failed}-30! Ensuring-3"),
            BalancerState::Degraded,
            Some(30),
        );
    }
    check("lb age=600 ip", "DeleteFailed-30!", BalancerState::Ready, Some(600));
}

#[test]
fn a_deleted_service_with_a_finalizer_is_deleting() {
    check("lb cleanup age=600 deleted=20", "", BalancerState::Deleting, Some(20));
    check("lb other age=600 deleted=20 ip", "-", BalancerState::Deleting, Some(20));
    check("lb cleanup age=600 deleted=20", "Deleting-19", BalancerState::Deleting, Some(20));
    // The type changed.
    check("cleanup age=600", "Deleting-19", BalancerState::Deleting, None);
    check("cleanup age=600 deleted=20", "", BalancerState::Deleting, Some(20));
}

#[test]
fn a_deletion_with_an_open_failure_is_delete_failing() {
    check("lb cleanup age=600 deleted=80", "DeleteFailed-20/70x3!", BalancerState::DeleteFailing, Some(70));
    check("cleanup age=600", "DeleteFailed-20!", BalancerState::DeleteFailing, Some(20));
    check("lb cleanup age=600 deleted=80", "DeleteFailed-20", BalancerState::Deleting, Some(80));
    check("lb cleanup age=600 deleted=80", "SyncFailed-900!", BalancerState::Deleting, Some(80));
}

#[test]
fn a_deleted_event_or_a_deletion_without_finalizers_is_deleted() {
    check("lb age=600 deleted=20", "", BalancerState::Deleted, Some(20));
    check("age=600", "Deleting-30 Deleted-20", BalancerState::Deleted, Some(20));
    check("age=600", "Deleted-20 Ensuring-10", BalancerState::None, None);
    let events = parse_events("Deleted-7");
    let case = BalancerInput {
        facts: None,
        history: None,
        events: EventReading::All(&events),
        controller: ControllerLiveness::Unknown,
        now: NOW,
    };
    let found = assess_balancer(&case);
    assert_eq!(
        (found.state, seconds(&found), &found.findings[..]),
        (BalancerState::Deleted, Some(7), &[][..])
    );
    let found = assess_balancer(&BalancerInput { events: EventReading::NotRead, ..case });
    assert_eq!((found.state, found.since), (BalancerState::Deleted, None));
}

#[test]
fn future_event_times_count_as_now_and_invalid_ones_as_none() {
    check("lb age=-500", "", BalancerState::Requested, Some(0));
    check("lb cleanup age=100", "Ensuring--3600", BalancerState::Ensuring, Some(0));
    check("lb cleanup age=100", "Ensuring-? SyncFailed-30!", BalancerState::Failing, Some(30));
    check("lb cleanup age=100", "Ensuring-30 SyncFailed-?!", BalancerState::Ensuring, Some(30));
    // The first occurrence cannot be later than the last.
    check("lb cleanup age=600", "SyncFailed-38/2!", BalancerState::Failing, Some(38));
}
