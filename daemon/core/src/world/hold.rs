//! Connects the world to `core::hold`: which services a hold makes dirty, and why.
//!
//! Invariant: only a service's own decision starts or ends its hold. Another service can list a held address, which
//! only has it probed, or be part of the same mass loss; each of these is a cause of its own.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use super::services::Services;
use crate::address_policy::is_reserved;
use crate::change::Cause;
use crate::claims::{Frontend, Frontends};
use crate::drains::Drains;
use crate::facts::{Endpoint, NodeFacts, Settings, SliceFacts};
use crate::hold::{
    HiddenAddresses, Hold, HoldContext, Ledger, ListPresence, MassLoss, PodsAt, Policy, ProbeResult,
};
use crate::keys::{FrontendKey, ServiceKey, SliceKey, Source, Transport};
use crate::op::ServiceId;
use crate::service::Service;
use crate::tables::{KnownService, Tables};
use crate::time::{ClockReading, Uptime};

/// Whether a pod may have this address, as far as a node can tell: not reserved, not the node's own and not an
/// apiserver's. Other nodes' addresses look like pods'.
fn is_pod_address(address: IpAddr, node: &NodeFacts, settings: &Settings) -> bool {
    let address = address.to_canonical();
    let is_of_node = node.addresses.contains(&address) || node.node_port_addresses.contains(&address);
    !is_reserved(address) && !is_of_node && !settings.apiservers().any(|it| it.ip() == address)
}

impl Ledger {
    /// The facts that decide about this service's empty lists.
    pub(super) fn hold_context<'a>(
        &self,
        known: &KnownService,
        service: &Service,
        (settings, drains): (&'a Settings, &'a Drains),
        now: ClockReading,
    ) -> HoldContext<'a> {
        let slices = service.view.as_ref().map(|view| Arc::clone(&view.slices));
        HoldContext {
            policy: &settings.hold,
            own: known.facts.as_deref().and_then(crate::tables::on_empty_setting),
            is_resync: self.is_resync(known.key.source, now.uptime()),
            liveness: self.source_liveness(known.key.source, now.uptime()),
            now,
            hidden: HiddenAddresses::from_slices(&known.slices),
            slices: slices.unwrap_or_default(),
            key: known.key.clone(),
            settings,
            drains,
        }
    }

    pub(super) fn expire(&mut self, now: Uptime, services: &mut Services) {
        self.begin_decision(now);
        while let Some(id) = self.take_due(now) {
            services.mark_dirty(id, Cause::HoldDue, true);
        }
    }

    /// Has held addresses probed out of turn if this slice lists them for another target. The slice proves nothing: any
    /// tenant, or a foreign controller, can write one.
    pub(super) fn record_claims(&mut self, slice: &SliceFacts, services: &mut Services) {
        if self.is_empty() {
            return;
        }
        let Some(claimant) = crate::tables::owning_service(slice) else { return };
        // A slice may repeat one port number without limit.
        let ports: BTreeSet<NonZeroU16> = slice.ports.iter().map(|port| port.port).collect();
        let is_known = |it: &Endpoint<'_>| it.target.is_some_and(|target| !target.uid.is_empty());
        for endpoint in slice.endpoints.iter().filter(is_known) {
            if !self.record_claim(endpoint, &ports, &claimant, services) {
                return;
            }
        }
    }

    /// `false`: the slice's namespace has claimed enough.
    fn record_claim(
        &mut self,
        endpoint: Endpoint<'_>,
        ports: &BTreeSet<NonZeroU16>,
        claimant: &ServiceKey,
        services: &mut Services,
    ) -> bool {
        let namespace = claimant.name.shared_namespace();
        let (Some(held), Some(by)) = (self.look_up_holders(endpoint.address, namespace), endpoint.target)
        else {
            return true;
        };
        crate::work::count_work(held.len());
        let is_listed =
            |address: &SocketAddr| NonZeroU16::new(address.port()).is_some_and(|port| ports.contains(&port));
        for (address, id) in held.iter().filter(|(address, _)| is_listed(address)) {
            let Some(service) = services.get_mut(*id) else {
                services.count_impossible();
                continue;
            };
            if !service.holds().any(|hold| hold.is_new_claim(*address, by)) {
                continue;
            }
            if !self.accept_claim(namespace) {
                return false;
            }
            let claimed = service.holds_mut().filter(|hold| hold.is_new_claim(*address, by));
            claimed.for_each(|hold| Arc::make_mut(hold).mark_claimed(*address));
            services.mark_dirty(*id, Cause::AddressClaimed(*address, claimant.clone()), false);
        }
        !held.is_empty()
    }

    /// Applies which pods run at a disputed address. Services of other sources are skipped: their backends may be in
    /// another network.
    pub(super) fn record_pods(&self, pods: &PodsAt, services: &mut Services, tables: &Tables) {
        for id in self.holders(pods.address) {
            let is_asked = |id| tables.get(id).is_some_and(|it| it.key.source == Source::Kubernetes);
            let Some(service) = services.get_mut(id).filter(|_| is_asked(id)) else { continue };
            let is_disputed = |hold: &Hold| hold.disputed_addresses().any(|address| address == pods.address);
            if !service.holds().any(is_disputed) {
                continue;
            }
            // Every list is visited, so that all ports release the address together.
            let left: Vec<bool> = service.holds_mut().map(|hold| Hold::drop_reused(hold, pods)).collect();
            if left.contains(&true) {
                services.mark_dirty(id, Cause::AddressReused(pods.address), true);
            }
        }
    }

    /// Updates the ledger with a decision's effect on a service's holds.
    pub(super) fn record_decision(
        &mut self,
        (id, known): (ServiceId, &KnownService),
        service: &Service,
        before: ListPresence,
        (policy, now): (&Policy, Uptime),
    ) {
        if let Some(bound) = service.holds().filter_map(|hold| hold.outlived_bound(policy, now)).max() {
            self.query_source(known.key.source, bound, now);
        }
        let id = (id, known.key.name.shared_namespace());
        self.account_decision(id, service.holds(), (before, service.list_presence()), (policy, now));
    }

    /// Extends the holds of all services that lost a list within the window if they amount to a mass loss. It runs once
    /// per batch, so that the order within a batch does not matter.
    pub(super) fn hold_mass_losses(&mut self, policy: &Policy, now: Uptime, services: &mut Services) {
        for MassLoss { lost, populated, services: losers } in self.judge_mass_losses(policy, now) {
            for id in losers {
                let Some(service) = services.get_mut(id) else {
                    services.count_impossible();
                    continue;
                };
                if service.holds_mut().map(Hold::join_mass_loss).filter(|joined| *joined).count() > 0 {
                    self.index_holds(id, service.holds(), policy);
                    services.mark_dirty(id, Cause::MassLoss { lost, populated }, false);
                }
            }
        }
    }
}

