//! The engine's loop: takes batches of events, and publishes snapshots and change records.
//!
//! Invariant: an idle engine applies a group at once. Under load it takes what has queued up meanwhile, up to a
//! bound, so the last write of an object wins and the batch stays short. Events come first, then dirty services, then
//! queries, so no query delays a change. Long upkeep of the maps runs in pieces between these, and takes at most half
//! of the time while they wait. There is no fixed delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::maps::Maps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::query::{self, EngineQuery, MapChecks};
use super::steps::StepMetrics;
use crate::recorder::TimedChange;
use holdfast_host::clock::since_boot;
use holdfast_host::headroom::Headroom;

/// The most groups that may wait for the engine. A faster source waits, and reads its own input later.
pub const GROUPS_WAITING_MAX: usize = 64;

/// The most change records that may wait for the recorder. Further ones are counted, never waited for.
pub const CHANGES_WAITING_MAX: usize = 65_536;

/// The most memory of those records. The record of a small service's change takes a kilobyte, that of a service with
/// a thousand frontends some hundred kilobytes. So this holds a tenth of a second of the heaviest changes, and many
/// small ones.
pub const CHANGES_BYTES_MAX: usize = 64 << 20;

/// The most events of a batch; a large object counts as several, and a group is taken whole. The data that a batch of
/// this size touches fits a core's own cache, and is applied within a few milliseconds.
const BATCH_EVENTS_MAX: usize = 1_024;

/// How many ports, addresses or endpoints of an object count as one more event: the engine compares each of them.
const PARTS_PER_EVENT: usize = 32;

/// How often the maps are compared with the realized state. With 10,000 services that takes some milliseconds.
const CHECK: Duration = Duration::from_secs(60);

/// How often an idle engine wakes, so that its progress can be watched.
pub(super) const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct EngineChannels {
    /// Groups of events; each is applied as a whole.
    pub events: mpsc::Receiver<Vec<Event>>,
    /// The snapshot that readers see.
    pub snapshots: watch::Sender<Arc<Snapshot>>,
    pub queries: mpsc::Receiver<EngineQuery>,
    /// Where change records go.
    pub changes: mpsc::Sender<TimedChange>,
    /// Milliseconds since the loop's start at the last time when no event waited or one was taken, for the liveness
    /// check.
    pub progress: Arc<AtomicU64>,
    /// The engine's metrics, for pages and `/metrics`.
    pub steps: Arc<StepMetrics>,
    /// The loop ends when this turns true.
    pub stop: watch::Receiver<bool>,
}

/// Maintenance of the maps, besides the engine's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Inspect everything, about once a second.
    Inspect,
    /// Continue the work that an inspection found, for a piece of some milliseconds.
    Continue,
}

#[derive(Debug, Default)]
struct UpkeepSchedule {
    is_left: bool,
    // When the last piece ended, and how long it took.
    last: Option<(Instant, Duration)>,
    // When the last inspection was.
    looked_at: Option<Instant>,
}

impl UpkeepSchedule {
    /// Whether a piece is due. If events or services wait, they get as much time as the last piece took.
    fn is_due(&self, is_busy: bool, now: Instant) -> bool {
        self.is_left && !(is_busy && self.last.is_some_and(|(ended, took)| now - ended < took))
    }

    fn is_check_due(&self) -> bool {
        self.looked_at.is_none_or(|looked| looked.elapsed() >= IDLE)
    }

    /// The upkeep to do now.
    fn next(&self, is_look: bool, is_busy: bool) -> Option<Upkeep> {
        let is_due = self.is_due(is_busy, Instant::now());
        if is_look { Some(Upkeep::Inspect) } else { is_due.then_some(Upkeep::Continue) }
    }

    /// How long an otherwise idle engine rests.
    fn rest_time(&self) -> Duration {
        if self.is_left { Duration::ZERO } else { IDLE }
    }

    /// Runs some upkeep, and records whether more is left.
    fn run_upkeep(&mut self, upkeep: Upkeep, act: impl FnOnce() -> bool) {
        let begun = Instant::now();
        self.is_left = act();
        let ended = Instant::now();
        self.last = Some((ended, begun.elapsed()));
        self.looked_at = Some(ended).filter(|_| upkeep == Upkeep::Inspect).or(self.looked_at);
    }
}

