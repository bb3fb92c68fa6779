//! Whether the kernel gives sockets the ports that clients are to have.
//!
//! Invariant: what cannot be read is no reason for a warning.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::config::{SnatPorts, overlap};

/// The ports of which sockets of this network namespace may get one without asking for it.
pub(crate) fn shared_with_sockets(ports: &SnatPorts) -> Option<RangeInclusive<u16>> {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(name)).ok();
    let reserved = read("ip_local_reserved_ports").unwrap_or_default();
    shared(ports.ranges(), &read("ip_local_port_range")?, &reserved)
}

/// `given` is two numbers with white space between them, `reserved` a list of ranges that are left out.
pub(super) fn shared(
    ranges: &[RangeInclusive<u16>],
    given: &str,
    reserved: &str,
) -> Option<RangeInclusive<u16>> {
    let mut numbers = given.split_whitespace().map(str::parse::<u16>);
    let given = numbers.next()?.ok()?..=numbers.next()?.ok()?;
    let reserved: Vec<_> = reserved.trim().split(',').filter_map(range).collect();
    let is_free = |port: &u16| !reserved.iter().any(|range| range.contains(port));
    let shared = ranges.iter().filter(|range| overlap(range, &given)).cloned().flatten();
    let shared = shared.filter(|port| given.contains(port)).filter(is_free);
    let (first, last) = (shared.clone().min()?, shared.max()?);
    Some(first..=last)
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
