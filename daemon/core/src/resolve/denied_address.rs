//! Which addresses an object may have dialled as frontends.
//!
//! Invariant: an address that means this host, this link or a group of hosts is no frontend, whatever an object says:
//! the author of a Service would otherwise take a node's own loopback or a cloud's metadata server. Only the
//! administrator's `[[service]]` blocks may have loopback and link-local addresses.

use core::net::IpAddr;

use crate::address_policy::{is_reserved, is_unassignable};
use crate::facts::{ServiceFacts, ServiceType, Settings};
use crate::op::FrontendType;

/// Whether this address of a service is shown and never programmed.
pub(crate) fn is_denied(
    service: &ServiceFacts,
    kind: FrontendType,
    address: IpAddr,
    settings: &Settings,
) -> bool {
    let is_tenants = service.key.source.is_tenant_writable();
    match kind {
        // The address of a NodePort stands for all addresses that the node has.
        FrontendType::NodePort => false,
        _ if service.kind == ServiceType::Static => is_unassignable(address),
        FrontendType::ExternalIp | FrontendType::ClusterSetIp
            if is_tenants && !settings.external_ips.allows(address) =>
        {
            true
        }
        _ => is_reserved(address),
    }
}

#[cfg(test)]
mod tests;
