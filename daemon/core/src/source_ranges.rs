//! Which clients the load-balancer addresses of a service are for.
//!
//! Invariant: a family without a range lets every client in, and so does one with a range of all addresses; where
//! ranges are given that cannot be read, no client gets in. A client that is in none of the ranges never gets in, also
//! where there are more of them than one service may have.

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
    /// The network of so many bits that the address is in. `None`: addresses of its family have fewer.
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

    /// This address and no other.
    pub const fn single_host(address: IpAddr) -> Self {
        let bits = match Family::from_address(address) {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        Self { address, bits }
    }

    /// `None`: this is no network such as 10.0.0.0/8.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        Self::new(address.parse().ok()?, bits.parse().ok()?)
    }

    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// How many bits of the address count.
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

/// Ranges as the maps have them: each once, in their order.
pub type SourceRanges = Arc<[SourceRange]>;

/// The ranges of one family that are in no other one. `None`: the family has none.
fn outermost(service: &ServiceFacts, family: Family) -> Option<Vec<SourceRange>> {
    let is_own = |text: &&Arc<str>| text.contains(':') == (family == Family::V6);
    let texts = || service.source_ranges.iter().filter(is_own);
    texts().next()?;
    let all: BTreeSet<_> = texts().filter_map(|text| SourceRange::parse(text)).collect();
    let mut outermost: Vec<SourceRange> = Vec::with_capacity(all.len());
    // A range comes before those that are in it.
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

/// How many of the service's ranges of a family are beyond what it may have; their clients do not get in.
pub(crate) fn count_excess(service: &ServiceFacts, family: Family) -> usize {
    // Each is there as a text.
    if service.source_ranges.len() <= range_limit(service) {
        return 0;
    }
    outermost(service, family).map_or(0, |ranges| ranges.len().saturating_sub(range_limit(service)))
}

/// The clients of one family that may use the service's load-balancer addresses; `None`: all of them.
pub fn allowed_ranges(service: &ServiceFacts, node: &NodeFacts, family: Family) -> Option<SourceRanges> {
    let mut ranges = outermost(service, family)?;
    if ranges.iter().any(|range| range.bits == 0) {
        return None;
    }
    if ranges.len() > range_limit(service) {
        // The widest are those of most clients.
        ranges.sort_by_key(|range| range.bits);
        ranges.truncate(range_limit(service));
    }
    let mut ranges: BTreeSet<_> = ranges.into_iter().collect();
    let is_allowed = |address: &IpAddr| ranges.iter().any(|range| range.contains(*address));
    if node.external_addresses().any(|address| is_allowed(&address)) {
        // What this node sends to an address of the balancer may come back to the node with that address as its source.
        let ingress = service.ingress.iter().filter(|ingress| !ingress.proxied);
        let own = ingress.map(|ingress| ingress.address).filter(|it| Family::from_address(*it) == family);
        ranges.extend(own.map(SourceRange::single_host));
    }
    Some(ranges.into_iter().collect())
}

#[cfg(test)]
mod tests;
