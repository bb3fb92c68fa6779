//! The engine's loop: batches of events in, snapshots and change records out.
//!
//! Invariant: an idle engine applies a group at once; under load it takes what has queued up meanwhile, up to a bound, so
//! the last write of an object wins and the batch stays short. Deliberately absent: any fixed delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::world::Drift;
use holdfast_datapath::{MapError, Maps};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};

use super::ask::Ask;
use super::{Engine, Now};
use crate::recorder::Told;

/// Groups that may wait for the engine. A source that is faster waits, and reads its own input later.
pub const GROUPS_WAITING_MAX: usize = 64;

/// Change records that may wait for the recorder. What does not fit is counted, never waited for.
pub const CHANGES_WAITING_MAX: usize = 65_536;

/// Events of one batch. What a batch of this size touches fits a core's own cache, and takes a few milliseconds, the longest
/// that a reader waits for news under load.
const BATCH_EVENTS_MAX: usize = 1_024;

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
    pub changes: mpsc::Sender<Told>,
    /// Milliseconds since the loop's start at its last step, for whoever watches that the engine moves.
    pub progress: Arc<AtomicU64>,
    /// The loop ends when this turns true.
    pub stop: watch::Receiver<bool>,
}

/// Runs the engine until it is told to stop or every source is gone. The maps stay as they are. `look_after` gets
/// the engine about once a second, between two steps.
pub async fn run<M: Maps>(
    mut engine: Engine<M>,
    mut ends: Ends,
    mut look_after: impl FnMut(&mut Engine<M>),
) -> Engine<M> {
    let started = Instant::now();
    let mut dropped = 0;
    let (mut looked, mut checked) = (started, started);
    loop {
        let due =
            engine.next_due(started.elapsed()).map_or(IDLE, |due| due.saturating_sub(started.elapsed()));
        tokio::select! {
            biased;
            _ = ends.stop.wait_for(|stop| *stop) => return engine,
            Some(ask) = ends.asks.recv() => ask.answer(&mut engine),
            group = ends.events.recv() => match group {
                Some(group) => take(&mut engine, group, &mut ends.events),
                None => return engine,
            },
            () = tokio::time::sleep(due.min(IDLE)) => {}
        }
        let (at, mono, begun) = (SystemTime::now(), since_boot(), Instant::now());
        let mut snapshot = engine.step(now(started, at), &mut |change| {
            let told = Told { change, at, mono, elapsed: begun.elapsed() };
            dropped += u64::from(ends.changes.try_send(told).is_err());
        });
        Arc::make_mut(&mut snapshot).counters.changes_dropped = dropped;
        ends.snapshots.send_replace(snapshot);
        if looked.elapsed() >= IDLE || looked == started {
            look_after(&mut engine);
            looked = Instant::now();
        }
        if checked.elapsed() >= CHECK {
            tell_drift(engine.check());
            checked = Instant::now();
        }
        ends.progress
            .store(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn tell_drift(found: Result<Vec<Drift>, MapError>) {
    match found {
        Ok(drift) => {
            drift.iter().for_each(|drift| tracing::warn!(%drift, "somebody changed the maps; repairing"));
        }
        Err(error) => tracing::warn!(%error, "cannot compare the maps with what was written"),
    }
}

/// Takes a group and whatever else has queued up, whole groups only.
fn take<M: Maps>(engine: &mut Engine<M>, first: Vec<Event>, more: &mut mpsc::Receiver<Vec<Event>>) {
    let mut taken = 0;
    let mut group = Some(first);
    while let Some(events) = group {
        taken += events.len();
        events.into_iter().for_each(|event| engine.apply(event));
        group = if taken < BATCH_EVENTS_MAX { more.try_recv().ok() } else { None };
    }
}

/// On the clock of the journal.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

fn now(started: Instant, at: SystemTime) -> Now {
    let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let wall = Timestamp(i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX));
    Now { wall, mono: started.elapsed() }
}
