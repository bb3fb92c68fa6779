//! All state of the rules, each part with its owner, and what an event does to it.
//!
//! Invariant: only the engine asks for a step, in the order that stands in `engine`. A service is planned when its
//! source has delivered its first list, or when what a former process wrote down stands in for it; what a start found
//! in the maps is removed only when every source has delivered. A piece is bounded by the work in it, so that events
//! are taken between two pieces.

mod adopt;
mod asked;
mod budget;
mod charges;
mod decide;
mod drains;
mod drift;
mod foreseen;
mod heirs;
mod hold;
mod lacking;
mod members;
mod node;
mod owners;
mod parts;
mod piece;
mod place;
mod plan;
mod queue;
mod realize;
mod remember;
mod report;
mod services;
mod shortage;
mod space;
mod spares;
mod starved;
mod undecided;
mod view;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::change::Cause;
use crate::event::Event;
use crate::hold::Ledger;
use crate::index::Seed;
use crate::keys::Source;
use crate::maps::Capacity;
use crate::service::FactsOrigin;
use crate::tables::Tables;

pub use adopt::AdoptError;
pub use drift::Drift;
pub use foreseen::foreseen;
pub use remember::Remembered;

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
    space: space::Space,
    /// How much services ask for.
    demand: asked::Demand,
    /// What found no room.
    shortage: shortage::Shortage,
    node: node::NodeAddresses,
    /// What was drained or taken back, while its services are looked for.
    drained: drains::Walk,
    /// What a start found in the maps and no service has taken over.
    adopted: adopt::Adopted,
    /// The lists that are held, and those that were lost lately.
    ledger: Ledger,
    /// The order in which services are carried out.
    pub(crate) queue: piece::WorkQueue,
    /// A comparison with what the maps hold.
    checking: Option<drift::Checking>,
    /// What readers see.
    report: report::Report,
}

impl World {
    /// Empty tables and empty maps, waiting for these sources.
    pub(crate) fn new(seed: Seed, capacity: Capacity, sources: &[Source]) -> Self {
        let space = space::Space::new(seed, capacity);
        Self {
            tables: Tables::new(seed, sources, capacity.services),
            services: services::Services::default(),
            owners: owners::Owners::new(seed),
            demand: asked::Demand::new(seed, space.capacity()),
            space,
            shortage: shortage::Shortage::default(),
            node: node::NodeAddresses::default(),
            drained: drains::Walk::default(),
            adopted: adopt::Adopted::default(),
            ledger: Ledger::default(),
            queue: piece::WorkQueue::new(seed),
            checking: None,
            report: report::Report::new(seed),
        }
    }

    /// Takes one event in.
    pub(crate) fn apply(&mut self, event: Event) {
        match &event {
            Event::Interrupted(source) | Event::Resumed(source) => self.interrupt(*source),
            Event::Synced(source) => {
                self.interrupt(*source);
                self.silence(*source, false);
            }
            Event::Silent(source) => self.silence(*source, true),
            Event::Heard(source) => self.silence(*source, false),
            Event::Answered(source, put) => self.answer(*source, *put),
            Event::ServiceApplied(facts) => self.recognise(facts),
            Event::SliceApplied(slice) => {
                self.hear_claims(slice);
                self.note_told(&slice.key, Some(slice));
            }
            Event::SliceDeleted(key, _) => self.note_told(key, None),
            Event::DrainsApplied(drains, by) => self.turn_drains(drains, by),
            _ => {}
        }
        let event = match event {
            Event::Probed(probed) => return self.probed(probed),
            Event::PodsHeard(pods) => return self.hear_pods(&pods),
            event => event,
        };
        let is_of_all = matches!(event, Event::Synced(_) | Event::NodeApplied(_) | Event::SettingsApplied(_));
        let goes_on = match &event {
            Event::Synced(_) | Event::Absent(_) => true,
            Event::Rejected(rejection) => self.tables.begins_unreadable(rejection),
            _ => false,
        };
        if goes_on {
            self.go_on_with_waiting();
        }
        let facts_origin = if self.tables.is_synced() { FactsOrigin::Watch } else { FactsOrigin::List };
        let mut woken = Vec::new();
        let Self { tables, services, queue, .. } = &mut *self;
        tables.apply(event, &mut |id, cause| {
            let facts =
                if let Cause::ServiceApplied(facts) = &cause { Some(Arc::clone(facts)) } else { None };
            services.mark(id, cause, true);
            if let (Some(facts), Some(service)) = (facts, services.get_mut(id)) {
                service.facts_origin = facts_origin;
                woken.append(&mut service.ask_with(facts, &mut queue.undecided));
            }
        });
        woken.into_iter().for_each(|id| services.retry(id, tables));
        self.report.counters.events += 1;
        if is_of_all {
            self.await_undecided();
        }
    }
}

#[cfg(test)]
mod tests;
