//! By which of its addresses this node sends what leaves by a device, as `ip route get` says.
//!
//! Invariant: an address of one host alone (/32, /128), which may be gone to another node in a moment, is chosen only
//! where there is no other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Address, Listed};

/// The addresses by which clients are known to others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
}

impl Seen {
    pub(super) fn or(self, other: Self) -> Self {
        Self { v4: self.v4.or(other.v4), v6: self.v6.or(other.v6) }
    }

    fn with(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.or(Self { v4: Some(address), v6: None }),
            IpAddr::V6(address) => self.or(Self { v4: None, v6: Some(address) }),
        }
    }
}

/// Chosen of a device's own addresses, and of those that its routes have packets sent from, whatever device has these.
/// An address that a route names goes first, then one in a network with a gateway, then the kernel's order.
pub(super) fn seen(listed: &Listed, index: u32) -> Seen {
    let ways = || listed.ways.iter().filter(|way| way.index == index);
    let is_named = |it: &Address| ways().any(|way| way.source == Some(it.address));
    let is_near = |it: &Address| ways().filter_map(|way| way.gateway).any(|gateway| holds(it, gateway));
    let is_of_all = |it: &Address| ways().any(|way| way.is_default && way.source == Some(it.address));
    let candidates = listed.addresses.iter().filter(|it| it.index == index || is_named(it));
    let mut ranked: Vec<&Address> = candidates.collect();
    ranked.sort_by_key(|it| (is_host(it), !is_of_all(it), !is_named(it), !is_near(it)));
    ranked.into_iter().fold(Seen::default(), |seen, it| seen.with(it.address))
}

fn is_host(it: &Address) -> bool {
    u32::from(it.bits) >= if it.address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS }
}

/// Whether the other one is in the network of this address.
fn holds(it: &Address, other: IpAddr) -> bool {
    let differs = match (it.address, other) {
        (IpAddr::V4(own), IpAddr::V4(other)) => u128::from(own.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(own), IpAddr::V6(other)) => own.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    differs.leading_zeros() >= u32::from(it.bits)
}
