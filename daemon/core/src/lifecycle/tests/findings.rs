//! Each finding at its threshold, and cases without a finding.

use super::*;

#[track_caller]
fn check_with(object: &str, events: &str, controller: ControllerLiveness, expected: &[&str]) -> Vec<Finding> {
    let found = look(object, events, controller);
    assert_eq!(shown(&found.findings), expected, "{object:?} with {events:?} in {:?}", found.state);
    found.findings
}

#[track_caller]
fn check(object: &str, events: &str, expected: &[&str]) -> Vec<Finding> {
    check_with(object, events, ControllerLiveness::Unknown, expected)
}

#[test]
fn no_controller_is_found_if_no_event_exists() {
    check("lb age=59", "", &[]);
    let found = check("lb age=60", "", &["no-controller error"]);
    assert_eq!((found[0].confidence, found[0].age), (Confidence::Likely, Some(60)));
    check("lb age=600", "", &["no-controller error", "pending warning"]);
    check("lb age=90", "Ensuring-80", &[]);
    check("lb age=90", "Other-80", &[]);
    check("lb age=90 ip", "", &[]);
    check("lb class age=90", "", &["class-unserved error"]);
    // A controller set a finalizer, and is alive or unknown.
    check("lb cleanup age=90", "", &[]);
    for controller in [ControllerLiveness::Unknown, ControllerLiveness::Alive] {
        check_with("lb cleanup age=90", "", controller, &[]);
        check_with("lb age=90", "", controller, &["no-controller error"]);
    }
    let found = check_with("lb cleanup age=90", "", ControllerLiveness::Silent, &["no-controller error"]);
    assert_eq!(found[0].confidence, Confidence::Certain);
    check_with(
        "lb cleanup age=900",
        "",
        ControllerLiveness::Silent,
        &["no-controller error", "pending warning"],
    );
}

#[test]
fn unread_events_do_not_count_as_absent() {
    for object in
        ["lb age=500", "lb class age=500", "lb cleanup age=500", "lb age=9000 ip", "cleanup age=9000"]
    {
        for controller in [ControllerLiveness::Unknown, ControllerLiveness::Alive, ControllerLiveness::Silent]
        {
            check_with(object, "-", controller, &[]);
        }
    }
    let found = check("lb cleanup age=9000", "-", &["pending warning"]);
    assert_eq!(found[0].confidence, Confidence::WithoutEvents);
    let found = check("lb cleanup deleted=9000", "-", &["delete-stuck warning"]);
    assert_eq!(found[0].confidence, Confidence::WithoutEvents);
}

#[test]
fn a_class_without_a_controller_is_found() {
    check("lb class age=59", "", &[]);
    check("lb class age=600", "", &["class-unserved error", "pending warning"]);
    check("lb class age=90", "Other-80", &[]);
    check("lb class age=90 host", "", &[]);
    // The Lease belongs to a controller that serves no class.
    check_with("lb class cleanup age=90", "", ControllerLiveness::Silent, &[]);
}

#[test]
fn a_balancer_without_an_error_and_without_an_address_is_stuck() {
    check("lb cleanup age=9000", "Ensuring-299", &["pending warning"]);
    check("lb cleanup age=310", "Ensuring-300", &["stuck-ensuring warning"]);
    check("lb cleanup age=910", "Ensuring-900", &["stuck-ensuring error", "pending warning"]);
    check("lb cleanup age=310", "Creating-300", &["stuck-ensuring warning"]);
    check("lb cleanup age=9000 ip", "Ensuring-3000", &[]);
    check("lb cleanup age=9000 host", "Ensuring-3000 Other-2900", &[]);
    // An Event lives for an hour, and a failing controller writes one every five minutes.
    check("lb cleanup age=4000", "", &["stuck-ensuring error", "pending warning"]);
    check("lb cleanup age=400", "Ensuring-?", &[]);
}

