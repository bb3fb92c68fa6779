//! All state of the rules, and the order of one batch: apply, decide, plan, settle.
//!
//! Invariant: the engine calls these in this order and is the only one who does. Nothing is planned before every source
//! has delivered or what a former process wrote down stands in for it, so nothing is removed by a start. Deliberately absent: the maps themselves; ops go out, answers come in.
//!
//! ```text
//! apply(event)*  →  decide(now)  →  for each dirty: plan_lists → plan_removals  →  plan_leftovers  →  settle(now)
//!                                     each op: accepted | refused
//! ```

mod adopt;
mod decide;
mod drift;
mod hold;
mod plan;
mod realize;
mod remember;
mod settle;
mod starved;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::change::Cause;
use crate::claims::{Frontends, RealizedFrontend};
use crate::event::Event;
use crate::facts::Timestamp;
use crate::index::Seed;
use crate::keys::{Family, FrontendKey, Source};
use crate::limits;
use crate::op::{Grace, PortIndex, Range, ServiceId};
use crate::program::Program;
use crate::ranges::Ranges;
use crate::snapshot::{Counters, Snapshot};
use crate::tables::Tables;

pub use adopt::AdoptError;
pub use drift::Drift;
pub(crate) use hold::Bench;
pub use remember::Remembered;

/// How much the maps may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Slots of each family, rounded down to a power of two.
    pub slots: u32,
    /// Port indices.
    pub ports: u32,
    /// Services that may be known, programmed or not.
    pub services: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            slots: limits::SLOTS_PER_FAMILY_MAX,
            ports: limits::PORT_INDICES_MAX,
            services: limits::SERVICES_MAX,
        }
    }
}

/// All state of the rules.
#[derive(Debug)]
pub struct World {
    tables: Tables,
    programs: Vec<Program>,
    frontends: Frontends,
    frontends_realized: usize,
    /// Planned in this batch and not in the maps yet.
    frontends_coming: usize,
    ranges: [Ranges; 2],
    indices: Indices,
    freed: Freed,
    node_addresses: BTreeSet<IpAddr>,
    uncertain_addresses: BTreeSet<IpAddr>,
    adopted: BTreeMap<PortIndex, adopt::Adopted>,
    /// Frontends that somebody else wrote.
    strays: BTreeSet<FrontendKey>,
    /// When a former process wrote down what this one began with.
    remembered_at: Option<Timestamp>,
    holds: hold::Holds,
    starved: starved::Starved,
    dirty: Vec<ServiceId>,
    woken: Vec<ServiceId>,
    snapshot: Snapshot,
    /// What a comparison has found that no snapshot tells of yet.
    found: Option<usize>,
    counters: Counters,
}

impl World {
    /// Empty tables and empty maps, waiting for these sources.
    pub fn new(seed: Seed, capacity: Capacity, sources: &[Source]) -> Self {
        Self {
            tables: Tables::new(seed, sources, capacity.services),
            programs: Vec::new(),
            frontends: Frontends::new(seed),
            frontends_realized: 0,
            frontends_coming: 0,
            ranges: [Ranges::new(capacity.slots), Ranges::new(capacity.slots)],
            indices: Indices { free: BTreeSet::new(), next: 0, capacity: capacity.ports },
            freed: Freed::default(),
            node_addresses: BTreeSet::new(),
            uncertain_addresses: BTreeSet::new(),
            adopted: BTreeMap::new(),
            strays: BTreeSet::new(),
            remembered_at: None,
            holds: hold::Holds::default(),
            starved: starved::Starved::default(),
            dirty: Vec::new(),
            woken: Vec::new(),
            snapshot: Snapshot::default(),
            found: None,
            counters: Counters::default(),
        }
    }

    /// Takes one event in.
    pub fn apply(&mut self, event: Event) {
        match &event {
            Event::Interrupted(source) | Event::Resumed(source) | Event::Synced(source) => {
                self.interrupt(*source);
            }
            Event::SliceApplied(slice) => self.claim_addresses(slice),
            _ => {}
        }
        if let Event::Probed(probed) = event {
            return self.probed(probed);
        }
        let Self { tables, programs, dirty, .. } = self;
        tables.apply(event, &mut |id, cause| mark(programs, dirty, id, cause, true));
        self.counters.events += 1;
    }

    /// Whether every source has delivered, so that the maps may be touched.
    pub fn is_synced(&self) -> bool {
        self.tables.is_synced()
    }

