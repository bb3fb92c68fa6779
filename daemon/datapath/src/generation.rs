//! The maps of one generation, which are the maps that grow.
//!
//! Invariant: two generations with the same content answer every client the same, so programs may be moved from one to
//! the other at any moment between two writes. When to grow, `open_kernel::grow` says.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use holdfast_core::keys::Family;
use holdfast_core::list::{Scope, Slot};
use holdfast_core::op::{PortFacts, PortIndex, SlotRange, Word};
use holdfast_status::datapath::Shape;
use libbpf_rs::{MapCore, MapHandle};

use crate::abi::{self, types};
use crate::counts::Counts;
use crate::error::StartError;
use crate::map::{self, Handles, Map, handle};
use crate::publish;
use crate::shape::{PROBE_ENTRIES, index};
use crate::table::Table;
use crate::view::View;

/// The maps of one generation, open.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) shape: Shape,
    handles: Handles,
    frontends: [Table; 2],
    pub(crate) members: Table,
    ports: Arc<View>,
    slots: [Arc<View>; 2],
    // Whether programs may read a larger generation already.
    outgrown: Arc<AtomicBool>,
}

fn uncounted(maps: &Handles, map: Map) -> Result<Table, StartError> {
    let copy = MapHandle::try_from(handle(maps, map)?).map_err(StartError::loading)?;
    Ok(Table::new(copy))
}

/// A map for single entries, with its entries counted.
pub(crate) fn table(maps: &Handles, map: Map) -> Result<Table, StartError> {
    let mut table = uncounted(maps, map)?;
    let failed = |source| StartError::Map { attempt: "read", map: map.name(), source };
    let entries = table.entries().map_err(failed)?;
    table.set_used(entries.len());
    Ok(table)
}

/// A map as memory.
pub(crate) fn view(maps: &Handles, map: Map) -> Result<View, StartError> {
    let failed = |source| StartError::Map { attempt: "map", map: map.name(), source };
    View::new(handle(maps, map)?).map_err(failed)
}

impl Generation {
    /// Opens the same maps again, for another thread that only reads. Memory that is mapped is shared, not mapped
    /// twice.
    pub(crate) fn for_reading(&self) -> Result<Self, StartError> {
        let maps = &self.handles;
        Ok(Self {
            shape: self.shape,
            handles: map::copies(maps)?,
            frontends: [uncounted(maps, Map::Frontends4)?, uncounted(maps, Map::Frontends6)?],
            members: uncounted(maps, Map::Members)?,
            ports: Arc::clone(&self.ports),
            slots: self.slots.clone(),
            outgrown: Arc::clone(&self.outgrown),
        })
    }

    /// Opens the maps of a generation.
    pub(crate) fn new(maps: &Handles) -> Result<Self, StartError> {
        let entries = |map| Ok::<_, StartError>(handle(maps, map)?.max_entries());
        let shape = Shape {
            frontends: [entries(Map::Frontends4)?, entries(Map::Frontends6)?],
            ports: entries(Map::Ports)?.saturating_sub(PROBE_ENTRIES),
            slots: [
                entries(Map::Backends4)?.saturating_sub(PROBE_ENTRIES),
                entries(Map::Backends6)?.saturating_sub(PROBE_ENTRIES),
            ],
            members: entries(Map::Members)?,
        };
        Ok(Self {
            shape,
            handles: map::copies(Map::of_generation().filter_map(|map| maps.get_key_value(&map)))?,
            frontends: [table(maps, Map::Frontends4)?, table(maps, Map::Frontends6)?],
            members: table(maps, Map::Members)?,
            ports: Arc::new(view(maps, Map::Ports)?),
            slots: [Arc::new(view(maps, Map::Backends4)?), Arc::new(view(maps, Map::Backends6)?)],
            outgrown: Arc::default(),
        })
    }

