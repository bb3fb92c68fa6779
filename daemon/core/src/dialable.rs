//! Which addresses an object may have dialled as frontends.
//!
//! Invariant: an address that means this host, this link or everybody is nobody's frontend, whatever an object says:
//! whoever may write a Service would otherwise take a node's own loopback or a cloud's metadata server. The
//! administrator's `[[service]]` blocks may have loopback and link-local ones. Deliberately absent: backends, which may
//! be anything that a pod or a host can have.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::facts::{ServiceFacts, ServiceType, Settings};
use crate::keys::Source;
use crate::op::FrontendType;

/// Neighbouring addresses of one family, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The lowest.
    pub first: IpAddr,
    /// The highest.
    pub last: IpAddr,
}

impl AddressRange {
    fn has(&self, address: IpAddr) -> bool {
        // IPv4 sorts before IPv6, so an address between two of one family is of that family.
        self.first <= address && address <= self.last
    }
}

/// Which addresses `spec.externalIPs` of a Service from an apiserver may claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExternalIps {
    /// Any, as kube-proxy has it.
    #[default]
    All,
    /// No address at all.
    None,
    /// Those in these ranges.
    Within(Vec<AddressRange>),
}

impl ExternalIps {
    fn allows(&self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Within(ranges) => ranges.iter().any(|range| range.has(address)),
        }
    }
}

/// Whether no object may have this address as a frontend.
pub fn is_reserved(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || is_nobodys_v4(v4),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || is_nobodys_v6(v6),
    }
}

/// The network "this host", everybody on a link, groups: no one host has such an address.
const fn is_nobodys_v4(address: Ipv4Addr) -> bool {
    address.octets()[0] == 0 || address.is_broadcast() || address.is_multicast()
}

const fn is_nobodys_v6(address: Ipv6Addr) -> bool {
    address.is_unspecified() || address.is_multicast()
}

/// Whether this address of a service is shown and never programmed.
pub(crate) fn is_barred(
    service: &ServiceFacts,
    kind: FrontendType,
    address: IpAddr,
    settings: &Settings,
) -> bool {
    let is_tenants = service.key.source == Source::Kubernetes;
    match kind {
        // Its address stands for all that the node has.
        FrontendType::NodePort => false,
        _ if service.kind == ServiceType::Static => match address.to_canonical() {
            IpAddr::V4(v4) => is_nobodys_v4(v4),
            IpAddr::V6(v6) => is_nobodys_v6(v6),
        },
        FrontendType::ExternalIp if is_tenants && !settings.external_ips.allows(address) => true,
        _ => is_reserved(address),
    }
}

#[cfg(test)]
mod tests;
