//! The addresses of a source range, and the ranges that a service admits on a node.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::*;
use crate::facts::{Ingress, ServiceType};
use crate::keys::{ObjectName, ServiceKey, Source};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[track_caller]
fn check(text: &str, inside: &[&str], outside: &[&str]) {
    let range = SourceRange::parse(text).unwrap();
    assert_eq!(range.to_string(), text);
    assert!(inside.iter().all(|it| range.contains(ip(it))), "{text}");
    assert!(!outside.iter().any(|it| range.contains(ip(it))), "{text}");
}

#[test]
fn a_range_contains_exactly_its_network() {
    check("10.0.0.0/8", &["10.0.0.0", "10.255.255.255"], &["9.255.255.255", "11.0.0.0", "::a00:0"]);
    check("203.0.113.9/32", &["203.0.113.9"], &["203.0.113.8"]);
    check("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::"]);
    check("2001:db8::/32", &["2001:db8:ffff::1"], &["2001:db9::", "32.1.13.184"]);
    check("2001:db8::1/128", &["2001:db8::1"], &["2001:db8::2"]);
    check("::/0", &["::", "ffff::"], &["0.0.0.0"]);
}

#[test]
fn host_bits_are_no_part_of_a_range() {
    assert_eq!(SourceRange::new(ip("10.1.2.3"), 8).unwrap().to_string(), "10.0.0.0/8");
    assert_eq!(SourceRange::new(ip("fd00::1:2"), 16).unwrap().to_string(), "fd00::/16");
    assert_eq!(SourceRange::single_host(ip("10.1.2.3")).to_string(), "10.1.2.3/32");
    assert_eq!(SourceRange::single_host(ip("fd00::1")).to_string(), "fd00::1/128");
}

#[test]
fn a_text_that_is_no_network_is_not_parsed() {
    for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "x/8", "10.0.0.0/8/8", ""] {
        assert_eq!(SourceRange::parse(text), None, "{text:?}");
    }
}

fn ranges(texts: &[&str], family: Family) -> Option<Vec<String>> {
    let name = ObjectName::new("default", "web").unwrap();
    let ingress = [("10.0.0.9", false), ("10.0.0.8", true), ("fd00::9", false)];
    let ingress = ingress.map(|(address, proxied)| Ingress { address: ip(address), proxied });
    let service = ServiceFacts {
        source_ranges: texts.iter().map(|text| (*text).into()).collect(),
        ingress: ingress.into(),
        ..ServiceFacts::new(ServiceKey { name, source: Source::Kubernetes }, ServiceType::LoadBalancer)
    };
    let node_port_addresses = [ip("192.168.0.1"), ip("fd00::1")].into();
    let node = NodeFacts { node_port_addresses, ..NodeFacts::default() };
    allowed_ranges(&service, &node, family).map(|ranges| ranges.iter().map(SourceRange::to_string).collect())
}

#[track_caller]
fn check_ranges(texts: &[&str], v4: Option<&[&str]>, v6: Option<&[&str]>) {
    for (family, expected) in [(Family::V4, v4), (Family::V6, v6)] {
        let expected = expected.map(|it| it.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!(ranges(texts, family), expected, "{texts:?} {family:?}");
    }
}

#[test]
fn each_family_has_its_own_ranges() {
    check_ranges(&[], None, None);
    check_ranges(&["10.1.0.0/16"], Some(&["10.1.0.0/16"]), None);
    check_ranges(&["2001:db8::/32", "10.1.0.0/16"], Some(&["10.1.0.0/16"]), Some(&["2001:db8::/32"]));
    check_ranges(&["10.2.0.0/16", "10.1.0.0/16", "10.2.0.0/16"], Some(&["10.1.0.0/16", "10.2.0.0/16"]), None);
}

#[test]
fn a_range_of_all_addresses_restricts_no_client_of_its_family() {
    check_ranges(&["10.1.0.0/16", "0.0.0.0/0", "2001:db8::/32"], None, Some(&["2001:db8::/32"]));
    check_ranges(&["::/0"], None, None);
}

#[test]
fn a_node_within_the_ranges_adds_the_addresses_of_the_balancer() {
    let (v4, v6) = (["10.0.0.9/32", "192.168.0.0/16"], ["fd00::/16", "fd00::9/128"]);
    check_ranges(&["192.168.0.0/16", "fd00::/16"], Some(&v4), Some(&v6));
    check_ranges(&["192.168.0.0/16", "fd01::/16"], Some(&v4), Some(&["fd01::/16"]));
}

#[test]
fn invalid_ranges_admit_no_client() {
    check_ranges(&["ten/8"], Some(&[]), None);
    check_ranges(&["ten:/8"], None, Some(&[]));
}

#[test]
fn a_range_inside_another_range_is_dropped() {
    let all = ["10.1.0.0/16", "10.0.0.0/8", "10.255.0.0/16", "11.0.0.0/8", "10.0.0.0/9"];
    check_ranges(&all, Some(&["10.0.0.0/8", "11.0.0.0/8"]), None);
}

/// `count` ranges of single addresses, then one of many.
fn many(count: usize, ports: u16) -> ServiceFacts {
    let name = ObjectName::new("default", "web").unwrap();
    let port = |number: u16| crate::facts::ServicePort {
        name: alloc::format!("p{number}").into(),
        protocol: crate::keys::Protocol::TCP,
        port: core::num::NonZeroU16::new(number).unwrap(),
        node_port: None,
    };
    let single = |number: usize| alloc::format!("10.{}.{}.1/32", number / 250, number % 250).into();
    ServiceFacts {
        source_ranges: (0..count).map(single).chain(["192.0.2.0/24".into()]).collect(),
        ports: (1..=ports).map(port).collect(),
        ..ServiceFacts::new(ServiceKey { name, source: Source::Kubernetes }, ServiceType::LoadBalancer)
    }
}

#[test]
fn invariant_10_the_widest_ranges_count_beyond_the_limit() {
    for (count, ports, expected) in [(1_000, 8, 1_001), (1_000, 9, 910), (1_000, 1_000, 8)] {
        let service = many(count, ports);
        let ranges = allowed_ranges(&service, &NodeFacts::default(), Family::V4).unwrap();
        assert_eq!(
            (ranges.len(), count_excess(&service, Family::V4)),
            (expected, count + 1 - expected),
            "{ports}"
        );
        assert!(ranges.len() * usize::from(ports) <= limits::SOURCES_PER_SERVICE_MAX);
        assert!(ranges.iter().any(|range| range.bits() == 24), "the widest range is admitted");
        assert_eq!(count_excess(&service, Family::V6), 0);
    }
}
