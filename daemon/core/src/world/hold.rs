//! What the world asks and tells the hold room: which services to decide for again because of a hold, and why.
//!
//! Invariant: a hold is entered and left by a decision for its own service alone; other services reach it only by
//! claiming a held address or by being part of the same mass loss, and each of these is a cause of its own.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use super::World;
use crate::change::Cause;
use crate::facts::{Endpoint, Settings, SliceFacts};
use crate::hold::{Case, Hold, MassLoss, Probed};
use crate::keys::Source;
use crate::op::ServiceId;
use crate::time::{Now, Uptime};

/// Those that stand in slices which are not for proxies, and may have been a moment ago.
fn withdrawn(slices: &[Arc<SliceFacts>]) -> BTreeSet<IpAddr> {
    let headless = slices.iter().filter(|slice| slice.headless);
    headless.flat_map(|slice| slice.endpoints.iter_brief()).map(|(address, _)| address).collect()
}

impl World {
    /// What the empty lists of this service are judged by.
    pub(super) fn case<'a>(&self, id: ServiceId, settings: &'a Settings, now: Now) -> Option<Case<'a>> {
        let known = self.tables.get(id)?;
        let before = self.services.get(id).and_then(|service| service.view.as_ref());
        Some(Case {
            policy: &settings.hold,
            own: known.facts.as_deref().and_then(crate::tables::on_empty),
            is_resync: self.ledger.is_resync(known.key.source, now.uptime()),
            now,
            withdrawn: withdrawn(&known.slices),
            slices: before.map(|view| Arc::clone(&view.slices)).unwrap_or_default(),
            key: known.key.clone(),
            settings,
        })
    }

    /// A source may miss something from now on.
    pub(super) fn interrupt(&mut self, source: Source) {
        self.ledger.interrupt(source);
    }

    /// Marks the services whose holds have reached their bounds.
    pub(super) fn expire_holds(&mut self, now: Uptime) {
        self.ledger.begin(now);
        while let Some(id) = self.ledger.take_due(now) {
            self.services.mark(id, Cause::HoldDue, true);
        }
    }

    /// Takes notice of what a probe found.
    pub(super) fn probed(&mut self, probed: Box<Probed>) {
        let Some(id) = self.tables.id_of(&probed.service) else { return };
        let hold = self.services.get_mut(id).and_then(|service| service.hold_of(&probed.port));
        if hold.is_some_and(|hold| Arc::make_mut(hold).observe(probed.backend, probed.answer)) {
            self.services.mark(id, Cause::Probed(probed), true);
        }
    }

    /// Lets go of held addresses that this slice lists for somebody else: a probe would find that one there.
    pub(super) fn claim_addresses(&mut self, slice: &SliceFacts) {
        if self.ledger.is_empty() {
            return;
        }
        for port in &slice.ports {
            for endpoint in slice.endpoints.iter() {
                self.claim_address(SocketAddr::new(endpoint.address, port.port.get()), endpoint, slice);
            }
        }
    }

    fn claim_address(&mut self, address: SocketAddr, endpoint: Endpoint<'_>, slice: &SliceFacts) {
        let (Some(ids), Some(by)) = (self.ledger.holders(address), endpoint.target) else { return };
        let Some(claimant) = crate::tables::service_of(slice) else { return };
        for id in ids.clone() {
            let Some(service) = self.services.get_mut(id) else {
                self.report.counters.impossible += 1;
                continue;
            };
            let given_up = service.holds_mut().map(|hold| Arc::make_mut(hold).give_up(address, by));
            let lost = given_up.filter(|lost| *lost).count();
            if lost > 0 {
                let cause = Cause::AddressClaimed(address, claimant.clone());
                self.services.mark(id, cause, true);
            }
        }
    }

    /// Keeps account of what a decision made of a service's holds.
    pub(super) fn account_for_holds(
        &mut self,
        id: ServiceId,
        had_list: bool,
        settings: &Settings,
        now: Uptime,
    ) {
        let Some(service) = self.services.get(id) else { return self.count_impossible() };
        let lists = (had_list, service.has_list());
        self.ledger.account(id, service.holds(), lists, (&settings.hold, now));
    }

    /// A remembered service has a list, or holds one, before anything is decided.
    pub(super) fn account_for_remembered(&mut self, id: ServiceId) {
        let Some(service) = self.services.get(id) else { return self.count_impossible() };
        self.ledger.remember(id, service.holds(), service.has_list(), &self.tables.settings.hold);
    }

    /// Who lost its list within the window is held as long as a mass loss is, if there are so many. Judged once for all
    /// that a batch decided, so that its order does not matter.
    pub(super) fn judge_mass(&mut self, now: Uptime) {
        let policy = self.tables.settings.hold;
        let Some(MassLoss { lost, populated, services }) = self.ledger.judge_mass(&policy, now) else {
            return;
        };
        for id in services {
            let Some(service) = self.services.get_mut(id) else {
                self.count_impossible();
                continue;
            };
            if service.holds_mut().map(Hold::join_mass_loss).filter(|joined| *joined).count() > 0 {
                self.ledger.index(id, service.holds(), &policy);
                let cause = Cause::MassLoss { lost, populated };
                self.services.mark(id, cause, false);
            }
        }
    }

    /// Services of which some list is held.
    pub(super) fn held(&self) -> Arc<BTreeSet<ServiceId>> {
        self.ledger.held()
    }
}
