//! Which addresses an object may claim as frontends.
//!
//! Invariant: an address that means this host, this link or a group of hosts is never programmed, whatever an object
//! lists. Otherwise the author of a Service could take over a node's loopback or a cloud's metadata server. Only the
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
        // A NodePort stands for all addresses of the node.
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
