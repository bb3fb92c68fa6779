//! Which texts are prefixes.

use alloc::string::ToString;

use super::*;

#[test]
fn a_parsed_prefix_prints_as_the_same_prefix() {
    for (text, ipv4, ipv6) in [
        ("ipv4=24,ipv6=64", 24, 64),
        (" ipv6 = 56 , ipv4 = 8 ", 8, 56),
        ("ipv4=24", 24, 128),
        ("ipv6=32", 32, 32),
        ("ipv4=32,ipv6=128", 32, 128),
        ("ipv4=8,ipv4=16", 16, 128),
    ] {
        let read = Prefixes::parse(text).unwrap();
        assert_eq!((read.length(Family::V4), read.length(Family::V6)), (ipv4, ipv6), "{text}");
        assert_eq!(Prefixes::parse(&read.to_string()), Ok(read));
    }
}

#[test]
fn an_invalid_prefix_item_is_named_with_the_legal_lengths() {
    const LEGAL: &str = "is no prefix: legal are ipv4=8 to ipv4=32 and ipv6=32 to ipv6=128";
    for (text, item) in [
        ("", ""),
        ("24", "24"),
        ("ipv4=7", "ipv4=7"),
        ("ipv4=33", "ipv4=33"),
        ("ipv6=31", "ipv6=31"),
        ("ipv6=129", "ipv6=129"),
        ("ipv4=280", "ipv4=280"),
        ("ipv4=+24", "ipv4=+24"),
        ("ipv4=", "ipv4="),
        ("IPv4=24", "IPv4=24"),
        ("ipv4=24,", ""),
        ("ipv4=24,ipv6=fd00::/64", "ipv6=fd00::/64"),
        ("ipv4=24/ipv6=64", "ipv4=24/ipv6=64"),
    ] {
        assert_eq!(Prefixes::parse(text), Err(alloc::format!("{item:?} {LEGAL}")), "{text}");
    }
    let long = "x".repeat(1000);
    assert!(Prefixes::parse(&long).unwrap_err().len() < 200);
}

#[test]
fn ignored_bits_are_the_rest_of_the_address() {
    let prefixes = Prefixes::parse("ipv4=24,ipv6=48").unwrap();
    assert_eq!(Family::ALL.map(|family| prefixes.ignored_bits(family)), [8, 80]);
    assert_eq!(Family::ALL.map(|family| Prefixes::WHOLE.ignored_bits(family)), [0, 0]);
}
