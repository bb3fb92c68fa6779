//! Takes away the flows that have ended, on a thread of its own.
//!
//! Invariant: it works in slices and rests between them, so it takes no more of a processor than [`CLEAR_REST`] says, and it
//! shares nothing with the engine. What a program takes away at the same moment is the program's.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::flow_counts::Recount;
use super::lifetime::{EXPIRY_MARGIN, is_expired};
use super::port_usage::PortUsage;
use super::{FlowMaps, FlowSweepProgress, FlowTable, NOT_IDLE, ReservedPorts, refusals};
use crate::abi::flow::{translated_entry, types};
use crate::packets::AdoptedFlows;

/// A whole table is gone over in so many parts, one each second. Programs use no flow that has ended, so nothing but
/// its room waits for this.
const PARTS: u32 = 10;
const PART_REST: Duration = Duration::from_secs(1);

/// The time of one piece of work. The thread is never away from its stop for longer.
const SLICE: Duration = Duration::from_millis(5);

/// After a slice of work that leaves more to do, the thread rests so many times as long: it costs a tenth of a
/// processor at most.
const REST: u32 = 9;

/// How many records are looked at between two looks at the clock: with each of them ended, less than a millisecond.
pub(super) const RECORDS_PER_LOOK: u32 = 64;

/// How many numbers of records are handed out at once, while there are some left: some milliseconds.
const NUMBERS_AT_ONCE: u32 = 4096;

/// How many records are remembered at once that have lost their entry between backend and client and still stand, as
/// when a process is killed at that moment. More of them are found by the next pass.
pub(super) const ORPHANS_MAX: usize = 1024;

/// Seconds after which no program is still ending such a flow: that takes microseconds.
const ORPHAN_AFTER: u32 = 5;

/// A record without the entry that decides which side takes it away.
#[derive(Clone, Copy, Debug)]
struct OrphanRecord {
    serial: u32,
    since: u32,
    // When it was seen last.
    pass: u64,
}

/// Goes over the table again and again.
#[derive(Debug)]
pub(super) struct FlowSweep {
    table: FlowTable,
    // The next record to look at.
    at: u32,
    // How many flows had begun before this pass, and how many it has found.
    begun: u64,
    found: u64,
    port_usage: PortUsage,
    recount: Recount,
    // The records that are left without their entry, by their numbers.
    orphans: BTreeMap<u32, OrphanRecord>,
    // Of this pass.
    failure: Option<String>,
    // What the first pass has found so far; `None`: that pass is over.
    adopting: Option<AdoptedFlows>,
    // What the first pass has shown, until it is told.
    pub(super) adopted: Option<AdoptedFlows>,
    pub(super) swept: FlowSweepProgress,
}

impl FlowSweep {
    /// `progress` is what was done before, over another table.
    pub(super) fn new(table: FlowTable, swept: FlowSweepProgress) -> Self {
        let left = BTreeMap::new();
        let counting = PortUsage::default();
        let recount = Recount::default();
        let adopting = (swept.passes == 0).then(AdoptedFlows::default);
        Self {
            table,
            at: 0,
            begun: 0,
            found: 0,
            port_usage: counting,
            recount,
            orphans: left,
            failure: None,
            adopting,
            adopted: None,
            swept,
        }
    }

    /// Goes over one part of the table, or as much of it as fits before that time. `false`: the part is not done.
    pub(super) fn sweep_part(&mut self, count: u32, until: Instant) -> bool {
        let mut remaining = count;
        if self.at == 0 && !self.begin_pass() {
            return true;
        }
        while remaining > 0 {
            let from = self.at;
            let next = remaining.min(RECORDS_PER_LOOK);
            self.sweep_records(from, next);
            self.at = from.saturating_add(next);
            remaining -= next;
            if self.at >= self.table.capacity() {
                self.end_pass();
                return true;
            }
            if Instant::now() >= until {
                return remaining == 0;
            }
        }
        true
    }

    /// Hands out some numbers of records. `true`: the number of each record is in use, or can be had.
    fn release_numbers(&mut self) -> bool {
        self.table.release_numbers(NUMBERS_AT_ONCE).unwrap_or_else(|error| {
            self.failure = Some(format!("{error:#}"));
            true
        })
    }

    /// Begins a pass. `false`: there is nothing to look at.
    fn begin_pass(&mut self) -> bool {
        if self.table.is_idle() {
            self.swept.fullest = None;
            return false;
        }
        (self.begun, self.found) = (self.table.begun_count(), 0);
        true
    }

    fn sweep_records(&mut self, from: u32, count: u32) {
        let table = self.table.clone();
        let now = self.table.now();
        let FlowMaps { records, .. } = &*table.0;
        for (number, flow) in records.iter_range(from, count) {
            self.found += 1;
            self.recount.add_flow(&flow);
            if let Some(adopting) = &mut self.adopting {
                adopting.add_flow(&flow);
            }
            if !is_expired(&flow, now, EXPIRY_MARGIN) {
                refusals::record_refusal(&flow, now, &mut self.swept.backend_refusals);
                self.port_usage.add_flow(&flow);
                continue;
            }
            if let Err(error) = self.end_flow(number, &flow) {
                self.failure = Some(format!("{error:#}"));
            }
        }
    }

