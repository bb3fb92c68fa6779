//! Removes expired flows, on its own thread.
//!
//! Invariant: it works in slices and rests as [`REST`] says, so its processor time is bounded. It shares nothing with
//! the engine. A flow that a program ends at the same moment belongs to the program.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdfast_status::datapath::{BackendRefusal, REFUSAL_SECONDS};

use super::flow_counts::Recount;
use super::lifetime::{EXPIRY_MARGIN, is_expired};
use super::port_usage::PortUsage;
use super::silences::SilentBackends;
use super::{FlowMaps, FlowSweepProgress, FlowTable, NOT_IDLE, ReservedPorts, refusals};
use crate::abi::flow::{translated_entry, types};
use crate::packets::AdoptedFlows;

/// A pass covers the table in so many parts, one per second. Programs use no expired flow, so only its space waits.
/// While backends refuse clients, a part is the whole table: the times of refusals are as old as a pass.
const PARTS: u32 = 10;
const PART_REST: Duration = Duration::from_secs(1);

/// The longest time of work between two looks at the stop signal.
const SLICE: Duration = Duration::from_millis(5);

/// After a slice with more to do, the thread rests so many times as long: it takes at most a tenth of a processor.
const REST: u32 = 9;

/// How many records are swept between two looks at the clock: less than a millisecond, even if all have expired.
pub(super) const RECORDS_PER_LOOK: u32 = 64;

/// How many record numbers are released at once, while some are left: some milliseconds.
const NUMBERS_AT_ONCE: u32 = 4096;

/// How many orphans are tracked at once: records without their translated entry, as a killed process leaves them. The
/// next pass finds the rest.
pub(super) const ORPHANS_MAX: usize = 1024;

/// Seconds after which no program is still ending such a flow: that takes microseconds.
const ORPHAN_AFTER: u32 = 5;

/// A record without its translated entry, which decides which side ends it.
#[derive(Clone, Copy, Debug)]
struct OrphanRecord {
    serial: u32,
    since: u32,
    // The pass that last saw it.
    pass: u64,
}

/// The sweep of the table, pass after pass.
#[derive(Debug)]
pub(super) struct FlowSweep {
    table: FlowTable,
    at: u32,
    // Where the part ends that is being swept.
    part_end: u32,
    // How many flows had begun before this pass, and how many it has found.
    begun: u64,
    found: u64,
    port_usage: PortUsage,
    recount: Recount,
    silences: SilentBackends,
    orphans: BTreeMap<u32, OrphanRecord>,
    failure: Option<String>,
    // The first pass's result so far; `None`: that pass is over.
    adopting: Option<AdoptedFlows>,
    // The first pass's result, until it is published.
    pub(super) adopted: Option<AdoptedFlows>,
    pub(super) swept: FlowSweepProgress,
}

impl FlowSweep {
    /// `swept` is the progress over a former table. What it knows of backends stays, until the daemon names those anew
    /// whose answers it asks for.
    pub(super) fn new(table: FlowTable, swept: FlowSweepProgress) -> Self {
        if !swept.answers.is_empty() {
            table.watch_answers(swept.answers.keys().copied().collect());
        }
        let port_usage = PortUsage::default();
        let recount = Recount::default();
        let adopting = (swept.passes == 0).then(AdoptedFlows::default);
        Self {
            table,
            at: 0,
            part_end: 0,
            begun: 0,
            found: 0,
            port_usage,
            recount,
            silences: SilentBackends::default(),
            orphans: BTreeMap::new(),
            failure: None,
            adopting,
            adopted: None,
            swept,
        }
    }

    /// Goes on with the part that is not complete, or begins one of so many records, as far as time allows. `false`:
    /// the part is not complete.
    pub(super) fn sweep_part(&mut self, count: u32, until: Instant) -> bool {
        if self.at == 0 && !self.begin_pass() {
            return true;
        }
        if self.at == 0 || self.at >= self.part_end {
            self.part_end = self.at.saturating_add(count);
        }
        while self.at < self.part_end {
            let from = self.at;
            let next = (self.part_end - from).min(RECORDS_PER_LOOK);
            self.sweep_records(from, next);
            self.at = from.saturating_add(next);
            if self.at >= self.table.capacity() {
                self.end_pass();
                return true;
            }
            if Instant::now() >= until {
                break;
            }
        }
        self.at >= self.part_end
    }

    /// Releases some record numbers. `true`: all are released.
    fn release_numbers(&mut self) -> bool {
        self.table.release_numbers(NUMBERS_AT_ONCE).unwrap_or_else(|error| {
            self.failure = Some(format!("{error:#}"));
            true
        })
    }

    /// How many records one part has.
    pub(super) fn part_size(&self) -> u32 {
        let now = self.table.now();
        let is_recent = |seen: &u32| now.saturating_sub(*seen) <= REFUSAL_SECONDS;
        let parts = if self.swept.backend_refusals.values().any(is_recent) { 1 } else { PARTS };
        self.table.capacity().div_ceil(parts)
    }

    fn begin_pass(&mut self) -> bool {
        if self.table.is_idle() {
            self.swept.fullest = None;
            self.update_failures();
            return false;
        }
        let refused = self.swept.backend_refusals.keys().map(BackendRefusal::backend);
        let silent = self.swept.silent_backends.keys().map(BackendRefusal::backend);
        let watched = self.table.lock_watched().clone();
        refusals::select_answers(refused.chain(silent).chain(watched), &mut self.swept.answers);
        let Self { swept: FlowSweepProgress { answers, unanswered, .. }, .. } = self;
        unanswered.retain(|backend, _| answers.contains_key(backend));
        (self.begun, self.found) = (self.table.begun_count(), 0);
        true
    }

