//! The engine's own thread, so that nothing else can delay it.
//!
//! Invariant: a reader can find out at any time whether the engine makes progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::maps::Maps;
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};

use super::AppError;
use crate::engine::query::{self, EngineClient};
use crate::engine::run;
use crate::engine::steps::StepMetrics;
use crate::readings::Liveness;
use crate::recorder::TimedChange;

/// How long the engine may make no progress before it counts as stalled. An engine without waiting events records
/// progress every second.
const STALLED: Duration = Duration::from_secs(5);

/// The thread that runs the engine, and the channels by which other parts reach it.
#[derive(Debug)]
pub struct EngineThread {
    pub client: EngineClient,
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    steps: Arc<StepMetrics>,
    progress: Arc<AtomicU64>,
    started: Instant,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl EngineThread {
    pub fn start<M: Maps + 'static>(
        engine: Engine<M>,
        events: mpsc::Receiver<Vec<Event>>,
        look_after: impl FnMut(&mut Engine<M>, run::Upkeep) -> bool + Send + 'static,
    ) -> Result<(Self, mpsc::Receiver<TimedChange>), AppError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(AppError::Runtime)?;
        let (changes, changed) = mpsc::channel(run::CHANGES_WAITING_MAX);
        let (snapshots_out, snapshots) = watch::channel(Arc::default());
        let (stop, stopping) = watch::channel(false);
        let progress = Arc::new(AtomicU64::new(0));
        let steps = Arc::<StepMetrics>::default();
        let (asker, asks) = query::channel();
        let ends = run::EngineChannels {
            events,
            queries: asks,
            snapshots: snapshots_out,
            changes,
            progress: Arc::clone(&progress),
            steps: Arc::clone(&steps),
            stop: stopping,
        };
        let work = move || drop(runtime.block_on(run::run(engine, ends, look_after)));
        let thread =
            std::thread::Builder::new().name("engine".to_owned()).spawn(work).map_err(AppError::Runtime)?;
        Ok((
            Self { client: asker, snapshots, steps, progress, started: Instant::now(), stop, thread },
            changed,
        ))
    }

    /// Reports how long the engine has been stalled.
    pub fn liveness(&self) -> Liveness {
        let progress = Arc::clone(&self.progress);
        let started = self.started;
        let stalled = move || {
            let last = Duration::from_millis(progress.load(Ordering::Relaxed));
            Some(started.elapsed().saturating_sub(last)).filter(|still| *still > STALLED)
        };
        Liveness::new(stalled).with_steps(Arc::clone(&self.steps))
    }

    /// Ends the engine's loop; the maps stay as they are.
    pub fn stop(self) {
        self.stop.send_replace(true);
        // A panic on that thread has ended the process already.
        let _ = self.thread.join();
    }
}
