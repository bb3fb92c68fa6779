//! The engine's loop: it takes batches of events, and gives snapshots and change records.
//!
//! Invariant: an idle engine applies a group at once; under load it takes what has queued up meanwhile, up to a bound,
//! so the last write of an object wins and the batch stays short. Events come first, then dirty services, then
//! questions, so no question can hold up a change. Upkeep of the maps that takes long is done in pieces between these,
//! and takes at most half of the time while they wait. There is no fixed delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::maps::Maps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};

use super::ask::{self, Ask, Checks};
use super::steps::Steps;
use crate::recorder::TimedChange;
use holdfast_host::clock::since_boot;
use holdfast_host::room::Room;

/// Groups that may wait for the engine. A source that is faster waits, and reads its own input later.
pub const GROUPS_WAITING_MAX: usize = 64;

/// Change records that may wait for the recorder. What does not fit is counted, never waited for.
pub const CHANGES_WAITING_MAX: usize = 65_536;

/// The most memory that those records keep together. The record of a change to a small service keeps a kilobyte, that
/// of one with a thousand frontends some hundred kilobytes of before and after. So this is a tenth of a second of the
/// heaviest changes, and many small ones.
pub const CHANGES_BYTES_MAX: usize = 64 << 20;

/// How many events a batch has at most; a large object counts as several, and a group is taken whole, however large it
/// is. The data that a batch of this size touches fits a core's own cache, and is taken in within a few milliseconds.
const BATCH_EVENTS_MAX: usize = 1_024;

/// How many ports, addresses or endpoints of an object count as one more event: they are compared with those before.
const PARTS_PER_EVENT: usize = 32;

/// How often the maps are compared with what was realized. With 10,000 services that takes some milliseconds.
const CHECK: Duration = Duration::from_secs(60);

/// An engine with nothing to do looks at the time this often, so that its progress can be watched.
const IDLE: Duration = Duration::from_secs(1);

/// What the engine's loop talks to.
#[derive(Debug)]
pub struct Ends {
    /// Groups of events; each is applied whole.
    pub events: mpsc::Receiver<Vec<Event>>,
    /// Where readers look.
    pub snapshots: watch::Sender<Arc<Snapshot>>,
    /// What only the engine can answer.
    pub asks: mpsc::Receiver<Ask>,
    /// Where change records go.
    pub changes: mpsc::Sender<TimedChange>,
    /// Milliseconds since the loop's start at the last time when no event waited or one was taken, for the watcher that
    /// checks that events move.
    pub progress: Arc<AtomicU64>,
    /// How the engine's work goes, for pages and metrics.
    pub steps: Arc<Steps>,
    /// The loop ends when this turns true.
    pub stop: watch::Receiver<bool>,
}

/// What keeps the maps well, beside the writes of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Everything is looked at, about once a second.
    Look,
    /// What a look has found to be done goes on for a piece of some milliseconds.
    Piece,
}

/// Upkeep that is left, and when more of it is due.
#[derive(Debug, Default)]
struct Pieces {
    is_left: bool,
    // When the last piece ended, and how long it took.
    last: Option<(Instant, Duration)>,
    // When everything was looked at last.
    looked: Option<Instant>,
}

impl Pieces {
    /// Whether a piece is due. Where events or services wait, as much time is theirs as the last piece took.
    fn is_due(&self, is_busy: bool) -> bool {
        self.is_left && !(is_busy && self.last.is_some_and(|(ended, took)| ended.elapsed() < took))
    }

    /// Whether it is time to look at everything.
    fn is_look_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= IDLE)
    }

    /// What is to be done now.
    fn next(&self, is_look: bool, is_busy: bool) -> Option<Upkeep> {
        if is_look { Some(Upkeep::Look) } else { self.is_due(is_busy).then_some(Upkeep::Piece) }
    }

    /// How long an engine without anything else to do rests.
    fn rest(&self) -> Duration {
        if self.is_left { Duration::ZERO } else { IDLE }
    }

    /// Does some upkeep, and notes whether more is left.
    fn take(&mut self, upkeep: Upkeep, act: impl FnOnce() -> bool) {
        let begun = Instant::now();
        self.is_left = act();
        let ended = Instant::now();
        self.last = Some((ended, begun.elapsed()));
        self.looked = Some(ended).filter(|_| upkeep == Upkeep::Look).or(self.looked);
    }
}

