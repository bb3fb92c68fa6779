//! Which backends a drain matches, and the limit of drains.

use std::string::ToString as _;

use super::*;

fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name).unwrap()
}

fn drain(address: &str, port: u16, service: &str) -> Drain {
    let service = (!service.is_empty()).then(|| name(service));
    Drain::new(address.parse().unwrap(), NonZeroU16::new(port), service)
}

fn by(uid: u32) -> DrainOrder {
    DrainOrder { uid, user: None, at: Timestamp(1) }
}

#[track_caller]
fn check(drain: &Drain, service: &str, backend: &str, expected: bool) {
    let (service, backend) = (name(service), backend.parse().unwrap());
    let mut drains = Drains::default();
    drains.add(drain.clone(), by(0)).unwrap();
    assert_eq!(drain.applies_to(&service, backend), expected, "{drain} {service} {backend}");
    assert_eq!(drains.is_drained(&service, backend), expected, "{drain} {service} {backend}");
}

#[test]
fn a_drain_matches_only_its_exact_address_port_and_service() {
    let all = drain("10.0.0.5", 0, "");
    check(&all, "default/web", "10.0.0.5:80", true);
    check(&all, "default/web", "10.0.0.50:80", false);
    check(&all, "default/web", "10.0.0.15:80", false);
    let port = drain("10.0.0.5", 80, "");
    check(&port, "default/web", "10.0.0.5:80", true);
    check(&port, "default/web", "10.0.0.5:8080", false);
    let own = drain("10.0.0.5", 0, "default/web");
    check(&own, "default/web", "10.0.0.5:80", true);
    for other in
        ["default/web-extended", "default/we", "default/web-", "default-2/web", "other/web", "default/a"]
    {
        check(&own, other, "10.0.0.5:80", false);
    }
}

#[test]
fn two_drains_overlap_if_both_can_match_a_backend() {
    let check =
        |a: &Drain, b: &Drain, expected| assert_eq!((a.overlaps(b), b.overlaps(a)), (expected, expected));
    let [all, port] = [0, 80].map(|port| drain("10.0.0.5", port, ""));
    let [own, own_port] = [0, 80].map(|port| drain("10.0.0.5", port, "default/web"));
    for (a, b) in [(&all, &port), (&all, &own), (&port, &own), (&own, &own_port)] {
        check(a, b, true);
    }
    check(&port, &drain("10.0.0.5", 81, ""), false);
    check(&own, &drain("10.0.0.5", 0, "default/web-extended"), false);
    check(&all, &drain("10.0.0.6", 0, ""), false);
}

#[test]
fn a_drain_matches_any_spelling_of_its_address() {
    check(&drain("fd00:0:0:0:0:0:0:5", 0, ""), "default/web", "[fd00::5]:80", true);
    check(&drain("::ffff:10.0.0.5", 80, ""), "default/web", "10.0.0.5:80", true);
    assert_eq!(drain("::ffff:10.0.0.5", 80, "").to_string(), "10.0.0.5:80");
    assert_eq!(drain("FD00:0::5", 80, "").to_string(), "[fd00::5]:80");
}

#[test]
fn a_repeated_drain_keeps_its_first_order_and_is_removed_once() {
    let mut drains = Drains::default();
    let wanted = drain("10.0.0.5", 0, "");
    drains.add(wanted.clone(), by(0)).unwrap();
    drains.add(wanted.clone(), by(7)).unwrap();
    assert_eq!((drains.len(), drains.get(&wanted)), (1, Some(&by(0))));
    assert_eq!(drains.remove(&drain("10.0.0.5", 80, "")), None, "that is another drain");
    assert_eq!((drains.remove(&wanted), drains.remove(&wanted)), (Some(by(0)), None));
    assert_eq!(drains, Drains::default());
}

#[test]
fn the_narrowest_of_several_drains_is_found() {
    let mut drains = Drains::default();
    let backend = "10.0.0.5:80".parse().unwrap();
    for (port, service) in [(0, ""), (80, ""), (0, "default/web"), (80, "default/web")] {
        let narrower = drain("10.0.0.5", port, service);
        drains.add(narrower.clone(), by(0)).unwrap();
        assert_eq!(drains.find_drain(&name("default/web"), backend).unwrap().0, narrower);
    }
    assert_eq!(drains.find_drain(&name("default/other"), backend).unwrap().0, drain("10.0.0.5", 80, ""));
}

#[test]
fn invariant_10_drains_beyond_the_limit_are_refused() {
    let mut drains = Drains::default();
    let each = |number: usize| {
        let address = core::net::Ipv4Addr::from_bits(u32::try_from(number).unwrap());
        Drain::new(address.into(), None, None)
    };
    for number in 0..limits::DRAINS_MAX {
        drains.add(each(number), by(0)).unwrap();
    }
    assert_eq!(drains.add(each(limits::DRAINS_MAX), by(0)), Err(TooManyDrains));
    assert_eq!(drains.add(each(0), by(0)), Ok(()), "the drain exists");
    drains.remove(&each(0)).unwrap();
    assert_eq!(drains.add(each(limits::DRAINS_MAX), by(0)), Ok(()));
    assert_eq!(drains.iter().count(), limits::DRAINS_MAX);
}

#[test]
fn the_difference_of_drains_is_the_begun_and_ended_ones() {
    let (mut before, mut after) = (Drains::default(), Drains::default());
    let [both, gone, new] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| drain(address, 0, ""));
    before.add(both.clone(), by(0)).unwrap();
    before.add(gone.clone(), by(0)).unwrap();
    // The same drain by another order is equal.
    after.add(both, by(7)).unwrap();
    after.add(new.clone(), by(0)).unwrap();
    assert_eq!(before.difference(&after).collect::<alloc::vec::Vec<_>>(), [gone, new]);
}
