//! The maps of one generation, which are those that grow.
//!
//! Invariant: two generations with the same content give every client the same result, so programs may move between
//! them at any moment between two writes. `kernel::grow` decides when to grow.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use holdfast_core::keys::Family;
use holdfast_core::list::{Scope, Slot};
use holdfast_core::op::{PortFacts, PortIndex, SlotRange, Word};
use holdfast_status::datapath::MapSizes;
use libbpf_rs::{MapCore, MapHandle};

use crate::abi::{self, types};
use crate::error::StartError;
use crate::map::{self, Map, MapHandles, find_handle};
use crate::mapped_array::MappedArray;
use crate::port_counts::PortCounters;
use crate::publish;
use crate::shape::{PROBE_ENTRIES, family_index};
use crate::table::Table;

#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) shape: MapSizes,
    handles: MapHandles,
    frontends: [Table; 2],
    pub(crate) members: Table,
    ports: Arc<MappedArray>,
    slots: [Arc<MappedArray>; 2],
    // Whether programs may already read a larger generation.
    outgrown: Arc<AtomicBool>,
}

fn open_table(maps: &MapHandles, map: Map) -> Result<Table, StartError> {
    let copy = MapHandle::try_from(find_handle(maps, map)?).map_err(StartError::from_load)?;
    Ok(Table::new(copy))
}

/// Opens a map of single entries and counts them.
pub(crate) fn open_counted_table(maps: &MapHandles, map: Map) -> Result<Table, StartError> {
    let mut table = open_table(maps, map)?;
    let failed = |source| StartError::Map { attempt: "read", map: map.name(), source };
    let entries = table.entries().map_err(failed)?;
    table.set_used(entries.len());
    Ok(table)
}

/// Maps an array into memory.
pub(crate) fn map_array(maps: &MapHandles, map: Map) -> Result<MappedArray, StartError> {
    let failed = |source| StartError::Map { attempt: "map", map: map.name(), source };
    MappedArray::new(find_handle(maps, map)?).map_err(failed)
}

impl Generation {
    /// Opens the same maps again for another thread that only reads. Mapped memory is shared.
    pub(crate) fn for_reading(&self) -> Result<Self, StartError> {
        let maps = &self.handles;
        Ok(Self {
            shape: self.shape,
            handles: map::clone_handles(maps)?,
            frontends: [open_table(maps, Map::Frontends4)?, open_table(maps, Map::Frontends6)?],
            members: open_table(maps, Map::Members)?,
            ports: Arc::clone(&self.ports),
            slots: self.slots.clone(),
            outgrown: Arc::clone(&self.outgrown),
        })
    }

    pub(crate) fn new(maps: &MapHandles) -> Result<Self, StartError> {
        let entries = |map| Ok::<_, StartError>(find_handle(maps, map)?.max_entries());
        let shape = MapSizes {
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
            handles: map::clone_handles(Map::generation_maps().filter_map(|map| maps.get_key_value(&map)))?,
            frontends: [
                open_counted_table(maps, Map::Frontends4)?,
                open_counted_table(maps, Map::Frontends6)?,
            ],
            members: open_counted_table(maps, Map::Members)?,
            ports: Arc::new(map_array(maps, Map::Ports)?),
            slots: [Arc::new(map_array(maps, Map::Backends4)?), Arc::new(map_array(maps, Map::Backends6)?)],
            outgrown: Arc::default(),
        })
    }

    /// Whether programs may already read a larger generation, so that this one is not authoritative.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.outgrown.load(Ordering::SeqCst)
    }

    pub(crate) fn set_outgrown(&self, outgrown: bool) {
        self.outgrown.store(outgrown, Ordering::SeqCst);
    }

    pub(crate) fn handles(&self) -> &MapHandles {
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

    fn slots(&self, family: Family) -> &MappedArray {
        let [v4, v6] = &self.slots;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn word_cell(&self, index: PortIndex, scope: Scope) -> Option<&AtomicU64> {
        let offset = if scope == Scope::Local {
            offset_of!(types::port, local)
        } else {
            offset_of!(types::port, cluster)
        };
        abi::port_words(&self.ports, index)?.get(offset / 8)
    }

    fn facts_cell(&self, index: PortIndex) -> Option<&AtomicU64> {
        abi::port_words(&self.ports, index)?.get(offset_of!(types::port, facts) / 8)
    }

    pub(crate) fn word(&self, index: PortIndex, scope: Scope) -> Word {
        abi::decode_word(self.word_cell(index, scope).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Publishes a word by one aligned store: programs see the old list or the new one.
    pub(crate) fn publish_word(&self, index: PortIndex, scope: Scope, word: Word) {
        if let Some(cell) = self.word_cell(index, scope) {
            publish::publish_word(cell, word);
        }
    }

    pub(crate) fn facts(&self, index: PortIndex) -> PortFacts {
        abi::decode_facts(self.facts_cell(index).map_or(0, |facts| facts.load(Ordering::Relaxed)))
    }

    /// Writes the facts of a new or changed port, and resets its counts.
    pub(crate) fn write_facts(&self, index: PortIndex, facts: PortFacts) {
        self.counts().reset_port(index);
        if let Some(cell) = self.facts_cell(index) {
            cell.store(abi::encode_facts(facts), Ordering::Release);
        }
    }

    pub(crate) fn counts(&self) -> PortCounters {
        PortCounters::for_ports(&self.ports)
    }

    /// Writes a range that no word points to, and clears its remaining slots.
    pub(crate) fn fill_range(&self, range: SlotRange, slots: impl Iterator<Item = Slot>) {
        publish::fill_range(self.slots(range.family), range, slots);
    }

    /// Reads the backends that a word points to, without cleared slots and those beyond the array.
    pub(crate) fn read_list(&self, family: Family, word: Word) -> Vec<Slot> {
        let words = abi::slot_words(family);
        let from = word.base as usize * words;
        let cells = self.slots(family).get(from..from + word.count as usize * words);
        let loaded = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let slot = |cells: &[_]| abi::decode_slot(family, cells.iter().map(loaded));
        cells.unwrap_or_default().chunks_exact(words).filter_map(slot).collect()
    }

    /// The port indices that have a word or facts.
    pub(crate) fn iter_used_ports(&self) -> impl Iterator<Item = PortIndex> {
        let indices = (0..self.shape.ports).map(PortIndex);
        indices.filter(|index| {
            let empty = |scope| self.word(*index, scope) == Word::EMPTY;
            !(empty(Scope::Cluster) && empty(Scope::Local) && self.facts(*index) == PortFacts::default())
        })
    }

    /// The port index and slot reserved for the self-test.
    pub(crate) fn probe_slot(&self, family: Family) -> (PortIndex, SlotRange) {
        let [v4, v6] = self.shape.slots;
        let base = if family_index(family) == 0 { v4 } else { v6 };
        (PortIndex(self.shape.ports), SlotRange { family, base, count: PROBE_ENTRIES })
    }

    /// Copies everything into empty larger maps.
    pub(crate) fn copy_to(&self, next: &mut Self) -> Result<(), StartError> {
        // Indices and slots stay. The last of each belongs to the self-test, which has ended.
        let ports = self.shape.ports as usize;
        copy_words(&self.ports, &next.ports, ports * abi::PORT_WORDS);
        for family in Family::ALL {
            let (_, probe) = self.probe_slot(family);
            copy_words(self.slots(family), next.slots(family), probe.base as usize * abi::slot_words(family));
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

fn copy_words(from: &MappedArray, to: &MappedArray, words: usize) {
    for (from, to) in from.iter().zip(to.iter()).take(words) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    fence(Ordering::Release);
}
