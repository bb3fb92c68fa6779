//! What the world asks `core::hold` and tells it: which services to decide for again because of a hold, and why.
//!
//! Invariant: a hold is entered and left by a decision for its own service alone; other services reach it only by
//! listing a held address, which has it probed and no more, or by being part of the same mass loss, and each of these
//! is a cause of its own.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use super::services::Services;
use crate::change::Cause;
use crate::claims::{Frontend, Frontends};
use crate::dialable::is_reserved;
use crate::drains::Drains;
use crate::facts::{Endpoint, NodeFacts, Settings, SliceFacts};
use crate::hold::{Case, Hidden, Hold, Ledger, Lists, MassLoss, PodsAt, Policy, Probed};
use crate::keys::{FrontendKey, ServiceKey, SliceKey, Source, Transport};
use crate::op::ServiceId;
use crate::service::Service;
use crate::tables::{KnownService, Tables};
use crate::time::{Now, Uptime};

/// Whether a pod can have this address, as far as a node knows: no address that means a host, a link or a group, none
/// of the node's own and none at which an apiserver is. Other nodes' addresses cannot be told from those of pods.
fn can_be_a_pods(address: IpAddr, node: &NodeFacts, settings: &Settings) -> bool {
    let address = address.to_canonical();
    let is_of_node = node.addresses.contains(&address) || node.node_port_addresses.contains(&address);
    !is_reserved(address) && !is_of_node && !settings.apiservers().any(|it| it.ip() == address)
}

impl Ledger {
    /// What the empty lists of this service are judged by.
    pub(super) fn case<'a>(
        &self,
        known: &KnownService,
        service: &Service,
        (settings, drains): (&'a Settings, &'a Drains),
        now: Now,
    ) -> Case<'a> {
        let slices = service.view.as_ref().map(|view| Arc::clone(&view.slices));
        Case {
            policy: &settings.hold,
            own: known.facts.as_deref().and_then(crate::tables::on_empty),
            is_resync: self.is_resync(known.key.source, now.uptime()),
            hearing: self.hearing(known.key.source, now.uptime()),
            now,
            hidden: Hidden::of(&known.slices),
            slices: slices.unwrap_or_default(),
            key: known.key.clone(),
            settings,
            drains,
        }
    }

    /// Marks the services with a hold that has reached its bound.
    pub(super) fn expire(&mut self, now: Uptime, services: &mut Services) {
        self.begin(now);
        while let Some(id) = self.take_due(now) {
            services.mark(id, Cause::HoldDue, true);
        }
    }

    /// Has held addresses probed out of turn that this slice lists for another target. That proves nothing: any tenant
    /// can write such a slice, and so can a controller that is not Kubernetes' own.
    pub(super) fn hear_claims(&mut self, slice: &SliceFacts, services: &mut Services) {
        if self.is_empty() {
            return;
        }
        let Some(claimant) = crate::tables::service_of(slice) else { return };
        // As many ports as the slice likes may have one number.
        let ports: BTreeSet<NonZeroU16> = slice.ports.iter().map(|port| port.port).collect();
        let is_known = |it: &Endpoint<'_>| it.target.is_some_and(|target| !target.uid.is_empty());
        for endpoint in slice.endpoints.iter().filter(is_known) {
            if !self.hear_claim(endpoint, &ports, &claimant, services) {
                return;
            }
        }
    }

    /// `false`: the namespace of the slice has claimed enough.
    fn hear_claim(
        &mut self,
        endpoint: Endpoint<'_>,
        ports: &BTreeSet<NonZeroU16>,
        claimant: &ServiceKey,
        services: &mut Services,
    ) -> bool {
        let namespace = claimant.name.shared_namespace();
        let (Some(held), Some(by)) = (self.look(endpoint.address, namespace), endpoint.target) else {
            return true;
        };
        crate::work::done(held.len());
        let is_listed =
            |address: &SocketAddr| NonZeroU16::new(address.port()).is_some_and(|port| ports.contains(&port));
        for (address, id) in held.iter().filter(|(address, _)| is_listed(address)) {
            let Some(service) = services.get_mut(*id) else {
                services.count_impossible();
                continue;
            };
            if !service.holds().any(|hold| hold.is_news(*address, by)) {
                continue;
            }
            if !self.hears(namespace) {
                return false;
            }
            let heard = service.holds_mut().filter(|hold| hold.is_news(*address, by));
            heard.for_each(|hold| Arc::make_mut(hold).hear(*address));
            services.mark(*id, Cause::AddressClaimed(*address, claimant.clone()), false);
        }
        !held.is_empty()
    }

    /// Takes notice of which pods run at an address that another object lists too. Services of other sources may have
    /// their backends in another network.
    pub(super) fn hear_pods(&self, pods: &PodsAt, services: &mut Services, tables: &Tables) {
        for id in self.holders(pods.address) {
            let is_asked = |id| tables.get(id).is_some_and(|it| it.key.source == Source::Kubernetes);
            let Some(service) = services.get_mut(id).filter(|_| is_asked(id)) else { continue };
            let is_disputed = |hold: &Hold| hold.disputed().any(|address| address == pods.address);
            if !service.holds().any(is_disputed) {
                continue;
            }
            // Each of its lists is looked at, so that all ports let go of the address together.
            let left: Vec<bool> = service.holds_mut().map(|hold| Hold::leave_to(hold, pods)).collect();
            if left.contains(&true) {
                services.mark(id, Cause::AddressReused(pods.address), true);
            }
        }
    }

    /// Keeps account of what a decision made of a service's holds.
    pub(super) fn note(
        &mut self,
        (id, known): (ServiceId, &KnownService),
        service: &Service,
        before: Lists,
        (policy, now): (&Policy, Uptime),
    ) {
        if let Some(bound) = service.holds().filter_map(|hold| hold.bound_outlived(policy, now)).max() {
            self.ask(known.key.source, bound, now);
        }
        let id = (id, known.key.name.shared_namespace());
        self.account(id, service.holds(), (before, service.lists()), (policy, now));
    }

    /// Holds the lists of all services that lost theirs within the window for as long as a mass loss is held, if there
    /// are so many. That is judged once for all that a batch decided, so that the order within a batch does not matter.
    pub(super) fn hold_masses(&mut self, policy: &Policy, now: Uptime, services: &mut Services) {
        for MassLoss { lost, populated, services: losers } in self.judge_mass(policy, now) {
            for id in losers {
                let Some(service) = services.get_mut(id) else {
                    services.count_impossible();
                    continue;
                };
                if service.holds_mut().map(Hold::join_mass_loss).filter(|joined| *joined).count() > 0 {
                    self.index(id, service.holds(), policy);
                    services.mark(id, Cause::MassLoss { lost, populated }, false);
                }
            }
        }
    }
}

