//! All state of the rules, each part with its owner, and how events change it.
//!
//! Invariant: only the engine calls the steps, in the order given in `engine`. A service is planned once its source has
//! synced or its restored state stands in. Entries that a start found in the maps are removed only when every source
//! has synced. A piece is bounded by its work, and events are applied between two pieces.

mod adopt;
mod budget;
mod charges;
mod decide;
mod demand;
mod drift;
mod fair_queue;
mod family_pair;
mod growth_estimate;
mod hold;
mod index_handover;
mod members;
mod node;
mod owners;
mod placement;
mod plan;
mod plan_shortfall;
mod realize;
mod report;
mod restore;
mod retry_queue;
pub(crate) mod services;
mod shortage;
mod space;
mod spare_blocks;
mod undecided_claims;
mod view;
mod work_queue;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::change::Cause;
use crate::drains::scan::DrainScan;
use crate::event::Event;
use crate::hold::Ledger;
use crate::index::Seed;
use crate::keys::Source;
use crate::maps::Capacity;
use crate::service::FactsOrigin;
use crate::tables::Tables;

pub use adopt::AdoptError;
pub use drift::Drift;
pub use growth_estimate::estimate_service_growth;
pub use restore::SavedSnapshot;

#[derive(Debug)]
pub(crate) struct World {
    /// The objects of the sources.
    pub(crate) tables: Tables,
    /// What each service desires, and has in the maps.
    pub(crate) services: services::Services,
    pub(crate) owners: owners::Owners,
    /// Which parts of the maps are allocated.
    pub(crate) space: space::Space,
    /// How much services ask for.
    demand: demand::Demand,
    /// The services that found no capacity.
    shortage: shortage::Shortage,
    /// What the maps hold besides the services' own.
    pub(crate) realized: realize::RealizedState,
    /// Changed drains, while the world still searches for their services.
    drain_scan: DrainScan,
    /// The held lists, and recent losses.
    ledger: Ledger,
    /// The order in which services are realized.
    pub(crate) queue: work_queue::WorkQueue,
    pub(crate) report: report::Report,
}

impl World {
    /// Empty tables and empty maps, waiting for these sources.
    pub(crate) fn new(seed: Seed, capacity: Capacity, sources: &[Source]) -> Self {
        let space = space::Space::new(seed, capacity);
        Self {
            tables: Tables::new(seed, sources, capacity.services),
            services: services::Services::default(),
            owners: owners::Owners::new(seed),
            demand: demand::Demand::new(seed, space.capacity()),
            space,
            shortage: shortage::Shortage::default(),
            realized: realize::RealizedState::default(),
            drain_scan: DrainScan::default(),
            ledger: Ledger::default(),
            queue: work_queue::WorkQueue::new(seed),
            report: report::Report::new(seed),
        }
    }

    /// Applies one event: first to everything but the objects, then to the objects, then to waiting services.
    pub(crate) fn apply(&mut self, event: Event) {
        let Self { tables, services, owners, drain_scan: drained, ledger, queue, .. } = self;
        let mut concerns_all = false;
        match event {
            Event::Probed(probed) => return hold::record_probe(probed, services, tables),
            Event::PodsObserved(pods) => return ledger.record_pods(&pods, services, tables),
            Event::NodeApplied(_) | Event::SettingsApplied(_) => concerns_all = true,
            Event::Synced(source) => {
                ledger.record_interruption(source);
                ledger.set_silent(source, false);
                queue.resume_waiting(services);
                concerns_all = true;
            }
            Event::Absent(_) => queue.resume_waiting(services),
            Event::Rejected(ref rejection) if tables.is_newly_unreadable(rejection) => {
                queue.resume_waiting(services);
            }
            Event::Interrupted(source) | Event::Resumed(source) => ledger.record_interruption(source),
            Event::Silent(source) => ledger.set_silent(source, true),
            Event::Recovered(source) => ledger.set_silent(source, false),
            Event::Answered(source, put) => ledger.record_answer(source, put),
            Event::ServiceApplied(ref facts) => tables.restore_quota(facts, &owners.frontends),
            Event::SliceApplied(ref slice) => {
                ledger.record_claims(slice, services);
                hold::record_undecided_slice(&slice.key, Some(slice), services, tables);
            }
            Event::SliceDeleted(ref key, _) => hold::record_undecided_slice(key, None, services, tables),
            Event::DrainsApplied(ref drains, ref by) => drained.record_changes(drains, by, tables, services),
            Event::ServiceDeleted(..)
            | Event::Rejected(_)
            | Event::RejectionEnded(_)
            | Event::ListenersApplied(_)
            | Event::Progress(..) => {}
        }
        self.enter_event(event);
        if concerns_all {
            self.await_undecided();
        }
    }

    /// Whether any service is dirty, in this piece or a later one, or about to be.
    pub(crate) fn has_dirty(&self) -> bool {
        self.queue.has_dirty(&self.services) || self.drain_scan.is_under_way()
    }

    /// Whether everything known at the start is written, and is as complete as it can be.
    pub(crate) fn has_initial_state(&self) -> bool {
        self.queue.is_programmed() && self.tables.is_complete()
    }

    /// Applies an event to the tables, and marks the services that it affects.
    fn enter_event(&mut self, event: Event) {
        let Self { tables, services, queue, report, .. } = self;
        let facts_origin = if tables.is_synced() { FactsOrigin::Watch } else { FactsOrigin::List };
        let mut woken = Vec::new();
        tables.apply(event, &mut |id, cause| {
            let facts =
                if let Cause::ServiceApplied(facts) = &cause { Some(Arc::clone(facts)) } else { None };
            services.mark_dirty(id, cause, true);
            if let (Some(facts), Some(service)) = (facts, services.get_mut(id)) {
                service.facts_origin = facts_origin;
                woken.append(&mut service.set_pending_facts(facts, &mut queue.undecided));
            }
        });
        woken.into_iter().for_each(|id| services.retry(id, tables));
        report.counters.events += 1;
    }
}

#[cfg(test)]
mod tests;
