//! All state of the rules, each part with its owner, and what an event does to it.
//!
//! Invariant: only the engine asks for a step, in the order that stands in `engine`. A service is planned when its
//! source has delivered its first list, or when what a former process wrote down stands in for it; what a start found
//! in the maps is removed only when every source has delivered. A piece is bounded by the work in it, so that events
//! are taken between two pieces.

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

/// All state of the rules.
#[derive(Debug)]
pub(crate) struct World {
    /// What the sources say.
    pub(crate) tables: Tables,
    /// What each service wants, and has in the maps.
    pub(crate) services: services::Services,
    /// Which service owns a frontend.
    pub(crate) owners: owners::Owners,
    /// What is taken of the maps.
    pub(crate) space: space::Space,
    /// How much services ask for.
    demand: demand::Demand,
    /// What found no room.
    shortage: shortage::Shortage,
    /// What the maps hold beside what services have in them.
    pub(crate) realized: realize::RealizedState,
    /// What was drained or taken back, while its services are looked for.
    drain_scan: DrainScan,
    /// The lists that are held, and those that were lost lately.
    ledger: Ledger,
    /// The order in which services are carried out.
    pub(crate) queue: work_queue::WorkQueue,
    /// What readers see.
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

    /// Takes one event in: what it says beside the objects, then the objects, then who waits for new decisions.
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

    /// Whether anything is dirty, of this piece or of later ones, or is about to become so.
    pub(crate) fn has_dirty(&self) -> bool {
        self.queue.has_dirty(&self.services) || self.drain_scan.is_under_way()
    }

    /// Whether all that was known at the start is written, and is all there is to know now.
    pub(crate) fn has_initial_state(&self) -> bool {
        self.queue.is_programmed() && self.tables.is_complete()
    }

    /// Has the tables take an event in, and marks the services that it touches.
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
