//! Copies flows into a table of another size.
//!
//! Invariant: the old table is only read, and programs keep using it. No program uses the new table yet: each pass
//! copies changes into it. It is equal after a pass during which no flow began and no entry changed. Without space for
//! all, flows are evicted by rank and counted.

use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_status::datapath::EvictedFlows;
use libbpf_rs::{MapCore, MapFlags};

use super::eviction_rank::{self, EvictionRank};
use super::lifetime::is_expired;
use super::{FlowMaps, FlowTable};
use crate::abi::flow::{client_entry, is_decapsulated, nat_entry, translated_entry, types};

/// How many records are copied between two looks at the clock.
const RECORDS_PER_LOOK: u32 = 64;

/// If not all flows fit, at most so many sixteenths of the new table are filled, so that new clients find space.
const FILL_PARTS: u64 = 15;

/// The count that marks all numbers as released: more than any table has.
const ALL_RELEASED: u64 = u32::MAX as u64;

/// The number of an evicted flow.
const NO_NUMBER: u32 = u32::MAX;

/// The new number of a flow, indexed by its number in the old table.
#[derive(Clone, Copy, Debug, Default)]
struct Placement {
    // The flow's serial; 0: there is no flow.
    serial: u32,
    number: u32,
}

#[derive(Debug)]
pub(crate) struct FlowMigration {
    from: FlowTable,
    to: FlowTable,
    placements: Vec<Placement>,
    // The first number of the new table that no flow has had, and the numbers given back.
    next: u32,
    free: Vec<u32>,
    // The position of the pass, and how many changes it has made.
    at: u32,
    changed: u64,
    evicted: EvictedFlows,
}

impl FlowMigration {
    /// Begins a migration, and chooses the flows to evict if the new table is too small.
    pub(crate) fn new(from: FlowTable, to: FlowTable) -> Self {
        let placements = vec![Placement::default(); from.capacity() as usize];
        let mut new = Self {
            from,
            to,
            placements,
            next: 0,
            free: Vec::new(),
            at: 0,
            changed: 0,
            evicted: EvictedFlows::default(),
        };
        new.choose_evicted();
        new
    }

    /// Chooses the flows to evict, by their scores. In `all`, a flow's score takes the bits above its number.
    fn choose_evicted(&mut self) {
        let now = self.from.now();
        let records = &self.from.0.records;
        let score = |(number, it): (u32, types::flow)| {
            u64::from(eviction_rank::eviction_score(&it, now)) << 32 | u64::from(number)
        };
        let mut all: Vec<u64> = records.iter_range(0, records.len()).map(score).collect();
        let most = usize::try_from(u64::from(self.to.capacity()) * FILL_PARTS / 16).unwrap_or(usize::MAX);
        if all.len() <= most {
            return;
        }
        all.select_nth_unstable(most);
        for it in all.iter().skip(most) {
            self.evict_flow(u32::try_from(*it & u64::from(u32::MAX)).unwrap_or(NO_NUMBER));
        }
    }

    fn evict_flow(&mut self, number: u32) {
        let Some(it) = self.from.0.records.read(number) else { return };
        let now = self.from.now();
        if let Some(placement) = self.placements.get_mut(number as usize)
            && !is_expired(&it, now, 0)
        {
            *placement = Placement { serial: it.serial, number: NO_NUMBER };
            self.evicted.total += 1;
            self.evicted.in_use += u64::from(EvictionRank::from_flow(&it, now) == EvictionRank::Needed);
        }
    }

    /// Continues a pass until that time. `Some`: the pass is over, with so many changes.
    pub(crate) fn run_pass(&mut self, until: Instant) -> Result<Option<u64>, libbpf_rs::Error> {
        while self.at < self.from.capacity() {
            let from = self.at;
            self.at = from.saturating_add(RECORDS_PER_LOOK).min(self.from.capacity());
            for number in from..self.at {
                self.remove_gone(number)?;
                self.copy_flow(number)?;
            }
            if Instant::now() >= until {
                break;
            }
        }
        let is_over = self.at >= self.from.capacity();
        Ok(is_over.then(|| {
            self.at = 0;
            std::mem::take(&mut self.changed)
        }))
    }

    /// Makes the last pass, while no flow begins. It removes all ended flows first, because other flows may reuse their
    /// entries.
    pub(crate) fn run_last_pass(&mut self) -> Result<(), libbpf_rs::Error> {
        for number in 0..self.from.capacity() {
            self.remove_gone(number)?;
        }
        for number in 0..self.from.capacity() {
            self.copy_flow(number)?;
        }
        self.write_backend_ports()
    }

    /// Removes a flow from the new table if the old one no longer has it.
    fn remove_gone(&mut self, number: u32) -> Result<(), libbpf_rs::Error> {
        let Some(placement) = self.placements.get_mut(number as usize).filter(|it| it.serial != 0) else {
            return Ok(());
        };
        if self.from.0.records.serial(number) == placement.serial {
            return Ok(());
        }
        let former = std::mem::take(placement);
        self.changed += 1;
        if former.number != NO_NUMBER
            && let Some(it) = self.to.0.records.read(former.number)
        {
            self.remove_flow(former.number, &it)?;
            self.free.push(former.number);
        }
        Ok(())
    }

