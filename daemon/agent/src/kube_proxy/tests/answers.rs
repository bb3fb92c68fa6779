//! Statuses and bodies, member for member as kube-proxy's.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdfast_fixtures::clock;

use super::super::health::{Health, HealthyTime};
use super::super::limits;

/// This many seconds after a second in 2026, on both clocks.
fn at(seconds: u64, begun: Instant) -> HealthyTime {
    let wall: SystemTime = UNIX_EPOCH + Duration::from_secs(1_767_870_715 + seconds);
    HealthyTime { at: wall, instant: begun + Duration::from_secs(seconds) }
}

#[track_caller]
fn check(health: Health, now: HealthyTime, with_node: bool, is_good: bool, expected: &str) {
    let answer = health.build_response(now, with_node);
    assert_eq!(serde_json::to_string(&answer).unwrap(), expected);
    assert_eq!(answer.is_good, is_good, "{expected}");
}

#[test]
fn health_has_the_members_and_order_of_kube_proxy() {
    let begun = clock::now();
    let well = Health { last_healthy: Some(at(0, begun)), is_leaving: false };
    let family = r#"{"lastUpdated":"2026-01-08T11:11:55.000Z","healthy":true}"#;
    let status = format!(r#""healthy":true,"status":{{"IPv4":{family},"IPv6":{family}}}}}"#);
    let now = r#"{"lastUpdated":"2026-01-08T11:11:58.000Z","currentTime":"2026-01-08T11:11:58.000Z","#;
    check(well, at(3, begun), true, true, &format!(r#"{now}"nodeEligible":true,{status}"#));
    check(well, at(3, begun), false, true, &format!("{now}{status}"));
    let leaving = Health { is_leaving: true, ..well };
    let before = now.replacen("11:11:58", "11:11:55", 1);
    check(leaving, at(3, begun), true, false, &format!(r#"{before}"nodeEligible":false,{status}"#));
    check(leaving, at(3, begun), false, true, &format!("{now}{status}"));
}

#[test]
fn a_minute_without_health_is_unhealthy_and_names_the_last_time() {
    let (begun, limit) = (clock::now(), limits::HEALTHY_WITHIN.as_secs());
    let well = Health { last_healthy: Some(at(0, begun)), is_leaving: false };
    assert!(well.build_response(at(limit - 1, begun), true).is_good);
    let family = r#"{"lastUpdated":"2026-01-08T11:11:55.000Z","healthy":false}"#;
    let expected = format!(
        r#"{{"lastUpdated":"2026-01-08T11:11:55.000Z","currentTime":"2026-01-08T11:12:55.000Z","healthy":false,"status":{{"IPv4":{family},"IPv6":{family}}}}}"#
    );
    check(well, at(limit, begun), false, false, &expected);
}

#[test]
fn before_anything_is_served_the_node_gets_no_traffic() {
    let begun = clock::now();
    let expected = r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-08T11:11:55.000Z","nodeEligible":true,"healthy":false}"#;
    check(Health::default(), at(0, begun), true, false, expected);
}
