//! Flows on their way into a table of another size.
//!
//! Invariant: the table that they leave is only read, and programs go on using it. No program uses the other table yet:
//! that one follows what changes with each pass, and is the same after a pass during which no flow began and none
//! changed what leads to it. A flow that finds no room there is the least worth keeping, and is counted.

use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_status::datapath::EvictedFlows;
use libbpf_rs::{MapCore, MapFlags};

use super::eviction_rank::{self, EvictionRank};
use super::lifetime::is_expired;
use super::{FlowMaps, FlowTable};
use crate::abi::flow::{client_entry, is_decapsulated, nat_entry, translated_entry, types};

/// How many records are looked at between two looks at the clock.
const RECORDS_PER_LOOK: u32 = 64;

/// Where not all flows find room, at most so many of 16 parts of the new table are filled, so that clients that come
/// meanwhile find room.
const FILL_PARTS: u64 = 15;

/// The count of numbers that says that all are handed out: more than any table has.
const ALL_RELEASED: u64 = u32::MAX as u64;

/// The number of a flow that finds no room.
const NO_NUMBER: u32 = u32::MAX;

/// What has become of a flow, by the number that its record has in the old table.
#[derive(Clone, Copy, Debug, Default)]
struct Placement {
    // The serial of the flow; 0: there was no flow.
    serial: u32,
    number: u32,
}

/// The move of flows from one table into another one.
#[derive(Debug)]
pub(crate) struct FlowMigration {
    from: FlowTable,
    to: FlowTable,
    placements: Vec<Placement>,
    // The first number of the new table that no flow has had, and those that were given back.
    next: u32,
    free: Vec<u32>,
    // Where the pass is, and what it has changed so far.
    at: u32,
    changed: u64,
    evicted: EvictedFlows,
}

impl FlowMigration {
    /// Begins a move, and chooses the flows that find no room, where there is too little.
    pub(crate) fn new(from: FlowTable, to: FlowTable) -> Self {
        let placed = vec![Placement::default(); from.capacity() as usize];
        let given_up = EvictedFlows::default();
        let mut new = Self {
            from,
            to,
            placements: placed,
            next: 0,
            free: Vec::new(),
            at: 0,
            changed: 0,
            evicted: given_up,
        };
        new.choose_evicted();
        new
    }

    /// Chooses the flows that find no room: those that are given up most readily. In `all`, the readiness of a flow
    /// stands in the bits above its number.
    fn choose_evicted(&mut self) {
        let now = self.from.now();
        let records = &self.from.0.records;
        let ready = |(number, it): (u32, types::flow)| {
            u64::from(eviction_rank::eviction_score(&it, now)) << 32 | u64::from(number)
        };
        let mut all: Vec<u64> = records.iter_range(0, records.len()).map(ready).collect();
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
        if let Some(placed) = self.placements.get_mut(number as usize)
            && !is_expired(&it, now, 0)
        {
            *placed = Placement { serial: it.serial, number: NO_NUMBER };
            self.evicted.total += 1;
            self.evicted.in_use += u64::from(EvictionRank::from_flow(&it, now) == EvictionRank::Needed);
        }
    }

    /// Goes on with a pass, until that time at most. `Some`: the pass is over, and has changed so much.
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

    /// Makes the last pass, while no flow begins. What is gone leaves before anything comes, because another flow may
    /// have its entries.
    pub(crate) fn run_last_pass(&mut self) -> Result<(), libbpf_rs::Error> {
        for number in 0..self.from.capacity() {
            self.remove_gone(number)?;
        }
        for number in 0..self.from.capacity() {
            self.copy_flow(number)?;
        }
        self.write_backend_ports()
    }

