//! Addresses as files write them.
//!
//! Invariant: an address is written in numbers. A name is never looked up: its meaning may change, and its name server
//! may be behind holdfast.

use std::net::{IpAddr, SocketAddr};

/// The most addresses or ports of a range: as many as a block may have.
const RANGE_MAX: u32 = 1_000;

/// `192.0.2.1:80`, `[2001:db8::1]:80`.
pub(super) fn parse_address_port(text: &str) -> Option<SocketAddr> {
    text.parse().ok().filter(|address: &SocketAddr| address.port() != 0)
}

pub(super) fn parse_address_pair(address: &str, port: &str) -> Option<SocketAddr> {
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some(SocketAddr::new(address.parse().ok()?, port))
}

/// `192.0.2.1-9`, or one address: keepalived's range of the last number, decimal for IPv4 and hexadecimal for IPv6.
pub(super) fn parse_address_range(text: &str) -> Option<Vec<IpAddr>> {
    let Some((first, last)) = text.rsplit_once('-') else { return Some(vec![text.parse().ok()?]) };
    match first.parse().ok()? {
        IpAddr::V4(address) => {
            let [a, b, c, from] = address.octets();
            let to: u8 = last.parse().ok()?;
            (from <= to).then(|| (from..=to).map(|d| IpAddr::from([a, b, c, d])).collect())
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, from] = address.segments();
            let to = u16::from_str_radix(last, 16).ok()?;
            let fits = from <= to && u32::from(to - from) < RANGE_MAX;
            fits.then(|| (from..=to).map(|h| IpAddr::from([a, b, c, d, e, f, g, h])).collect())
        }
    }
}

/// `192.0.2.1:80`, `192.0.2.1:8000-8009`, `2001:db8::1:80`: `HAProxy`'s address, with the port after the last `:`.
pub(super) fn parse_port_range(text: &str) -> Option<Vec<SocketAddr>> {
    let (address, ports) = text.rsplit_once(':')?;
    let address: IpAddr = address.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    let (from, to) = ports.split_once('-').unwrap_or((ports, ports));
    let (from, to): (u16, u16) = (from.parse().ok()?, to.parse().ok()?);
    let fits = from != 0 && from <= to && u32::from(to - from) < RANGE_MAX;
    fits.then(|| (from..=to).map(|port| SocketAddr::new(address, port)).collect())
}