#[test]
fn a_repeated_or_lasting_failure_is_found() {
    check("lb cleanup age=100", "SyncFailed-38x2!", &[]);
    check("lb cleanup age=100", "SyncFailed-38x3!", &["failing error"]);
    check("lb cleanup age=100", "SyncFailed-38/119!", &[]);
    check("lb cleanup age=130", "SyncFailed-38/120!", &["failing error"]);
    check("lb cleanup age=100", "SyncFailed-38x3", &[]);
    let events = "Ensuring-40x8 SyncFailed-38x7!:cloud.rate_limited";
    let found = check("lb cleanup age=600", events, &["failing error", "pending warning"]);
    assert_eq!((found[0].cause.as_deref(), found[0].count), (Some("cloud.rate_limited"), 7));
    // Each message is an Event of its own: the same cause counts over all of them.
    let events = "SyncFailed-38!:quota SyncFailed-58!:quota SyncFailed-78!:quota";
    check("lb cleanup age=100", events, &["failing error"]);
    check("lb cleanup age=100", "SyncFailed-38!:quota SyncFailed-58!:dns SyncFailed-78!:rights", &[]);
}

#[test]
fn a_pause_between_two_tries_is_no_recovery() {
    check("lb cleanup age=900", "Ensuring-299 SyncFailed-298x9!", &["failing error", "pending warning"]);
    check("lb cleanup age=900", "Ensuring-2 SyncFailed-298x9!", &["failing error", "pending warning"]);
    check("lb cleanup age=900", "Ensuring-2000 SyncFailed-1900x9!", &["failing error", "pending warning"]);
}

#[test]
fn a_missing_address_is_found_a_minute_after_ensured() {
    check("lb cleanup age=100", "Ensuring-70 Ensured-59", &[]);
    check("lb cleanup age=100", "Ensuring-70 Ensured-60", &["ensured-no-ingress error"]);
    check("lb cleanup age=700", "Ensuring-690 Ensured-650", &["ensured-no-ingress error", "pending warning"]);
    check("lb cleanup age=100", "Ensured-60 Ensuring-30", &[]);
    check("lb cleanup age=100 ip", "Ensuring-70 Ensured-60", &[]);
    check("lb cleanup age=100", "Ensured-?", &[]);
}

#[test]
fn pending_begins_at_ten_minutes_whatever_the_reason() {
    check("lb cleanup age=599", "NoNodes-10!", &["no-nodes error"]);
    check("lb cleanup age=600", "NoNodes-10!", &["no-nodes error", "pending warning"]);
    check("lb age=600 ip", "", &[]);
    check("lb", "", &[]);
    check("age=6000", "", &[]);
}

#[test]
fn degraded_begins_at_two_minutes() {
    check("lb age=900 ip", "UpdateFailed-30/119!", &[]);
    check("lb age=900 ip", "UpdateFailed-30/120!:cloud.deadline", &["degraded warning"]);
    check("lb age=900 ip", "UpdateFailed-30/120", &[]);
    check("lb age=900 ip", "NoNodes-30/130!", &["no-nodes error", "degraded warning"]);
    check("lb age=900 ip", "NoNodes-30!", &["no-nodes error"]);
}

#[test]
fn a_stuck_deletion_is_found_with_its_newest_failure() {
    check("lb cleanup deleted=599", "", &[]);
    check("lb cleanup deleted=600", "Deleting-599", &["delete-stuck warning"]);
    check("lb other deleted=600 ip", "", &["delete-stuck warning"]);
    let events = "DeleteFailed-30x9!:cloud.dependency*";
    let found = check("lb cleanup deleted=700", events, &["delete-stuck warning", "orphan-risk notice"]);
    assert_eq!(found[0].cause.as_deref(), Some("cloud.dependency"));
    check("lb cleanup deleted=90", "DeleteFailed-30!:cloud.dependency*", &["orphan-risk notice"]);
    check("lb cleanup deleted=90", "DeleteFailed-30!:cloud.rate_limited", &[]);
    check("lb cleanup deleted=90", "DeleteFailed-30:cloud.dependency*", &[]);
    check("lb age=90 ip", "DeleteFailed-30!:cloud.dependency*", &[]);
}

#[test]
fn k3s_never_says_ensured_and_nothing_is_wrong() {
    check("lb age=9000 ip", "Ensuring-3000 Other-2900", &[]);
    check("lb age=9000 ip", "Ensuring-3000 Created-2900 Updated-2000", &[]);
}
