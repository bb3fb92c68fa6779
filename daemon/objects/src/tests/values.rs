//! Addresses, networks, times and texts.

use holdfast_core::facts::Timestamp;
use holdfast_core::limits;

use crate::{address, truncate_reason};

#[track_caller]
fn check_address(text: &str, expected: Option<&str>) {
    assert_eq!(address::parse(text).map(|address| address.to_string()).as_deref(), expected, "{text:?}");
}

#[test]
fn addresses_are_parsed_as_in_kube_proxy_and_shown_canonical() {
    check_address("10.0.0.1", Some("10.0.0.1"));
    check_address("172.30.0.041", Some("172.30.0.41"));
    check_address("1.2.3.004", Some("1.2.3.4"));
    check_address("192.168.099.022", Some("192.168.99.22"));
    check_address("10.180.00.001", Some("10.180.0.1"));
    check_address("0000000010.0.0.1", Some("10.0.0.1"));
    check_address("2001:DB8::A", Some("2001:db8::a"));
    check_address("2001:00db8::0000a", Some("2001:db8::a"));
    check_address("::", Some("::"));
    check_address("::1", Some("::1"));
    check_address("::ffff:10.0.0.1", Some("10.0.0.1"));
    check_address("::ffff:010.0.0.01", Some("10.0.0.1"));
    check_address("64:ff9b::192.0.2.033", Some("64:ff9b::c000:221"));
    check_address("::ffff:a00:1", Some("10.0.0.1"));
    check_address("", None);
    check_address("10", None);
    check_address("10.0.0", None);
    check_address("10.0.0.1.2", None);
    check_address("10.0.0.256", None);
    check_address("10.0.0.+1", None);
    check_address(" 10.0.0.1", None);
    check_address("10.0.0.99999999999", None);
    check_address("10.0.0.0x1", None);
    check_address("fe80::1%eth0", None);
    check_address("1::2::3", None);
    check_address("1.2.3.4:5", None);
    check_address("::1.2.3", None);
    check_address("10.0.0.١", None);
}

#[track_caller]
fn check_cidr(text: &str, expected: Option<&str>) {
    assert_eq!(address::parse_cidr(text).as_deref(), expected, "{text:?}");
}

#[test]
fn source_ranges_are_trimmed_and_shown_canonical() {
    check_cidr("10.0.0.0/8", Some("10.0.0.0/8"));
    check_cidr(" 203.0.113.000/025 ", Some("203.0.113.0/25"));
    check_cidr("10.1.2.3/8", Some("10.0.0.0/8"));
    check_cidr("10.1.2.3/0", Some("0.0.0.0/0"));
    check_cidr("10.1.2.3/32", Some("10.1.2.3/32"));
    check_cidr("2001:db8:ffff::1/32", Some("2001:db8::/32"));
    check_cidr("2001:db8::1/128", Some("2001:db8::1/128"));
    check_cidr("::1/0", Some("::/0"));
    check_cidr("::ffff:1.2.3.4/120", Some("1.2.3.0/24"));
    check_cidr("10.0.0.0/33", None);
    check_cidr("2001:db8::/129", None);
    check_cidr("10.0.0.0", None);
    check_cidr("10.0.0.0/", None);
    check_cidr("10.0.0.0/+8", None);
    check_cidr("10.0.0.0/8/8", None);
}

#[track_caller]
fn check_time(text: &str, expected: Option<i64>) {
    assert_eq!(crate::parse_time(text), expected.map(Timestamp), "{text:?}");
}

#[test]
fn times_are_rfc_3339() {
    check_time("1970-01-01T00:00:00Z", Some(0));
    check_time("2026-01-08T11:11:55Z", Some(1_767_870_715));
    check_time("2024-02-29T23:59:59Z", Some(1_709_251_199));
    check_time("2000-03-01T00:00:00Z", Some(951_868_800));
    check_time("1969-12-31T23:59:59Z", Some(-1));
    check_time("2026-01-08T11:11:55.123456Z", Some(1_767_870_715));
    check_time("2026-01-08T12:41:55+01:30", Some(1_767_870_715));
    check_time("2026-01-08T10:11:55-01:00", Some(1_767_870_715));
    check_time("2026-01-08", None);
    check_time("2026-01-08 11:11:55Z", None);
    check_time("2026-13-08T11:11:55Z", None);
    check_time("2026-00-08T11:11:55Z", None);
    check_time("2026-01-08T24:11:55Z", None);
    check_time("2026-01-08T11:11:55", None);
    check_time("2026-01-08T11:11:55Zulu", None);
    check_time("2026-01-08T11:11:55.Z", None);
    check_time("2026-01-08t11:11:55.1234567890123z", Some(1_767_870_715));
    check_time("2016-12-31T23:59:60Z", Some(1_483_228_800));
    check_time("9999-12-31T23:59:59Z", Some(253_402_300_799));
    check_time("0000-01-01T00:00:00Z", Some(-62_167_219_200));
    for more_than_rfc_3339_has in [
        "2026-01-08T11:11Z",
        "20260108T111155Z",
        "2026-W02-4T11:11:55Z",
        "2026-01-08T11:11:55,5Z",
        "2026-01-08T11:11:55Z[UTC]",
        "2026-01-08T11:11:55+01",
        "2026-01-08T11:11:55+0100",
        "2026-01-08T11:11:55+01:00:00",
        "2026-01-08T11:11:55+24:00",
        "2026-01-08T11:11:55+01:60",
        "2026-01-08T11:11:61Z",
        "+02026-01-08T11:11:55Z",
        "2026-01-08T11:11:55é",
        "2026-01-08T11:11:5éZ",
    ] {
        check_time(more_than_rfc_3339_has, None);
    }
    check_time("", None);
}

#[track_caller]
fn check_micros(text: &str, expected: Option<i64>) {
    assert_eq!(crate::parse_time_micros(text), expected, "{text:?}");
}

#[test]
fn times_are_read_to_the_microsecond() {
    check_micros("2026-01-08T11:11:55Z", Some(1_767_870_715_000_000));
    check_micros("2026-01-08T11:11:55.5Z", Some(1_767_870_715_500_000));
    check_micros("2026-01-08T12:11:55.0000019+01:00", Some(1_767_870_715_000_001));
    check_micros("9999-12-31T23:59:59.999999999Z", Some(253_402_300_799_999_999));
    check_micros("0000-01-01T00:00:00.1Z", Some(-62_167_219_199_900_000));
    check_micros("2026-01-08T11:11:55.Z", None);
    check_micros("now", None);
}

#[test]
fn a_reason_is_truncated() {
    assert_eq!(&*truncate_reason("short"), "short");
    let cut = truncate_reason(&"é".repeat(500));
    assert_eq!(cut.chars().count(), limits::REJECTION_REASON_LENGTH_MAX);
    assert!(cut.ends_with("é…"));
}
