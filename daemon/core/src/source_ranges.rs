//! The clients that the load balancer addresses of a service admit.
//!
//! Invariant: a family without a range admits every client, and so does a range of all addresses; if all ranges are
//! invalid, no client is admitted. A client outside all ranges is never admitted, even if the ranges exceed the limit
//! of a service.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::facts::{NodeFacts, ServiceFacts};
use crate::keys::Family;
use crate::limits;

/// A network of one family, without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    address: IpAddr,
    bits: u8,
}

impl SourceRange {
    /// The network of an address with a prefix length. `None`: addresses of its family have fewer bits.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(address) => {
                let others = 32_u32.checked_sub(bits.into())?;
                let mask = u32::MAX.checked_shl(others).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let others = 128_u32.checked_sub(bits.into())?;
                let mask = u128::MAX.checked_shl(others).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Some(Self { address, bits })
    }

    pub const fn single_host(address: IpAddr) -> Self {
        let bits = match Family::from_address(address) {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        Self { address, bits }
    }

    /// `None` if the text is no network such as 10.0.0.0/8.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        Self::new(address.parse().ok()?, bits.parse().ok()?)
    }

    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The prefix length.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    pub const fn family(self) -> Family {
        Family::from_address(self.address)
    }

    pub fn contains(self, address: IpAddr) -> bool {
        self.family() == Family::from_address(address) && Self::new(address, self.bits) == Some(self)
    }
}

impl fmt::Display for SourceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Sorted unique ranges, as in the maps.
pub type SourceRanges = Arc<[SourceRange]>;

/// The ranges of one family that no other range contains. `None`: the family has none.
fn outermost(service: &ServiceFacts, family: Family) -> Option<Vec<SourceRange>> {
    let is_own = |text: &&Arc<str>| text.contains(':') == (family == Family::V6);
    let texts = || service.source_ranges.iter().filter(is_own);
    texts().next()?;
    let all: BTreeSet<_> = texts().filter_map(|text| SourceRange::parse(text)).collect();
    let mut outermost: Vec<SourceRange> = Vec::with_capacity(all.len());
    // A range sorts before the ranges that it contains.
    for range in all {
        if !outermost.last().is_some_and(|last| last.contains(range.address)) {
            outermost.push(range);
        }
    }
    Some(outermost)
}

/// How many ranges of a family one service may have.
fn range_limit(service: &ServiceFacts) -> usize {
    limits::SOURCES_PER_SERVICE_MAX / service.ports.len().max(1)
}

/// How many of the service's ranges of a family exceed the limit; their clients are denied.
pub(crate) fn count_excess(service: &ServiceFacts, family: Family) -> usize {
    // Every range has a text.
    if service.source_ranges.len() <= range_limit(service) {
        return 0;
    }
    outermost(service, family).map_or(0, |ranges| ranges.len().saturating_sub(range_limit(service)))
}

/// The clients of one family that the service's load balancer addresses admit; `None`: all.
pub fn allowed_ranges(service: &ServiceFacts, node: &NodeFacts, family: Family) -> Option<SourceRanges> {
    let mut ranges = outermost(service, family)?;
    if ranges.iter().any(|range| range.bits == 0) {
        return None;
    }
    if ranges.len() > range_limit(service) {
        // The widest ranges have the most clients.
        ranges.sort_by_key(|range| range.bits);
        ranges.truncate(range_limit(service));
    }
    let mut ranges: BTreeSet<_> = ranges.into_iter().collect();
    let is_allowed = |address: &IpAddr| ranges.iter().any(|range| range.contains(*address));
    if node.external_addresses().any(|address| is_allowed(&address)) {
        // Packets that this node sends to a balancer address may return to the node with that address as their source.
        let ingress = service.ingress.iter().filter(|ingress| !ingress.proxied);
        let own = ingress.map(|ingress| ingress.address).filter(|it| Family::from_address(*it) == family);
        ranges.extend(own.map(SourceRange::single_host));
    }
    Some(ranges.into_iter().collect())
}

#[cfg(test)]
mod tests;