    /// The services to be planned, in the order in which they became dirty.
    pub fn dirty(&self) -> &[ServiceId] {
        &self.dirty
    }

    /// Whether this service may be written to in this batch.
    pub fn is_dirty(&self, id: ServiceId) -> bool {
        self.programs.get(id.0 as usize).is_some_and(|program| program.dirty)
    }

    /// Whether the maps certainly do not have this frontend, so that it matters to nobody when it comes.
    pub fn is_new(&self, key: &FrontendKey) -> bool {
        self.frontends.get(key).is_none_or(|entry| entry.realized.is_none() && !entry.uncertain)
    }

    /// Marks a service whose last plan was not carried out.
    pub fn retry(&mut self, id: ServiceId) {
        if self.tables.get(id).is_some() {
            mark(&mut self.programs, &mut self.dirty, id, Cause::Retry, false);
        }
    }

    fn ranges(&mut self, family: Family) -> &mut Ranges {
        let [v4, v6] = &mut self.ranges;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn program(&mut self, id: ServiceId) -> Option<&mut Program> {
        self.programs.get_mut(id.0 as usize)
    }
}

/// Makes a service dirty, once. `stale`: what it wants must be decided again.
fn mark(programs: &mut Vec<Program>, dirty: &mut Vec<ServiceId>, id: ServiceId, cause: Cause, stale: bool) {
    let place = id.0 as usize;
    if programs.len() <= place {
        programs.resize_with(place + 1, Program::default);
    }
    let Some(program) = programs.get_mut(place) else { return };
    program.add_cause(cause);
    program.stale |= stale;
    if !program.dirty {
        program.dirty = true;
        dirty.push(id);
    }
}

/// Which port indices are taken.
#[derive(Debug)]
struct Indices {
    free: BTreeSet<PortIndex>,
    next: u32,
    capacity: u32,
}

impl Indices {
    /// The lowest free one, so that the map stays dense.
    fn take(&mut self) -> Option<PortIndex> {
        if let Some(index) = self.free.pop_first() {
            return Some(index);
        }
        let index = PortIndex(self.next);
        (self.next < self.capacity).then(|| self.next += 1).map(|()| index)
    }

    /// Takes exactly this one, which a restart found in use.
    fn reserve(&mut self, index: PortIndex) {
        while self.next <= index.0 {
            self.free.insert(PortIndex(self.next));
            self.next += 1;
        }
        self.free.remove(&index);
    }

    fn give_back(&mut self, index: PortIndex) {
        self.free.insert(index);
    }

    fn used(&self) -> usize {
        self.next as usize - self.free.len()
    }
}

/// What readers may still be on their way to, until a grace period has passed.
#[derive(Debug, Default)]
struct Freed {
    now: Leaving,
    waiting: VecDeque<(Grace, Leaving)>,
}

/// What was freed before one grace period began.
#[derive(Debug, Default)]
struct Leaving {
    /// No word points to them any more.
    ranges: Vec<Range>,
    /// Wiped.
    indices: Vec<PortIndex>,
    /// Fewer readers are sent to their words than before: by a frontend, or by a cluster word to the local one.
    services: BTreeSet<ServiceId>,
    /// As above, of ports that a restart found.
    found: BTreeSet<PortIndex>,
}

impl Freed {
    fn leavings(&self) -> impl Iterator<Item = &Leaving> {
        core::iter::once(&self.now).chain(self.waiting.iter().map(|(_, leaving)| leaving))
    }

    /// Whether readers may be about to read a word of this service that nothing leads to any more.
    fn leads_to(&self, id: ServiceId) -> bool {
        self.leavings().any(|leaving| leaving.services.contains(&id))
    }

    /// As above, of a port that a restart found.
    fn leads_to_found(&self, index: PortIndex) -> bool {
        self.leavings().any(|leaving| leaving.found.contains(&index))
    }
}

impl Leaving {
    fn is_empty(&self) -> bool {
        let Self { ranges, indices, services, found } = self;
        ranges.is_empty() && indices.is_empty() && services.is_empty() && found.is_empty()
    }

    /// A frontend leads elsewhere now, or nowhere.
    fn left(&mut self, before: RealizedFrontend) {
        match before.owner {
            Some(id) => self.services.insert(id),
            None => self.found.insert(before.value.port),
        };
    }
}

#[cfg(test)]
mod tests;