    /// Forgets failures of long ago.
    fn update_failures(&mut self) {
        let now = self.table.now();
        refusals::expire_refusals(now, &mut self.swept.backend_refusals);
        self.swept.silent_backends = self.silences.end_pass(now, self.swept.passes);
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
            refusals::record_answer(&flow, &mut self.swept.answers);
            refusals::record_unanswered(&flow, now, &mut self.swept);
            if !is_expired(&flow, now, EXPIRY_MARGIN) {
                refusals::record_refusal(&flow, now, &mut self.swept.backend_refusals);
                self.silences.record_flow(&flow, now, self.swept.passes);
                self.port_usage.add_flow(&flow);
                continue;
            }
            if let Err(error) = self.end_flow(number, &flow) {
                self.failure = Some(format!("{error:#}"));
            }
        }
    }

    /// Ends an expired flow that still exists, unless a program is ending it.
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

    /// Whether the record has been an orphan for long enough.
    fn track_orphan(&mut self, number: u32, serial: u32) -> bool {
        let now = self.table.now();
        let pass = self.swept.passes;
        let known = self.orphans.get(&number).copied();
        let since = known.filter(|orphan| orphan.serial == serial).map_or(now, |orphan| orphan.since);
        if known.is_some() || self.orphans.len() < ORPHANS_MAX {
            self.orphans.insert(number, OrphanRecord { serial, since, pass });
        }
        now.saturating_sub(since) >= ORPHAN_AFTER
    }

    fn end_pass(&mut self) {
        self.at = 0;
        let idle_since = if self.found == 0 { self.begun } else { NOT_IDLE };
        self.table.0.idle_since.store(idle_since, Ordering::Relaxed);
        let pass = self.swept.passes;
        self.orphans.retain(|_, orphan| orphan.pass == pass);
        self.swept.failure = self.failure.take();
        self.swept.fullest = self.port_usage.take_fullest();
        self.update_failures();
        let begun = self.table.begun_count().saturating_sub(self.begun);
        self.recount.correct_counts(&self.table.0.shares, begun);
        self.swept.passes += 1;
        self.adopted = self.adopting.take().or(self.adopted.take());
    }
}

impl FlowTable {
    /// Claims a flow by deleting its translated entry. `true`: the caller must finish this flow.
    pub(super) fn claim_flow(&self, number: u32, flow: &types::flow) -> Result<bool, libbpf_rs::Error> {
        let FlowMaps { records, entries, .. } = &*self.0;
        let key = translated_entry(flow);
        if !entries.remove(&key, number)? {
            return Ok(false);
        }
        if records.holds_flow(number, flow) {
            return Ok(true);
        }
        // A program ended the flow, and opened an equal one in the same record.
        entries.insert(&key, number)?;
        Ok(false)
    }
}

#[derive(Debug, Default)]
struct SweepReport {
    swept: FlowSweepProgress,
    // The first pass's result, until the owner takes it.
    adopted: Option<AdoptedFlows>,
}

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
        reserved_ports: ReservedPorts,
        swept: FlowSweepProgress,
    ) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let report = Arc::<Mutex<SweepReport>>::default();
        let shared = Arc::clone(&report);
        let work = move || run_sweep(FlowSweep::new(table, swept), reserved_ports, &shared, &stopped);
        let thread = std::thread::Builder::new().name("flows".to_owned()).spawn(work)?;
        Ok(Self { report, stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the thread and returns its state. `None`: the thread failed, so no port is reserved any more.
    pub(crate) fn stop(mut self) -> (Option<ReservedPorts>, FlowSweepProgress) {
        self.stop = None;
        let reserved_ports = self.thread.take().and_then(|thread| thread.join().ok());
        (reserved_ports, self.progress())
    }

    pub(crate) fn progress(&self) -> FlowSweepProgress {
        lock_report(&self.report).swept.clone()
    }

    /// The ingress of the flows found at the start. Returned once, after the first pass.
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

fn lock_report(report: &Mutex<SweepReport>) -> MutexGuard<'_, SweepReport> {
    // No update can panic half-way, so the report is whole.
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

fn publish_report(sweep: &mut FlowSweep, report: &Mutex<SweepReport>) {
    let mut report = lock_report(report);
    report.swept = sweep.swept.clone();
    if let Some(adopted) = sweep.adopted.take() {
        report.adopted = Some(adopted);
    }
}

/// Sweeps until it is stopped. The first pass does not rest for a second after each part, because programs check more
/// packets until it is over.
fn run_sweep(
    mut sweep: FlowSweep,
    mut reserved_ports: ReservedPorts,
    report: &Mutex<SweepReport>,
    stopped: &Receiver<()>,
) -> ReservedPorts {
    loop {
        let began = Instant::now();
        let until = began + SLICE;
        let is_done = sweep.sweep_part(sweep.part_size(), until) && sweep.swept.passes > 0;
        let is_checked = reserved_ports.check_if_due(began, until);
        (sweep.swept.reserved_ports, sweep.swept.reserved_ports_failure) = reserved_ports.status();
        sweep.swept.snat_ports = reserved_ports.port_count();
        publish_report(&mut sweep, report);
        let are_released = sweep.release_numbers();
        let rest = if is_done && is_checked && are_released { PART_REST } else { began.elapsed() * REST };
        if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return reserved_ports;
        }
    }
}
