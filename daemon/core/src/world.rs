//! All state of the rules, and the order of one piece: apply, decide, plan, settle.
//!
//! Invariant: the engine calls these in this order and is the only one who does. A service is planned when its source has
//! delivered its first list, or when what a former process wrote down stands in for it; what a start found in the maps is
//! removed only when every source has. A piece is bounded by the work in it, so that events are taken between two of them.
//! Deliberately absent: the maps themselves; ops go out, answers come in.
//!
//! ```text
//! apply(event)*  →  decide(now)  →  for each of the piece: plan_lists → plan_removals  →  plan_leftovers  →  settle(now)
//!                                     each op: accepted | refused
//! ```

mod adopt;
mod decide;
mod drift;
mod hold;
mod piece;
mod plan;
mod queue;
mod realize;
mod remember;
mod settle;
mod starved;
mod undecided;
mod view;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::change::Cause;
use crate::claims::{Frontends, RealizedFrontend};
use crate::event::Event;
use crate::facts::Timestamp;
use crate::hold::Ledger;
use crate::index::Seed;
use crate::keys::{Family, FrontendKey, Source};
use crate::maps::Capacity;
use crate::op::{Grace, PortIndex, Range, ServiceId};
use crate::program::{Port, Program};
use crate::ranges::Ranges;
use crate::snapshot::{Counters, Snapshot};
use crate::tables::Tables;

pub use adopt::AdoptError;
pub use drift::Drift;
pub(crate) use piece::Cursor;
pub use remember::Remembered;

/// All state of the rules.
#[derive(Debug)]
pub(crate) struct World {
    tables: Tables,
    programs: Vec<Program>,
    frontends: Frontends,
    frontends_realized: usize,
    /// Planned in this piece and not in the maps yet.
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
    /// Which lists are held, and who lost one lately.
    ledger: Ledger,
    starved: starved::Starved,
    /// Became dirty since the last piece was begun.
    dirty: Vec<ServiceId>,
    /// Dirty too, until their source has delivered.
    waiting: Vec<ServiceId>,
    turns: piece::Turns,
    undecided: undecided::Undecided,
    woken: BTreeSet<ServiceId>,
    snapshot: Snapshot,
    /// A comparison with what the maps hold.
    checking: Option<drift::Checking>,
    /// What a comparison has found that no snapshot tells of yet.
    found: Option<usize>,
    counters: Counters,
}

impl World {
    /// Empty tables and empty maps, waiting for these sources.
    pub(crate) fn new(seed: Seed, capacity: Capacity, sources: &[Source]) -> Self {
        Self {
            tables: Tables::new(seed, sources, capacity.services),
            programs: Vec::new(),
            frontends: Frontends::new(seed),
            frontends_realized: 0,
            frontends_coming: 0,
            ranges: [Ranges::new(capacity.slots), Ranges::new(capacity.slots)],
            indices: Indices { free: BTreeSet::new(), next: 0, capacity: capacity.ports, places: Vec::new() },
            freed: Freed::default(),
            node_addresses: BTreeSet::new(),
            uncertain_addresses: BTreeSet::new(),
            adopted: BTreeMap::new(),
            strays: BTreeSet::new(),
            remembered_at: None,
            ledger: Ledger::default(),
            starved: starved::Starved::default(),
            dirty: Vec::new(),
            waiting: Vec::new(),
            turns: piece::Turns::default(),
            undecided: undecided::Undecided::default(),
            woken: BTreeSet::new(),
            snapshot: Snapshot::default(),
            checking: None,
            found: None,
            counters: Counters::default(),
        }
    }

    /// Takes one event in.
    pub(crate) fn apply(&mut self, event: Event) {
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
        let is_of_all = matches!(event, Event::Synced(_) | Event::NodeApplied(_) | Event::SettingsApplied(_));
        if matches!(event, Event::Synced(_)) {
            self.go_on_with_waiting();
        }
        let mut woken = Vec::new();
        let Self { tables, programs, dirty, undecided, .. } = self;
        tables.apply(event, &mut |id, cause| {
            let facts =
                if let Cause::ServiceApplied(facts) = &cause { Some(Arc::clone(facts)) } else { None };
            mark(programs, dirty, id, cause, true);
            if let (Some(facts), Some(program)) = (facts, programs.get_mut(id.0 as usize)) {
                woken.append(&mut program.ask_with(facts, undecided));
            }
        });
        woken.into_iter().for_each(|id| self.retry(id));
        self.counters.events += 1;
        if is_of_all {
            self.await_undecided();
        }
    }

    /// Whether every source has delivered, so that what nobody asks for may be removed.
    pub(crate) fn is_synced(&self) -> bool {
        self.tables.is_synced()
    }

    /// Whether some source has delivered, so that what it asks for may be added.
    pub(crate) fn has_delivered(&self) -> bool {
        self.tables.synced.values().any(|synced| *synced)
    }

    /// Whether this service may be written to.
    pub(crate) fn is_dirty(&self, id: ServiceId) -> bool {
        self.programs.get(id.0 as usize).is_some_and(|program| program.dirty)
    }

    /// Whether the maps certainly do not have this frontend, so that it matters to nobody when it comes.
    pub(crate) fn is_new(&self, key: &FrontendKey) -> bool {
        self.frontends.get(key).is_none_or(|entry| entry.realized.is_none() && !entry.uncertain)
    }

    /// Marks a service whose last plan was not carried out.
    pub(crate) fn retry(&mut self, id: ServiceId) {
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

    /// The port of a service that has this index.
    fn port_at(&self, id: ServiceId, index: PortIndex) -> Option<&Port> {
        let port = self.programs.get(id.0 as usize)?.ports.get(self.indices.place(index)?)?;
        (port.index == Some(index)).then_some(port)
    }

    /// The same, to change.
    fn port_at_mut(&mut self, id: ServiceId, index: PortIndex) -> Option<&mut Port> {
        let place = self.indices.place(index)?;
        self.program(id)?.ports.get_mut(place).filter(|port| port.index == Some(index))
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
    program.cursor = piece::Cursor::default();
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
    /// The place of an index among its owner's ports, so that an op finds its port without a search.
    places: Vec<u32>,
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

    fn place(&self, index: PortIndex) -> Option<usize> {
        self.places.get(index.0 as usize).map(|place| *place as usize)
    }

    /// Where a port with an index is from now on.
    fn put(&mut self, index: PortIndex, place: usize) {
        let at = index.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, 0);
        }
        if let (Some(known), Ok(place)) = (self.places.get_mut(at), u32::try_from(place)) {
            *known = place;
        }
    }

    /// The same for all ports of a service.
    fn put_all(&mut self, ports: &[Port]) {
        for (place, port) in ports.iter().enumerate() {
            if let Some(index) = port.index {
                self.put(index, place);
            }
        }
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