    /// Whether programs may read a larger generation, so that this one no longer tells what clients get.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.outgrown.load(Ordering::SeqCst)
    }

    pub(crate) fn set_outgrown(&self, outgrown: bool) {
        self.outgrown.store(outgrown, Ordering::SeqCst);
    }

    /// The handles of the maps, for loading programs over the same maps.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(crate) fn frontends(&self, family: Family) -> &Table {
        let [v4, v6] = &self.frontends;
        if family == Family::V4 { v4 } else { v6 }
    }

    pub(crate) fn frontends_mut(&mut self, family: Family) -> &mut Table {
        let [v4, v6] = &mut self.frontends;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn slots(&self, family: Family) -> &View {
        let [v4, v6] = &self.slots;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn word_of(&self, index: PortIndex, scope: Scope) -> Option<&AtomicU64> {
        let offset = if scope == Scope::Local {
            offset_of!(types::port, local)
        } else {
            offset_of!(types::port, cluster)
        };
        abi::port_words(&self.ports, index)?.get(offset / 8)
    }

    fn facts_of(&self, index: PortIndex) -> Option<&AtomicU64> {
        abi::port_words(&self.ports, index)?.get(offset_of!(types::port, facts) / 8)
    }

    pub(crate) fn word(&self, index: PortIndex, scope: Scope) -> Word {
        abi::word_of(self.word_of(index, scope).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Publishes a word by one aligned store, so that programs see the list before or the list after.
    pub(crate) fn publish(&self, index: PortIndex, scope: Scope, word: Word) {
        if let Some(cell) = self.word_of(index, scope) {
            publish::publish(cell, word);
        }
    }

    pub(crate) fn facts(&self, index: PortIndex) -> PortFacts {
        abi::facts_of(self.facts_of(index).map_or(0, |facts| facts.load(Ordering::Relaxed)))
    }

    /// Writes the facts of a port that begins or changes, and begins its counts at zero.
    pub(crate) fn write_facts(&self, index: PortIndex, facts: PortFacts) {
        self.counts().reset(index);
        if let Some(cell) = self.facts_of(index) {
            cell.store(abi::facts_word(facts), Ordering::Release);
        }
    }

    /// The counts of the clients of all ports.
    pub(crate) fn counts(&self) -> Counts {
        Counts::of_ports(&self.ports)
    }

    /// Writes a range that no word points to. Slots that are not given are wiped.
    pub(crate) fn fill(&self, range: SlotRange, slots: impl Iterator<Item = Slot>) {
        publish::fill(self.slots(range.family), range, slots);
    }

    /// The backends that a word points to; wiped slots and what lies beyond the array left out.
    pub(crate) fn list(&self, family: Family, word: Word) -> Vec<Slot> {
        let words = abi::slot_words(family);
        let from = word.base as usize * words;
        let cells = self.slots(family).get(from..from + word.count as usize * words);
        let loaded = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let slot = |cells: &[_]| abi::slot_of(family, cells.iter().map(loaded));
        cells.unwrap_or_default().chunks_exact(words).filter_map(slot).collect()
    }

    /// The port indices that have a word or facts.
    pub(crate) fn said(&self) -> impl Iterator<Item = PortIndex> {
        let indices = (0..self.shape.ports).map(PortIndex);
        indices.filter(|index| {
            let empty = |scope| self.word(*index, scope) == Word::EMPTY;
            !(empty(Scope::Cluster) && empty(Scope::Local) && self.facts(*index) == PortFacts::default())
        })
    }

    /// The port index and the slot that only the self-test uses.
    pub(crate) fn probe(&self, family: Family) -> (PortIndex, SlotRange) {
        let [v4, v6] = self.shape.slots;
        let base = if index(family) == 0 { v4 } else { v6 };
        (PortIndex(self.shape.ports), SlotRange { family, base, count: PROBE_ENTRIES })
    }

    /// Copies everything into larger maps that are empty.
    pub(crate) fn copy_to(&self, next: &mut Self) -> Result<(), StartError> {
        // Indices and slots stay as they are. The last of each is the self-test's, which is over.
        let ports = self.shape.ports as usize;
        copy(&self.ports, &next.ports, ports * abi::PORT_WORDS);
        for family in Family::ALL {
            let (_, probe) = self.probe(family);
            copy(self.slots(family), next.slots(family), probe.base as usize * abi::slot_words(family));
        }
        let [to4, to6] = &mut next.frontends;
        let [from4, from6] = &self.frontends;
        let pairs = [
            (Map::Frontends4, from4, to4),
            (Map::Frontends6, from6, to6),
            (Map::Members, &self.members, &mut next.members),
        ];
        for (map, from, to) in pairs {
            from.copy_to(to).map_err(|source| StartError::Map {
                attempt: "copy",
                map: map.name(),
                source,
            })?;
        }
        Ok(())
    }
}

fn copy(from: &View, to: &View, words: usize) {
    for (from, to) in from.iter().zip(to.iter()).take(words) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    fence(Ordering::Release);
}