/// Takes notice of what a probe found.
pub(super) fn hear_probe(probed: Box<Probed>, services: &mut Services, tables: &Tables) {
    let Some(id) = tables.id_of(&probed.service) else { return };
    let hold = services.get_mut(id).and_then(|service| service.hold_of(&probed.port));
    if hold.is_some_and(|hold| Arc::make_mut(hold).observe(probed.backend, probed.answer)) {
        services.mark(id, Cause::Probed(probed), true);
    }
}

/// Notes what a slice said that is about to be replaced or deleted, if no decision was made by it: that an endpoint was
/// seen terminating is told once, and must not be lost because more was told within one batch. Where the slice is told
/// again as it is, nothing is lost.
pub(super) fn note_told(
    key: &SliceKey,
    next: Option<&Arc<SliceFacts>>,
    services: &mut Services,
    tables: &Tables,
) {
    let Some((told, id)) = tables.slice(key) else { return };
    let Some(service) = services.get_mut(id).filter(|service| service.is_stale()) else { return };
    let decided = service.view.as_deref().map_or(&[][..], |view| &view.slices);
    let at = decided.binary_search_by(|it| it.key.cmp(key));
    // An equal slice that was told once more is news, because another version may have come in between.
    let is_decided = at.ok().and_then(|at| decided.get(at)).is_some_and(|it| Arc::ptr_eq(it, told));
    if !is_decided && !told.headless && next != Some(told) {
        service.observe_told(told);
    }
}

/// Notes which held backends of a service may be probed.
pub(super) fn open_holds(
    known: &KnownService,
    service: &mut Service,
    frontends: &Frontends,
    (settings, node): (&Settings, &NodeFacts),
) {
    let is_tenants = known.key.source.is_tenants();
    let is_given = |backend: SocketAddr| {
        let port = NonZeroU16::new(backend.port())?;
        frontends.get(&FrontendKey { address: backend.ip(), port, transport: Transport::Tcp })
    };
    let is_open = |backend: SocketAddr| {
        !is_tenants
            || can_be_a_pods(backend.ip(), node, settings)
                && !is_given(backend).is_some_and(Frontend::is_given)
    };
    service.holds_mut().for_each(|hold| Hold::open(hold, is_open));
}
