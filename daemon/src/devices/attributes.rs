//! How messages about devices, addresses, routes and rules lie in memory.
//!
//! Invariant: pure; what is cut off ends the reading, and says nothing.

use std::net::IpAddr;

/// The length of an `rtmsg`, and of a `fib_rule_hdr`.
pub(super) const ROUTE: usize = 12;

/// Type and value of each attribute, without the flag of those that hold others.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// 32 bits at that place; 0 where there are none.
pub(super) fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_ne_bytes(*four))
}

/// An address of either family, by its length.
pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(value).ok().map(IpAddr::from))
}