/// Runs the engine until `stop`, or until every source is gone. The maps stay as they are. `look_after` gets the
/// engine for an inspection about once a second, between two steps, and as soon as the first full write is done:
/// other programs may wait for that. It returns whether work is left, and then gets the engine for pieces.
pub async fn run<M: Maps>(
    mut engine: Engine<M>,
    mut ends: EngineChannels,
    mut look_after: impl FnMut(&mut Engine<M>, Upkeep) -> bool,
) -> Engine<M> {
    let started = Instant::now();
    let mut changes = ChangeQueue { headroom: Headroom::new(CHANGES_BYTES_MAX), dropped: 0 };
    let mut checks = MapChecks::default();
    let (mut checked, mut asked) = (started, started);
    let mut was_written = false;
    let mut pieces = UpkeepSchedule::default();
    loop {
        let due = engine.next_due(started.elapsed()).map(|due| due.saturating_sub(started.elapsed()));
        ends.note_if_idle(!was_written || due.is_some_and(|due| due.is_zero()));
        let is_overdue = asked.elapsed() >= query::WAIT_MAX;
        let rests = (due.unwrap_or(IDLE), pieces.rest_time());
        let turn = next_turn(&mut ends, rests, is_overdue, checks.is_running()).await;
        let moves = matches!(turn, EngineTurn::Group(_)) || ends.events.is_empty();
        match turn {
            EngineTurn::End => return engine,
            EngineTurn::Group(group) => apply_groups(&mut engine, group, &mut ends),
            EngineTurn::Idle(ask) => {
                checks.continue_check(&mut engine);
                ask.into_iter().for_each(|ask| ask.answer(&mut engine, &mut checks));
                asked = Instant::now();
            }
            EngineTurn::Due => {}
        }
        if ends.queries.is_empty() && !checks.is_running() {
            asked = Instant::now();
        }
        ends.run_step(&mut engine, started, &mut changes);
        let is_first = !was_written && engine.has_initial_state();
        was_written |= is_first;
        let is_look = checks.take_upkeep_due() || is_first || pieces.is_check_due();
        let is_busy = !ends.events.is_empty() || is_due(&engine, started.elapsed());
        if let Some(upkeep) = pieces.next(is_look, is_busy) {
            pieces.run_upkeep(upkeep, || look_after(&mut engine, upkeep));
        }
        if checked.elapsed() >= CHECK {
            checks.begin_check(&mut engine);
            checked = Instant::now();
        }
        if moves {
            ends.note_progress(started);
        }
    }
}

/// Whether the engine has work although no event came.
fn is_due<M: Maps>(engine: &Engine<M>, now: Duration) -> bool {
    engine.next_due(now).is_some_and(|due| due <= now)
}

/// The memory of change records, and how many records did not fit.
struct ChangeQueue {
    headroom: Headroom,
    dropped: u64,
}

impl EngineChannels {
    fn run_step<M: Maps>(&self, engine: &mut Engine<M>, started: Instant, changes: &mut ChangeQueue) {
        let at = SystemTime::now();
        let mono = since_boot();
        let begun = Instant::now();
        let mut snapshot = engine.step(build_now(started, at), &mut |change| {
            self.steps.programming_latency.record_change(&change, SystemTime::now(), started.elapsed());
            let room = changes.headroom.reserve(change.bytes());
            let timed = TimedChange { change, at, mono, elapsed: begun.elapsed(), reservation: room };
            changes.dropped +=
                u64::from(timed.reservation.is_none() || self.changes.try_send(timed).is_err());
        });
        let counters = &mut Arc::make_mut(&mut snapshot).counters;
        counters.changes_dropped = changes.dropped;
        self.steps.record_step(counters, begun.elapsed());
        self.publish(snapshot);
    }

