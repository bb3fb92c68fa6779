//! Takes away the flows that have ended, on a thread of its own.
//!
//! Invariant: it works in slices and rests between them, so it takes no more of a processor than [`REST`] says, and it
//! shares nothing with the engine. What a program takes away at the same moment is the program's.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fullest::Counting;
use super::life::{MARGIN, is_expired};
use super::shares::Recount;
use super::{FlowTable, FlowsSwept, KeptFree, Maps, NOT_STILL, refusing};
use crate::abi::flow::{entry_between, types};
use crate::packets::Adopted;

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
pub(super) const AT_ONCE: u32 = 64;

/// How many numbers of records are handed out at once, while there are some left: some milliseconds.
const NUMBERS_AT_ONCE: u32 = 4096;

/// How many records are remembered at once that have lost their entry between backend and client and still stand, as
/// when a process is killed at that moment. More of them are found by the next pass.
pub(super) const LEFT_MAX: usize = 1024;

/// Seconds after which no program is still ending such a flow: that takes microseconds.
const LEFT_AFTER: u32 = 5;

/// A record without the entry that decides which side takes it away.
#[derive(Clone, Copy, Debug)]
struct Left {
    serial: u32,
    since: u32,
    // When it was seen last.
    pass: u64,
}

/// Goes over the table again and again.
#[derive(Debug)]
pub(super) struct Sweep {
    table: FlowTable,
    // The next record to look at.
    at: u32,
    // How many flows had begun before this pass, and how many it has found.
    begun: u64,
    found: u64,
    counting: Counting,
    recount: Recount,
    // The records that are left without their entry, by their numbers.
    left: BTreeMap<u32, Left>,
    // Of this pass.
    failure: Option<String>,
    // What the first pass has found so far; `None`: that pass is over.
    adopting: Option<Adopted>,
    // What the first pass has shown, until it is told.
    pub(super) adopted: Option<Adopted>,
    pub(super) swept: FlowsSwept,
}

impl Sweep {
    /// `swept` is what was done before, over another table.
    pub(super) fn new(table: FlowTable, swept: FlowsSwept) -> Self {
        let left = BTreeMap::new();
        let counting = Counting::default();
        let recount = Recount::default();
        let adopting = (swept.passes == 0).then(Adopted::default);
        Self {
            table,
            at: 0,
            begun: 0,
            found: 0,
            counting,
            recount,
            left,
            failure: None,
            adopting,
            adopted: None,
            swept,
        }
    }

