//! Addresses that no object may have as a frontend, and those that the administrator allows.
//!
//! Invariant: the address alone decides. Backends have their own rules: a pod or a host can have a loopback or
//! link-local address.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of addresses of one family, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    pub first: IpAddr,
    pub last: IpAddr,
}

impl AddressRange {
    fn contains(&self, address: IpAddr) -> bool {
        // IPv4 sorts before IPv6, so every address between two of one family belongs to that family.
        self.first <= address && address <= self.last
    }
}

/// Which addresses `spec.externalIPs` of a Service from an apiserver, and a ServiceImport, may claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExternalIps {
    /// Any address, as in kube-proxy.
    #[default]
    All,
    None,
    Within(Vec<AddressRange>),
}

impl ExternalIps {
    pub fn allows(&self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Within(ranges) => ranges.iter().any(|range| range.contains(address)),
        }
    }

    /// Whether the administrator listed exactly this address, not a wider range.
    pub(crate) fn lists_exactly(&self, address: IpAddr) -> bool {
        let is_it = |range: &AddressRange| range.first == address && range.last == address;
        matches!(self, Self::Within(ranges) if ranges.iter().any(is_it))
    }
}

/// Whether no object may have this address as a frontend.
pub fn is_reserved(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || is_unassignable_v4(v4),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || is_unassignable_v6(v6),
    }
}

/// Whether no single host can have this address.
pub(crate) fn is_unassignable(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_unassignable_v4(v4),
        IpAddr::V6(v6) => is_unassignable_v6(v6),
    }
}

/// The network "this host", the broadcast address, multicast groups.
const fn is_unassignable_v4(address: Ipv4Addr) -> bool {
    address.octets()[0] == 0 || address.is_broadcast() || address.is_multicast()
}

const fn is_unassignable_v6(address: Ipv6Addr) -> bool {
    address.is_unspecified() || address.is_multicast()
}
