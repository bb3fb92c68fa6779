//! Parses addresses and networks as leniently as kube-proxy does.
//!
//! Invariant: results are canonical: decimal IPv4 without leading zeros, IPv4-mapped IPv6 as IPv4, networks without
//! host bits. Zones (`fe80::1%eth0`) are refused, as in Kubernetes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Parses an address; IPv4 parts and IPv6 groups may have leading zeros.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    let address = match text.find(['.', ':']).and_then(|index| text.as_bytes().get(index)) {
        Some(b'.') => IpAddr::V4(parse_v4(text)?),
        Some(b':') => IpAddr::V6(parse_v6(text)?),
        _ => return None,
    };
    Some(address.to_canonical())
}

/// Parses a network and returns its canonical spelling.
pub(super) fn parse_cidr(text: &str) -> Option<Arc<str>> {
    let (address, length) = text.trim().split_once('/')?;
    let length = parse_decimal(length)?;
    let canonical = match (parse_v4(address), parse_v6(address)) {
        (Some(v4), _) => format_cidr_v4(v4, length)?,
        (None, Some(v6)) => format_cidr_v6(v6, length)?,
        (None, None) => return None,
    };
    Some(canonical.into())
}

fn format_cidr_v4(address: Ipv4Addr, length: u32) -> Option<String> {
    let mask = u32::MAX.checked_shl(32_u32.checked_sub(length)?).unwrap_or(0);
    Some(format!("{}/{length}", Ipv4Addr::from(u32::from(address) & mask)))
}

fn format_cidr_v6(address: Ipv6Addr, length: u32) -> Option<String> {
    let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
    let network = Ipv6Addr::from(u128::from(address) & mask);
    match (network.to_ipv4_mapped(), length.checked_sub(96)) {
        (Some(v4), Some(length)) => format_cidr_v4(v4, length),
        _ => Some(format!("{network}/{length}")),
    }
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut parts =
        text.split('.').map(|part| parse_decimal(part).and_then(|number| u8::try_from(number).ok()));
    let address = Ipv4Addr::new(parts.next()??, parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(address)
}

fn parse_decimal(digits: &str) -> Option<u32> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { digits.parse().ok() } else { None }
}

fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    let mut groups: Vec<String> =
        text.split(':').map(|group| group_without_zeros(group).to_owned()).collect();
    if text.contains('.') {
        let [a, b, c, d] = parse_v4(text.rsplit(':').next()?)?.octets();
        *groups.last_mut()? = format!("{a:x}{b:02x}:{c:x}{d:02x}");
    }
    groups.join(":").parse().ok()
}

fn group_without_zeros(group: &str) -> &str {
    let significant = group.trim_start_matches('0');
    if significant.is_empty() && !group.is_empty() { "0" } else { significant }
}