    /// Goes over one part of the table, or as much of it as fits before that time. `false`: the part is not done.
    pub(super) fn some(&mut self, count: u32, until: Instant) -> bool {
        let mut remaining = count;
        if self.at == 0 && !self.begin_pass() {
            return true;
        }
        while remaining > 0 {
            let from = self.at;
            let next = remaining.min(AT_ONCE);
            self.look_at(from, next);
            self.at = from.saturating_add(next);
            remaining -= next;
            if self.at >= self.table.max() {
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
    fn hand_out(&mut self) -> bool {
        self.table.hand_out(NUMBERS_AT_ONCE).unwrap_or_else(|error| {
            self.failure = Some(format!("{error:#}"));
            true
        })
    }

    /// Begins a pass. `false`: there is nothing to look at.
    fn begin_pass(&mut self) -> bool {
        if self.table.is_still() {
            self.swept.fullest = None;
            return false;
        }
        (self.begun, self.found) = (self.table.begun(), 0);
        true
    }

    fn look_at(&mut self, from: u32, count: u32) {
        let table = self.table.clone();
        let now = self.table.now();
        let Maps { records, .. } = &*table.0;
        for (number, flow) in records.some(from, count) {
            self.found += 1;
            self.recount.add(&flow);
            if let Some(adopting) = &mut self.adopting {
                adopting.add(&flow);
            }
            if !is_expired(&flow, now, MARGIN) {
                refusing::note(&flow, now, &mut self.swept.refusing);
                self.counting.add(&flow);
                continue;
            }
            if let Err(error) = self.end(number, &flow) {
                self.failure = Some(format!("{error:#}"));
            }
        }
    }

    /// Ends a flow that is too old, if it is still there and nothing else is ending it.
    pub(super) fn end(&mut self, number: u32, flow: &types::flow) -> Result<(), libbpf_rs::Error> {
        if self.table.claim(number, flow)? {
            self.table.finish(number, flow)?;
            self.swept.ended += 1;
            return Ok(());
        }
        if self.table.0.records.is_of(number, flow) && self.is_left(number, flow.serial) {
            self.table.finish(number, flow)?;
            self.swept.ended += 1;
            self.swept.left += 1;
        }
        Ok(())
    }

    /// Whether that record has been without its entry for long.
    fn is_left(&mut self, number: u32, serial: u32) -> bool {
        let now = self.table.now();
        let pass = self.swept.passes;
        let known = self.left.get(&number).copied();
        let since = known.filter(|left| left.serial == serial).map_or(now, |left| left.since);
        if known.is_some() || self.left.len() < LEFT_MAX {
            self.left.insert(number, Left { serial, since, pass });
        }
        now.saturating_sub(since) >= LEFT_AFTER
    }

    fn end_pass(&mut self) {
        self.at = 0;
        let still_since = if self.found == 0 { self.begun } else { NOT_STILL };
        self.table.0.still_since.store(still_since, Ordering::Relaxed);
        let pass = self.swept.passes;
        self.left.retain(|_, left| left.pass == pass);
        self.swept.failure = self.failure.take();
        self.swept.fullest = self.counting.take();
        refusing::forget(self.table.now(), &mut self.swept.refusing);
        let begun = self.table.begun().saturating_sub(self.begun);
        self.recount.conclude(&self.table.0.shares, begun);
        self.swept.passes += 1;
        self.adopted = self.adopting.take().or(self.adopted.take());
    }
}

impl FlowTable {
    /// Deletes the entry between backend and client, by which a flow is claimed. `true`: this flow is ours to finish.
    pub(super) fn claim(&self, number: u32, flow: &types::flow) -> Result<bool, libbpf_rs::Error> {
        let Maps { records, entries, .. } = &*self.0;
        let key = entry_between(flow);
        if !entries.remove(&key, number)? {
            return Ok(false);
        }
        if records.is_of(number, flow) {
            return Ok(true);
        }
        // A program ended it, and began another that looks the same in the same record.
        entries.insert(&key, number)?;
        Ok(false)
    }
}

/// What the thread has to tell.
#[derive(Debug, Default)]
struct Told {
    swept: FlowsSwept,
    // What the first pass has shown, until the thread's owner has heard it.
    adopted: Option<Adopted>,
}

/// The thread, as its owner holds it.
#[derive(Debug)]
pub(crate) struct Sweeping {
    told: Arc<Mutex<Told>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<KeptFree>>,
}

impl Sweeping {
    /// Starts the thread, which ends when this is dropped.
    pub(crate) fn start(table: FlowTable, kept_free: KeptFree, swept: FlowsSwept) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let told = Arc::<Mutex<Told>>::default();
        let tells = Arc::clone(&told);
        let work = move || run(Sweep::new(table, swept), kept_free, &tells, &stopped);
        let thread = std::thread::Builder::new().name("flows".to_owned()).spawn(work)?;
        Ok(Self { told, stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the thread, and returns what it had; `None`: the thread had failed, so no port is kept free any more.
    pub(crate) fn stop(mut self) -> (Option<KeptFree>, FlowsSwept) {
        self.stop = None;
        let kept_free = self.thread.take().and_then(|thread| thread.join().ok());
        (kept_free, self.swept())
    }

    /// What it has done so far.
    pub(crate) fn swept(&self) -> FlowsSwept {
        locked(&self.told).swept.clone()
    }

    /// Where packets of the flows arrive that were there at the beginning. It is told once, when all of them have been
    /// looked at.
    pub(crate) fn adopted(&self) -> Option<Adopted> {
        locked(&self.told).adopted.take()
    }
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn locked(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    // Nothing in a change can panic half-way, so what is there is whole.
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(sweep: &mut Sweep, told: &Mutex<Told>) {
    let mut told = locked(told);
    told.swept = sweep.swept.clone();
    if let Some(adopted) = sweep.adopted.take() {
        told.adopted = Some(adopted);
    }
}

/// Sweeps until it is stopped. The first pass does not rest for a second after each part, because programs look at more
/// packets than they need to until that pass is over.
fn run(mut sweep: Sweep, mut kept_free: KeptFree, told: &Mutex<Told>, stopped: &Receiver<()>) -> KeptFree {
    let part = sweep.table.max().div_ceil(PARTS);
    loop {
        let began = Instant::now();
        let until = began + SLICE;
        let is_done = sweep.some(part, until) && sweep.swept.passes > 0;
        let is_known = kept_free.follow(began, until);
        (sweep.swept.kept_free, sweep.swept.kept_free_failure) = kept_free.state();
        sweep.swept.snat_ports = kept_free.ports();
        tell(&mut sweep, told);
        let are_out = sweep.hand_out();
        let rest = if is_done && is_known && are_out { PART_REST } else { began.elapsed() * REST };
        if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return kept_free;
        }
    }
}
