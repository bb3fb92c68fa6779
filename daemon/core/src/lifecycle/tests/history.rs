//! The history that a node keeps of load balancers, by a clock that never steps.

use super::*;
use crate::time::Uptime;

fn at(mono: u64, wall: i64) -> ClockReading {
    ClockReading { wall: Timestamp(wall), mono: Duration::from_secs(mono) }
}

fn addressed(last: u8) -> ServiceFacts {
    let mut facts = service("lb age=600");
    facts.ingress.push(Ingress { address: [203, 0, 113, last].into(), proxied: false });
    facts
}

#[test]
fn a_service_without_a_load_balancer_has_no_history() {
    assert_eq!(BalancerHistory::observe(None, &service("age=100"), true, NOW), None);
    let (old, seen) =
        (service("lb age=100"), BalancerHistory::observe(None, &service("lb age=100"), true, NOW));
    assert_eq!(BalancerHistory::observe(Some((&old, seen.as_ref())), &service("age=100"), true, NOW), None);
}

/// The creation time is by the apiserver's clock.
#[test]
fn a_service_added_during_a_watch_is_new_whatever_its_creation_time() {
    for (object, is_live, expected) in [
        ("lb age=3600", true, 5_000),
        ("lb age=3600", false, 1_400),
        ("lb age=-3600", false, 5_000),
        ("lb", false, 5_000),
        ("lb age=900 written=700 ip", false, 4_300),
        ("lb age=900 ip", false, 4_100),
        ("lb cleanup age=900 deleted=50", false, 4_950),
        ("cleanup age=900", false, 5_000),
    ] {
        let seen = BalancerHistory::observe(None, &service(object), is_live, NOW).unwrap();
        assert_eq!(seen.since, Uptime(expected), "{object} {is_live}");
    }
}

#[test]
fn a_restored_service_is_as_old_as_its_object_says() {
    let facts = service("lb age=900");
    let seen = BalancerHistory::observe(Some((&facts, None)), &facts, false, NOW).unwrap();
    assert_eq!(seen.since, Uptime(4_100));
}

#[test]
fn a_step_of_the_wall_clock_makes_nothing_older_or_younger() {
    let facts = service("lb age=10");
    let seen = BalancerHistory::observe(None, &facts, true, at(5_000, WALL)).unwrap();
    for wall in [WALL, WALL + 86_400, WALL - 86_400, 0, i64::MAX, i64::MIN] {
        let found = assess_without_events(&facts, Some(&seen), at(5_599, wall));
        assert_eq!(shown(&found.findings), [""; 0], "{wall}");
        assert_eq!(found.since, Some(Timestamp(wall.saturating_sub(599))));
        let found = assess_without_events(&facts, Some(&seen), at(5_600, wall));
        assert_eq!(shown(&found.findings), ["pending warning"], "{wall}");
    }
}

#[test]
fn a_phase_begins_when_the_node_sees_the_change() {
    let (asked, made) = (service("lb age=100"), addressed(1));
    let first = BalancerHistory::observe(None, &asked, true, at(100, 1_000)).unwrap();
    let same = BalancerHistory::observe(Some((&asked, Some(&first))), &asked, true, at(150, 1_050)).unwrap();
    assert_eq!(same, first);
    let then = BalancerHistory::observe(Some((&asked, Some(&first))), &made, true, at(160, 1_060)).unwrap();
    assert_eq!(then.since, Uptime(160));
    let typed =
        BalancerHistory::observe(Some((&service("age=100"), None)), &asked, true, at(170, 1_070)).unwrap();
    assert_eq!(typed.since, Uptime(170));
}

#[test]
fn a_recreated_service_starts_a_new_history() {
    let (mut old, mut new) = (addressed(1), addressed(2));
    (old.meta.uid, new.meta.uid) = (Some("a".into()), Some("b".into()));
    let mut seen = BalancerHistory::observe(None, &old, true, at(100, 1_000)).unwrap();
    for mono in 101..110 {
        seen = BalancerHistory::observe(Some((&old, Some(&seen))), &new, true, at(mono, 1_000)).unwrap();
        assert_eq!(seen.since, Uptime(i64::try_from(mono).unwrap()));
        core::mem::swap(&mut old, &mut new);
    }
    assert!(!seen.is_flapping(Uptime(110)));
}

/// Checks whether changes of the address at these seconds are too many at the end.
#[track_caller]
fn check_flaps(changes: &[u64], end: u64, expected: bool) {
    let mut old = addressed(0);
    let mut seen = BalancerHistory::observe(None, &old, true, at(0, 1_000)).unwrap();
    for (last, mono) in (1..).zip(changes) {
        let new = addressed(last);
        seen = BalancerHistory::observe(Some((&old, Some(&seen))), &new, true, at(*mono, 1_000)).unwrap();
        old = new;
    }
    let found = assess_without_events(&old, Some(&seen), at(end, 1_000));
    let flapping = shown(&found.findings).contains(&"flapping warning".to_owned());
    assert_eq!(flapping, expected, "{changes:?} at {end}");
    assert_eq!(found.state, BalancerState::Ready);
}

#[test]
fn an_address_that_changes_three_times_in_ten_minutes_is_flapping() {
    check_flaps(&[10, 20], 30, false);
    check_flaps(&[10, 20, 30], 30, true);
    check_flaps(&[10, 20, 30], 609, true);
    check_flaps(&[10, 20, 30], 610, false);
    check_flaps(&[10, 310, 620], 630, false);
    check_flaps(&[10, 310, 320, 330, 340], 900, true);
}

#[test]
fn changing_hostnames_flap_like_addresses() {
    let mut old = service("lb age=600 host");
    let mut seen = BalancerHistory::observe(None, &old, true, at(0, 1_000)).unwrap();
    for mono in 1..=3 {
        let mut new = old.clone();
        let name = alloc::format!("web-{mono}.example.com");
        new.balancer.as_mut().unwrap().hostnames = [name.as_str().into()].into();
        seen = BalancerHistory::observe(Some((&old, Some(&seen))), &new, true, at(mono, 1_000)).unwrap();
        old = new;
    }
    assert!(seen.is_flapping(Uptime(4)));
}