    fn remove_flow(&self, number: u32, it: &types::flow) -> Result<(), libbpf_rs::Error> {
        let FlowMaps { records, entries, .. } = &*self.to.0;
        for key in [Some(client_entry(it)), nat_entry(it), Some(translated_entry(it))].iter().flatten() {
            entries.remove(key, number)?;
        }
        records.free(number);
        Ok(())
    }

    /// Copies a flow into the new table, or updates its copy.
    fn copy_flow(&mut self, number: u32) -> Result<(), libbpf_rs::Error> {
        let Some(it) = self.from.0.records.read(number) else { return Ok(()) };
        match self.placements.get(number as usize).copied() {
            Some(Placement { serial, number: NO_NUMBER }) if serial == it.serial => {}
            Some(Placement { serial, number: copy }) if serial == it.serial => {
                self.to.0.records.write(copy, &it);
            }
            _ if is_expired(&it, self.from.now(), 0) => {}
            _ => return self.insert_flow(number, &it),
        }
        Ok(())
    }

    fn insert_flow(&mut self, number: u32, it: &types::flow) -> Result<(), libbpf_rs::Error> {
        let Some(new) = self.next_number() else {
            self.evict_flow(number);
            return Ok(());
        };
        self.to.0.records.write(new, it);
        if !self.insert_entries(number, new, it)? {
            // Another flow that just ended had the same client. The next pass sees its end.
            self.remove_flow(new, it)?;
            self.free.push(new);
            return Ok(());
        }
        self.changed += 1;
        if let Some(placement) = self.placements.get_mut(number as usize) {
            *placement = Placement { serial: it.serial, number: new };
        }
        Ok(())
    }

    fn next_number(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = Some(self.next).filter(|number| *number < self.to.capacity())?;
        self.next += 1;
        Some(number)
    }

    /// Inserts the entries of a flow; its old number is `before`. `false`: another flow owns one of them.
    fn insert_entries(&self, before: u32, number: u32, it: &types::flow) -> Result<bool, libbpf_rs::Error> {
        let entries = &self.to.0.entries;
        let client_key = client_entry(it);
        let is_shadowed = is_decapsulated(it) && self.from.0.entries.get(&client_key)? != Some(before);
        let client_key = Some(client_key).filter(|_| !is_shadowed);
        for key in [Some(translated_entry(it)), nat_entry(it), client_key].iter().flatten() {
            if !entries.insert(key, number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the ports of all backends with flows in the new table. Programs only add ports. This is the only moment
    /// without new flows, so unused ports are dropped here.
    fn write_backend_ports(&self) -> Result<(), libbpf_rs::Error> {
        let mut ports = vec![0_u8; self.to.0.ports.value_size() as usize];
        for (_, it) in self.to.0.records.iter_range(0, self.to.capacity()) {
            if let Some(is_set) = ports.get_mut(usize::from(it.backend_port)) {
                *is_set = 1;
            }
        }
        self.to.0.ports.update(&0_u32.to_ne_bytes(), &ports, MapFlags::ANY)
    }

    /// Marks all numbers as released, so that a start after a crash releases none of either table. Some numbers are
    /// lost then, but no two flows get the same one.
    pub(crate) fn mark_all_released(&self) {
        if let Some(released) = self.to.0.shares.released_numbers() {
            released.store(ALL_RELEASED, Ordering::Release);
        }
    }

    /// Releases `count` more numbers, for use as soon as programs use the new table.
    pub(crate) fn release_numbers(&mut self, count: u32) -> Result<(), libbpf_rs::Error> {
        let until = self.next.saturating_add(count).min(self.to.capacity());
        let free = std::mem::take(&mut self.free);
        (self.next..until).chain(free).try_for_each(|number| self.to.free_number(number))?;
        self.next = until;
        Ok(())
    }

    /// Stores how many numbers are released, once programs use the new table. The rest follows.
    pub(crate) fn record_released(&self) {
        if let Some(released) = self.to.0.shares.released_numbers() {
            released.store(self.next.into(), Ordering::Release);
        }
    }

    /// Subtracts evicted flows that are still in the old table from the counts, and returns how many were evicted.
    pub(crate) fn finish_counts(&self) -> EvictedFlows {
        for (number, placement) in
            (0..).zip(&self.placements).filter(|(_, placement)| placement.number == NO_NUMBER)
        {
            if let Some(it) = self.from.0.records.read(number).filter(|it| it.serial == placement.serial) {
                self.to.0.shares.subtract_flow(&it);
            }
        }
        self.evicted
    }

    pub(crate) fn table(&self) -> &FlowTable {
        &self.to
    }
}