/// Runs the engine until it is told to stop or every source is gone. The maps stay as they are. `look_after` gets the
/// engine for a look about once a second, between two steps, and as soon as everything is written for the first time:
/// other programs may be waiting for that. It returns whether more is to be done, and then gets the engine for pieces.
pub async fn run<M: Maps>(
    mut engine: Engine<M>,
    mut ends: Ends,
    mut look_after: impl FnMut(&mut Engine<M>, Upkeep) -> bool,
) -> Engine<M> {
    let started = Instant::now();
    let mut changes = ChangeQueue { room: Room::new(CHANGES_BYTES_MAX), dropped: 0 };
    let mut checks = Checks::default();
    let (mut checked, mut asked) = (started, started);
    let mut was_written = false;
    let mut pieces = Pieces::default();
    loop {
        let due = engine.next_due(started.elapsed()).map(|due| due.saturating_sub(started.elapsed()));
        ends.note_whether_quiet(!was_written || due.is_some_and(|due| due.is_zero()));
        let is_overdue = asked.elapsed() >= ask::WAIT_MAX;
        let rests = (due.unwrap_or(IDLE), pieces.rest());
        let turn = next_turn(&mut ends, rests, is_overdue, checks.is_running()).await;
        let moves = matches!(turn, Turn::Group(_)) || ends.events.is_empty();
        match turn {
            Turn::End => return engine,
            Turn::Group(group) => take(&mut engine, group, &mut ends),
            Turn::Quiet(ask) => {
                checks.go_on(&mut engine);
                ask.into_iter().for_each(|ask| ask.answer(&mut engine, &mut checks));
                asked = Instant::now();
            }
            Turn::Due => {}
        }
        if ends.asks.is_empty() && !checks.is_running() {
            asked = Instant::now();
        }
        ends.step(&mut engine, started, &mut changes);
        let is_first = !was_written && engine.has_initial_state();
        was_written |= is_first;
        let is_look = checks.is_look_due() || is_first || pieces.is_look_due();
        let is_busy = !ends.events.is_empty() || is_due(&engine, started.elapsed());
        if let Some(upkeep) = pieces.next(is_look, is_busy) {
            pieces.take(upkeep, || look_after(&mut engine, upkeep));
        }
        if checked.elapsed() >= CHECK {
            checks.begin(&mut engine);
            checked = Instant::now();
        }
        if moves {
            ends.note_progress(started);
        }
    }
}

/// Whether the engine has something to do although no event came.
fn is_due<M: Maps>(engine: &Engine<M>, now: Duration) -> bool {
    engine.next_due(now).is_some_and(|due| due <= now)
}

/// The room that change records have, and how many found none.
struct ChangeQueue {
    room: Room,
    dropped: u64,
}

impl Ends {
    /// Has the engine carry out what is wanted, and passes its change records and its snapshot on.
    fn step<M: Maps>(&self, engine: &mut Engine<M>, started: Instant, changes: &mut ChangeQueue) {
        let at = SystemTime::now();
        let mono = since_boot();
        let begun = Instant::now();
        let mut snapshot = engine.step(now(started, at), &mut |change| {
            self.steps.programmed.count(&change);
            let room = changes.room.take(change.bytes());
            let timed = TimedChange { change, at, mono, elapsed: begun.elapsed(), room };
            changes.dropped += u64::from(timed.room.is_none() || self.changes.try_send(timed).is_err());
        });
        let counters = &mut Arc::make_mut(&mut snapshot).counters;
        counters.changes_dropped = changes.dropped;
        self.steps.stepped(counters, begun.elapsed());
        self.publish(snapshot);
    }