pub(super) fn record_probe(probed: Box<ProbeResult>, services: &mut Services, tables: &Tables) {
    let Some(id) = tables.find_id(&probed.service) else { return };
    let hold = services.get_mut(id).and_then(|service| service.hold_mut(&probed.port));
    if hold.is_some_and(|hold| Arc::make_mut(hold).record_probe(probed.backend, probed.answer)) {
        services.mark_dirty(id, Cause::Probed(probed), true);
    }
}

/// Records a slice's state that no decision has used before it is replaced or deleted: a terminating endpoint is
/// delivered only once, and a later state in the same batch must not hide it. An identical redelivery loses nothing.
pub(super) fn record_undecided_slice(
    key: &SliceKey,
    next: Option<&Arc<SliceFacts>>,
    services: &mut Services,
    tables: &Tables,
) {
    let Some((delivered, id)) = tables.slice(key) else { return };
    let Some(service) = services.get_mut(id).filter(|service| service.is_stale()) else { return };
    let decided = service.view.as_deref().map_or(&[][..], |view| &view.slices);
    let at = decided.binary_search_by(|it| it.key.cmp(key));
    // An equal slice that was redelivered counts as new, because another version may have come between.
    let is_decided = at.ok().and_then(|at| decided.get(at)).is_some_and(|it| Arc::ptr_eq(it, delivered));
    if !is_decided && !delivered.headless && next != Some(delivered) {
        service.observe_slice(delivered);
    }
}

pub(super) fn set_probeable_backends(
    known: &KnownService,
    service: &mut Service,
    frontends: &Frontends,
    (settings, node): (&Settings, &NodeFacts),
) {
    let is_tenants = known.key.source.is_tenant_writable();
    let is_given = |backend: SocketAddr| frontends.get(&FrontendKey::from_socket(backend, Transport::Tcp)?);
    let is_open = |backend: SocketAddr| {
        !is_tenants
            || is_pod_address(backend.ip(), node, settings)
                && !is_given(backend).is_some_and(Frontend::is_allocated)
    };
    service.holds_mut().for_each(|hold| Hold::set_probeable(hold, is_open));
}