    /// Ends a flow that is too old, if it is still there and nothing else is ending it.
    pub(super) fn end_flow(&mut self, number: u32, flow: &types::flow) -> Result<(), libbpf_rs::Error> {
        if self.table.claim_flow(number, flow)? {
            self.table.finish_flow(number, flow)?;
            self.swept.ended += 1;
            return Ok(());
        }
        if self.table.0.records.holds_flow(number, flow) && self.track_orphan(number, flow.serial) {
            self.table.finish_flow(number, flow)?;
            self.swept.ended += 1;
            self.swept.taken_over += 1;
        }
        Ok(())
    }

    /// Whether that record has been without its entry for long.
    fn track_orphan(&mut self, number: u32, serial: u32) -> bool {
        let now = self.table.now();
        let pass = self.swept.passes;
        let known = self.orphans.get(&number).copied();
        let since = known.filter(|left| left.serial == serial).map_or(now, |left| left.since);
        if known.is_some() || self.orphans.len() < ORPHANS_MAX {
            self.orphans.insert(number, OrphanRecord { serial, since, pass });
        }
        now.saturating_sub(since) >= ORPHAN_AFTER
    }

    fn end_pass(&mut self) {
        self.at = 0;
        let still_since = if self.found == 0 { self.begun } else { NOT_IDLE };
        self.table.0.idle_since.store(still_since, Ordering::Relaxed);
        let pass = self.swept.passes;
        self.orphans.retain(|_, left| left.pass == pass);
        self.swept.failure = self.failure.take();
        self.swept.fullest = self.port_usage.take_fullest();
        refusals::expire_refusals(self.table.now(), &mut self.swept.backend_refusals);
        let begun = self.table.begun_count().saturating_sub(self.begun);
        self.recount.correct_counts(&self.table.0.shares, begun);
        self.swept.passes += 1;
        self.adopted = self.adopting.take().or(self.adopted.take());
    }
}

impl FlowTable {
    /// Deletes the entry between backend and client, by which a flow is claimed. `true`: this flow is ours to finish.
    pub(super) fn claim_flow(&self, number: u32, flow: &types::flow) -> Result<bool, libbpf_rs::Error> {
        let FlowMaps { records, entries, .. } = &*self.0;
        let key = translated_entry(flow);
        if !entries.remove(&key, number)? {
            return Ok(false);
        }
        if records.holds_flow(number, flow) {
            return Ok(true);
        }
        // A program ended it, and began another that looks the same in the same record.
        entries.insert(&key, number)?;
        Ok(false)
    }
}

/// What the thread has to tell.
#[derive(Debug, Default)]
struct SweepReport {
    swept: FlowSweepProgress,
    // What the first pass has shown, until the thread's owner has heard it.
    adopted: Option<AdoptedFlows>,
}

/// The thread, as its owner holds it.
#[derive(Debug)]
pub(crate) struct SweepThread {
    report: Arc<Mutex<SweepReport>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<ReservedPorts>>,
}

impl SweepThread {
    /// Starts the thread, which ends when this is dropped.
    pub(crate) fn start(
        table: FlowTable,
        kept_free: ReservedPorts,
        swept: FlowSweepProgress,
    ) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let told = Arc::<Mutex<SweepReport>>::default();
        let tells = Arc::clone(&told);
        let work = move || run_sweep(FlowSweep::new(table, swept), kept_free, &tells, &stopped);
        let thread = std::thread::Builder::new().name("flows".to_owned()).spawn(work)?;
        Ok(Self { report: told, stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the thread, and returns what it had; `None`: the thread had failed, so no port is kept free any more.
    pub(crate) fn stop(mut self) -> (Option<ReservedPorts>, FlowSweepProgress) {
        self.stop = None;
        let kept_free = self.thread.take().and_then(|thread| thread.join().ok());
        (kept_free, self.progress())
    }

    /// What it has done so far.
    pub(crate) fn progress(&self) -> FlowSweepProgress {
        lock_report(&self.report).swept.clone()
    }

    /// Where packets of the flows arrive that were there at the beginning. It is told once, when all of them have been
    /// looked at.
    pub(crate) fn take_adopted(&self) -> Option<AdoptedFlows> {
        lock_report(&self.report).adopted.take()
    }
}

impl Drop for SweepThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock_report(told: &Mutex<SweepReport>) -> MutexGuard<'_, SweepReport> {
    // Nothing in a change can panic half-way, so what is there is whole.
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn publish_report(sweep: &mut FlowSweep, told: &Mutex<SweepReport>) {
    let mut told = lock_report(told);
    told.swept = sweep.swept.clone();
    if let Some(adopted) = sweep.adopted.take() {
        told.adopted = Some(adopted);
    }
}

/// Sweeps until it is stopped. The first pass does not rest for a second after each part, because programs look at more
/// packets than they need to until that pass is over.
fn run_sweep(
    mut sweep: FlowSweep,
    mut kept_free: ReservedPorts,
    told: &Mutex<SweepReport>,
    stopped: &Receiver<()>,
) -> ReservedPorts {
    let part = sweep.table.capacity().div_ceil(PARTS);
    loop {
        let began = Instant::now();
        let until = began + SLICE;
        let is_done = sweep.sweep_part(part, until) && sweep.swept.passes > 0;
        let is_known = kept_free.check_if_due(began, until);
        (sweep.swept.reserved_ports, sweep.swept.reserved_ports_failure) = kept_free.status();
        sweep.swept.snat_ports = kept_free.port_count();
        publish_report(&mut sweep, told);
        let are_out = sweep.release_numbers();
        let rest = if is_done && is_known && are_out { PART_REST } else { began.elapsed() * REST };
        if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return kept_free;
        }
    }
}
