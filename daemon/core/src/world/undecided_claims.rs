//! The claims of undecided services.
//!
//! Invariant: an unclaimed frontend is not removed while a service that asks for its address is undecided: the frontend
//! may change owners and is then replaced. The last such decision wakes the service that waits for it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::facts::ServiceFacts;
use crate::index::{Index, Seed};
use crate::keys::{Family, FrontendKey};
use crate::op::ServiceId;

/// An address, or a NodePort's number on all addresses of a family.
type ClaimAddress = (IpAddr, u16);

/// The claimed addresses, and the services that wait for their decisions.
#[derive(Debug)]
pub(super) struct UndecidedClaims {
    claims: Index<ClaimAddress, u32>,
    waiting: BTreeMap<ClaimAddress, BTreeSet<ServiceId>>,
}

impl UndecidedClaims {
    pub(super) fn new(seed: Seed) -> Self {
        Self { claims: Index::new(seed), waiting: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, facts: &ServiceFacts) {
        claimed_addresses(facts).for_each(|address| *self.claims.get_or_insert_with(address, || 0) += 1);
    }

    /// Removes the claims of a service that is no longer undecided, and returns the services that waited for them.
    pub(super) fn remove(&mut self, facts: &ServiceFacts) -> Vec<ServiceId> {
        let mut woken = Vec::new();
        for address in claimed_addresses(facts) {
            let mut left = 0;
            self.claims.update(
                address,
                || 0,
                |count| {
                    left = count.saturating_sub(1);
                    *count = left;
                    left > 0
                },
            );
            if left == 0 && !self.waiting.is_empty() {
                woken.extend(self.waiting.remove(&address).unwrap_or_default());
            }
        }
        woken
    }

    /// Whether a service may be about to claim this frontend.
    pub(super) fn has_claim_for(&self, key: &FrontendKey) -> bool {
        !self.claims.is_empty() && self.claims.get(&claim_address(key)).is_some()
    }

    /// Lets a service wait until the next owner of its frontend is decided.
    pub(super) fn add_waiter(&mut self, key: &FrontendKey, id: ServiceId) {
        self.waiting.entry(claim_address(key)).or_default().insert(id);
    }
}

fn claim_address(key: &FrontendKey) -> ClaimAddress {
    (key.address, if key.address.is_unspecified() { key.port.get() } else { 0 })
}

fn claimed_addresses(facts: &ServiceFacts) -> impl Iterator<Item = ClaimAddress> {
    let addresses = facts.cluster_ips.iter().chain(&facts.external_ips).copied();
    let ingress = facts.ingress.iter().map(|ingress| ingress.address);
    let fixed = facts.static_frontends.iter().map(core::net::SocketAddr::ip);
    let numbers = facts.ports.iter().filter_map(|port| port.node_port);
    let node =
        numbers.flat_map(|number| Family::ALL.map(|family| (family.unspecified_address(), number.get())));
    addresses.chain(ingress).chain(fixed).map(|address| (address, 0)).chain(node)
}