    /// Takes a flow out of the new table if it is not in the old one any more.
    fn remove_gone(&mut self, number: u32) -> Result<(), libbpf_rs::Error> {
        let Some(placed) = self.placements.get_mut(number as usize).filter(|it| it.serial != 0) else {
            return Ok(());
        };
        if self.from.0.records.serial(number) == placed.serial {
            return Ok(());
        }
        let left = std::mem::take(placed);
        self.changed += 1;
        if left.number != NO_NUMBER
            && let Some(it) = self.to.0.records.read(left.number)
        {
            self.remove_flow(left.number, &it)?;
            self.free.push(left.number);
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

    /// Brings a flow to the new table, or what has changed of one that is there.
    fn copy_flow(&mut self, number: u32) -> Result<(), libbpf_rs::Error> {
        let Some(it) = self.from.0.records.read(number) else { return Ok(()) };
        match self.placements.get(number as usize).copied() {
            Some(Placement { serial, number: NO_NUMBER }) if serial == it.serial => {}
            Some(Placement { serial, number: there }) if serial == it.serial => {
                self.to.0.records.write(there, &it);
            }
            _ if is_expired(&it, self.from.now(), 0) => {}
            _ => return self.insert_flow(number, &it),
        }
        Ok(())
    }

    fn insert_flow(&mut self, number: u32, it: &types::flow) -> Result<(), libbpf_rs::Error> {
        let Some(there) = self.next_number() else {
            self.evict_flow(number);
            return Ok(());
        };
        self.to.0.records.write(there, it);
        if !self.insert_entries(number, there, it)? {
            // Another flow has just had the same client, and has not been seen to be over: the next pass sees it.
            self.remove_flow(there, it)?;
            self.free.push(there);
            return Ok(());
        }
        self.changed += 1;
        if let Some(placed) = self.placements.get_mut(number as usize) {
            *placed = Placement { serial: it.serial, number: there };
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

    /// Puts in the entries that lead to a flow, which had that number before. `false`: another flow has one of them.
    fn insert_entries(&self, before: u32, number: u32, it: &types::flow) -> Result<bool, libbpf_rs::Error> {
        let entries = &self.to.0.entries;
        let of_client = client_entry(it);
        let is_beside = is_decapsulated(it) && self.from.0.entries.get(&of_client)? != Some(before);
        let of_client = Some(of_client).filter(|_| !is_beside);
        for key in [Some(translated_entry(it)), nat_entry(it), of_client].iter().flatten() {
            if !entries.insert(key, number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes at which ports the backends of the flows in the new table are. The programs only ever add a port. This is
    /// the one moment at which no flow can begin, so here a port is left out that no flow has any more.
    fn write_backend_ports(&self) -> Result<(), libbpf_rs::Error> {
        let mut ports = vec![0_u8; self.to.0.ports.value_size() as usize];
        for (_, it) in self.to.0.records.iter_range(0, self.to.capacity()) {
            if let Some(is_set) = ports.get_mut(usize::from(it.backend_port)) {
                *is_set = 1;
            }
        }
        self.to.0.ports.update(&0_u32.to_ne_bytes(), &ports, MapFlags::ANY)
    }

    /// Notes that all numbers are handed out, so that a start after a crash hands out none of either table: some
    /// numbers are lost then, but no number is had by two flows.
    pub(crate) fn mark_all_released(&self) {
        if let Some(noted) = self.to.0.shares.released_numbers() {
            noted.store(ALL_RELEASED, Ordering::Release);
        }
    }

    /// Makes `count` more numbers available beside those that flows have, to be had as soon as the new table is in use.
    pub(crate) fn release_numbers(&mut self, count: u32) -> Result<(), libbpf_rs::Error> {
        let until = self.next.saturating_add(count).min(self.to.capacity());
        let free = std::mem::take(&mut self.free);
        (self.next..until).chain(free).try_for_each(|number| self.to.free_number(number))?;
        self.next = until;
        Ok(())
    }

    /// Notes how many numbers are handed out, now that the new table is in use. The rest of its numbers follows.
    pub(crate) fn record_released(&self) {
        if let Some(noted) = self.to.0.shares.released_numbers() {
            noted.store(self.next.into(), Ordering::Release);
        }
    }

    /// Takes the flows that found no room out of the counts, if they are still in the table that is no longer used, and
    /// returns how many found none.
    pub(crate) fn finish_counts(&self) -> EvictedFlows {
        for (number, placed) in (0..).zip(&self.placements).filter(|(_, placed)| placed.number == NO_NUMBER) {
            if let Some(it) = self.from.0.records.read(number).filter(|it| it.serial == placed.serial) {
                self.to.0.shares.subtract_flow(&it);
            }
        }
        self.evicted
    }

    pub(crate) fn table(&self) -> &FlowTable {
        &self.to
    }
}
