//! Selects the SNAT ports of clients on their way to other nodes, and checks whether sockets may get the same ports.
//!
//! Invariant: a file that cannot be read causes no warning, and removes no default SNAT port.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use holdfast_config::{NODE_PORTS, SNAT_RANGES_MAX, SnatPorts, ranges_overlap};

/// The ports that any process may send from. Lower ports are left alone: only root may send from them, and some
/// servers demand such a port.
const UNPRIVILEGED: RangeInclusive<u16> = 1024..=u16::MAX;

/// The kernel's default ephemeral ports.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Ports that stay free for clients on their way to backends of this node: those get ports from
/// `TRANSLATED_PORTS_FIRST` in `abi.h` up to 29,999, except the ports of [`snat_ports`].
const FORWARDED: RangeInclusive<u16> = 24_000..=29_999;

/// The range used if no port is free: above the kernel's default ephemeral ports, and above node ports.
const FALLBACK: RangeInclusive<u16> = 61_000..=65_535;

/// How much of a socket list is read: listeners come first, and no node has more than 100,000 of them.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// The SNAT ports of this setting, at most as many ranges as the programs support.
pub(crate) fn snat_ports(ports: &SnatPorts) -> Vec<RangeInclusive<u16>> {
    match ports {
        SnatPorts::Ranges(ranges) => ranges.clone(),
        SnatPorts::Auto => {
            let given =
                read_sysctl("ip_local_port_range").and_then(|it| parse_pair(&it)).unwrap_or(EPHEMERAL);
            let mut taken = parse_reserved(&read_sysctl("ip_local_reserved_ports").unwrap_or_default());
            taken.extend(bound_ports(Path::new("/proc/net")).into_iter().map(|port| port..=port));
            free_ranges(&given, &taken)
        }
    }
}

pub(super) fn free_ranges(
    given: &RangeInclusive<u16>,
    taken: &[RangeInclusive<u16>],
) -> Vec<RangeInclusive<u16>> {
    let mut is_free: Vec<bool> = (0..=u16::MAX).map(|port| UNPRIVILEGED.contains(&port)).collect();
    for range in [given, &NODE_PORTS, &FORWARDED].into_iter().chain(taken) {
        let range = usize::from(*range.start())..=usize::from(*range.end());
        is_free.get_mut(range).unwrap_or_default().fill(false);
    }
    let mut found: Vec<RangeInclusive<u16>> = Vec::new();
    for (port, _) in (0..=u16::MAX).zip(is_free).filter(|(_, is_free)| *is_free) {
        match found.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(port) => *last = *last.start()..=port,
            _ => found.push(port..=port),
        }
    }
    found.sort_by_key(|range| std::cmp::Reverse(range.len()));
    found.truncate(SNAT_RANGES_MAX);
    found.sort_by_key(|range| *range.start());
    if found.is_empty() { vec![FALLBACK] } else { found }
}

/// The ports at which sockets of this network namespace wait for peers.
fn bound_ports(folder: &Path) -> Vec<u16> {
    let read = |name: &str| {
        let mut text = String::new();
        let read =
            File::open(folder.join(name)).and_then(|it| it.take(LIST_BYTES_MAX).read_to_string(&mut text));
        read.map_or_else(|_| Vec::new(), |_| parse_waiting_ports(&text))
    };
    ["tcp", "tcp6", "udp", "udp6"].into_iter().flat_map(read).collect()
}

/// The ports of the sockets in a list that listen or have no peer.
pub(super) fn parse_waiting_ports(list: &str) -> Vec<u16> {
    let port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (_, port) = fields.next()?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        matches!(state, "0A" | "07").then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    list.lines().skip(1).filter_map(port).collect()
}

fn read_sysctl(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(name)).ok()
}

/// The span of the ports in `ranges` that the kernel may give to a socket of this network namespace as ephemeral
/// ports; `None` if it gives none of them.
pub(crate) fn ephemeral_overlap(ranges: &[RangeInclusive<u16>]) -> Option<RangeInclusive<u16>> {
    let reserved = read_sysctl("ip_local_reserved_ports").unwrap_or_default();
    find_overlap(ranges, &read_sysctl("ip_local_port_range")?, &reserved)
}

/// As [`ephemeral_overlap`]. `given` is two numbers separated by white space; `reserved` lists ranges that the kernel
/// leaves out.
pub(super) fn find_overlap(
    ranges: &[RangeInclusive<u16>],
    given: &str,
    reserved: &str,
) -> Option<RangeInclusive<u16>> {
    let given = parse_pair(given)?;
    let reserved = self::parse_reserved(reserved);
    let is_free = |port: &u16| !reserved.iter().any(|range| range.contains(port));
    let shared = ranges.iter().filter(|range| ranges_overlap(range, &given)).cloned().flatten();
    let shared = shared.filter(|port| given.contains(port)).filter(is_free);
    let first = shared.clone().min()?;
    let last = shared.max()?;
    Some(first..=last)
}

/// Parses two numbers separated by white space.
fn parse_pair(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    Some(numbers.next()?.ok()?..=numbers.next()?.ok()?)
}

fn parse_reserved(text: &str) -> Vec<RangeInclusive<u16>> {
    text.trim().split(',').filter_map(parse_range).collect()
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