    /// Notes that the engine moved just now.
    fn note_progress(&self, started: Instant) {
        let now = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Publishes a snapshot. Every reader that looks sees the latest one, but a reader that waits is woken only by a
    /// change: on a node where nothing happens, waking all readers each second would be a third of all work.
    fn publish(&self, snapshot: Arc<Snapshot>) {
        self.snapshots.send_if_modified(|before| {
            let is_news = snapshot.differs_from(before);
            *before = snapshot;
            is_news
        });
    }

    /// Notes that the maps have everything, if they do: nothing waits to be taken in, to be carried out or to be tried
    /// again, but for what is beyond the part of a namespace.
    fn note_whether_quiet(&self, is_due: bool) {
        if !is_due && self.events.is_empty() && self.snapshots.borrow().fill.failing == 0 {
            self.steps.caught_up();
        }
    }
}

/// What the engine does next.
enum Turn {
    End,
    Group(Vec<Event>),
    /// Time for a question, if there is one, and for the comparison.
    Quiet(Option<Ask>),
    Due,
}

/// The next turn. Events come before everything else, dirty services before questions, unless a question has waited for
/// too long, and these before a `rest` ends.
async fn next_turn(
    ends: &mut Ends,
    (due, rest): (Duration, Duration),
    is_overdue: bool,
    is_checking: bool,
) -> Turn {
    if *ends.stop.borrow() {
        return Turn::End;
    }
    if is_overdue {
        return Turn::Quiet(next_question(&mut ends.asks));
    }
    match ends.events.try_recv() {
        Ok(group) => return Turn::Group(group),
        Err(TryRecvError::Disconnected) => return Turn::End,
        Err(TryRecvError::Empty) if due.is_zero() => {
            // Other tasks of this thread come first, too.
            tokio::task::yield_now().await;
            return Turn::Due;
        }
        Err(TryRecvError::Empty) => {}
    }
    let ask = next_question(&mut ends.asks);
    if ask.is_some() || is_checking {
        return Turn::Quiet(ask);
    }
    tokio::select! {
        biased;
        _ = ends.stop.wait_for(|stop| *stop) => Turn::End,
        group = ends.events.recv() => group.map_or(Turn::End, Turn::Group),
        Some(ask) = ends.asks.recv() => Turn::Quiet(Some(ask).filter(|ask| !ask.is_given_up())),
        () = tokio::time::sleep(due.min(rest)) => Turn::Due,
    }
}

/// The next question with a client that still waits.
fn next_question(asks: &mut mpsc::Receiver<Ask>) -> Option<Ask> {
    while let Ok(ask) = asks.try_recv() {
        if !ask.is_given_up() {
            return Some(ask);
        }
    }
    None
}

/// Takes a group and whatever else has queued up, whole groups only.
fn take<M: Maps>(engine: &mut Engine<M>, first: Vec<Event>, ends: &mut Ends) {
    ends.steps.took_events();
    let mut taken = 0;
    let mut group = Some(first);
    while let Some(events) = group {
        for event in events {
            taken += weight(&event);
            engine.apply(event);
        }
        group = if taken < BATCH_EVENTS_MAX { ends.events.try_recv().ok() } else { None };
    }
}

/// The number of events that an object counts as.
fn weight(event: &Event) -> usize {
    let parts = match event {
        Event::ServiceApplied(facts) => facts.ports.len() + facts.external_ips.len() + facts.ingress.len(),
        Event::SliceApplied(facts) => facts.endpoints.len().saturating_mul(facts.ports.len().max(1)),
        _ => 0,
    };
    1 + parts / PARTS_PER_EVENT
}

fn now(started: Instant, at: SystemTime) -> ClockReading {
    let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let wall = Timestamp(i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX));
    ClockReading { wall, mono: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_events_wait_upkeep_takes_half_of_the_time_at_most() {
        let pieces = |is_left, took| Pieces { is_left, last: Some((Instant::now(), took)), looked: None };
        let long = Duration::from_secs(60);
        assert!(!pieces(true, long).is_due(true), "the last piece took as long");
        assert!(pieces(true, long).is_due(false), "nothing else waits");
        assert!(pieces(true, Duration::ZERO).is_due(true));
        assert!(!pieces(false, Duration::ZERO).is_due(false));
    }
}