    /// Records that the engine made progress just now.
    fn note_progress(&self, started: Instant) {
        let now = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Publishes a snapshot. Readers that look see the latest one, but only a change wakes those that wait: on an
    /// idle node, waking all readers each second would be a third of all work.
    fn publish(&self, snapshot: Arc<Snapshot>) {
        self.snapshots.send_if_modified(|before| {
            let is_news = snapshot.differs_from(before);
            *before = snapshot;
            is_news
        });
    }

    /// Records that the maps are complete: nothing waits to be applied, written or retried, except what exceeds a
    /// namespace's quota.
    fn note_if_idle(&self, is_due: bool) {
        if !is_due && self.events.is_empty() && self.snapshots.borrow().fill.failing == 0 {
            self.steps.note_caught_up();
        }
    }
}

enum EngineTurn {
    End,
    Group(Vec<Event>),
    /// Time for a query, if any, and for the comparison.
    Idle(Option<EngineQuery>),
    Due,
}

/// The next turn. Events come before everything else, dirty services before queries, unless a query has waited too
/// long, and all of these before the end of a rest.
async fn next_turn(
    ends: &mut EngineChannels,
    (due, rest): (Duration, Duration),
    is_overdue: bool,
    is_checking: bool,
) -> EngineTurn {
    if *ends.stop.borrow() {
        return EngineTurn::End;
    }
    if is_overdue {
        return EngineTurn::Idle(next_query(&mut ends.queries));
    }
    match ends.events.try_recv() {
        Ok(group) => return EngineTurn::Group(group),
        Err(TryRecvError::Disconnected) => return EngineTurn::End,
        Err(TryRecvError::Empty) if due.is_zero() => {
            // Other tasks of this thread go first, too.
            tokio::task::yield_now().await;
            return EngineTurn::Due;
        }
        Err(TryRecvError::Empty) => {}
    }
    let ask = next_query(&mut ends.queries);
    if ask.is_some() || is_checking {
        return EngineTurn::Idle(ask);
    }
    tokio::select! {
        biased;
        _ = ends.stop.wait_for(|stop| *stop) => EngineTurn::End,
        group = ends.events.recv() => group.map_or(EngineTurn::End, EngineTurn::Group),
        Some(ask) = ends.queries.recv() => EngineTurn::Idle(Some(ask).filter(|ask| !ask.is_abandoned())),
        () = tokio::time::sleep(due.min(rest)) => EngineTurn::Due,
    }
}

/// The next query with a client that still waits.
fn next_query(asks: &mut mpsc::Receiver<EngineQuery>) -> Option<EngineQuery> {
    while let Ok(ask) = asks.try_recv() {
        if !ask.is_abandoned() {
            return Some(ask);
        }
    }
    None
}

/// Takes a group and everything else that has queued up, whole groups only.
fn apply_groups<M: Maps>(engine: &mut Engine<M>, first: Vec<Event>, ends: &mut EngineChannels) {
    ends.steps.note_events();
    let mut taken = 0;
    let mut group = Some(first);
    while let Some(events) = group {
        for event in events {
            taken += event_weight(&event);
            engine.apply(event);
        }
        group = if taken < BATCH_EVENTS_MAX { ends.events.try_recv().ok() } else { None };
    }
}

/// The number of events that an object counts as.
fn event_weight(event: &Event) -> usize {
    let parts = match event {
        Event::ServiceApplied(facts) => facts.ports.len() + facts.external_ips.len() + facts.ingress.len(),
        Event::SliceApplied(facts) => facts.endpoints.len().saturating_mul(facts.ports.len().max(1)),
        _ => 0,
    };
    1 + parts / PARTS_PER_EVENT
}

fn build_now(started: Instant, at: SystemTime) -> ClockReading {
    let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let wall = Timestamp(i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX));
    ClockReading { wall, mono: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock;

    use super::*;

    #[test]
    fn upkeep_takes_at_most_half_of_the_time_while_events_wait() {
        let (ended, took) = (clock::now().into(), Duration::from_secs(7));
        let schedule = |is_left| UpkeepSchedule { is_left, last: Some((ended, took)), looked_at: None };
        let almost = ended + took - Duration::from_millis(1);
        assert!(!schedule(true).is_due(true, almost), "the last piece took as long");
        assert!(schedule(true).is_due(false, almost), "nothing else waits");
        assert!(schedule(true).is_due(true, ended + took));
        assert!(!schedule(false).is_due(false, ended + took));
    }
}
