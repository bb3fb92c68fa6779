//! Questions that only the engine can answer, because no other part reads the maps.
//!
//! Invariant: a question is answered between two steps, when no event waits and nothing is dirty, and costs the engine
//! a bounded time. A client is sent away where too many questions wait, and one that has left is not answered. While
//! load does not end, one question is answered in each `WAIT_MAX`. What a snapshot answers is not asked here.

use std::time::Duration;

use holdfast_core::engine::{CheckError, Drift, Engine};
use holdfast_core::keys::FrontendKey;
use holdfast_core::limits::READ_BACK_MAX;
use holdfast_core::maps::{MapError, Maps};
use holdfast_core::op::FrontendEntry;
use tokio::sync::{mpsc, oneshot};

use holdfast_host::logging::messages::{self, say};

/// Questions that may wait: more clients than this are programs, not people.
const WAITING_MAX: usize = 16;

/// How long events and dirty services may keep the next question waiting. Long enough for questions to take no
/// noticeable share of the engine's time, and short enough for all that may wait to be answered within the patience of
/// their clients.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(100);

/// An engine that does not answer within this time is busy, or does not move.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A comparison of all of the maps gives way to everything else, so it may take longer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// What the maps say of each frontend asked for.
pub type Entries = Vec<Result<Option<FrontendEntry>, MapError>>;

/// A question, and where the answer goes.
#[derive(Debug)]
pub enum EngineQuery {
    /// What the maps say of these frontends now.
    Read(Vec<FrontendKey>, oneshot::Sender<Entries>),
    /// To look after the maps now, and not only within a second, because something outside of the engine has changed.
    /// This question has no answer.
    RunUpkeep,
    /// To compare all of the maps with what was written; every difference is written anew and told.
    Check(oneshot::Sender<Result<Vec<Drift>, CheckError>>),
}

/// Asks the engine.
#[derive(Clone, Debug)]
pub struct EngineClient(mpsc::Sender<EngineQuery>);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine does not answer now; try again in a few seconds")]
pub struct EngineBusy;

/// The two ends of the queue of questions: the clients' and the engine's.
pub fn channel() -> (EngineClient, mpsc::Receiver<EngineQuery>) {
    let (asks, heard) = mpsc::channel(WAITING_MAX);
    (EngineClient(asks), heard)
}

impl EngineClient {
    /// What the maps say of these frontends now; of the first [`READ_BACK_MAX`].
    pub async fn read(&self, mut keys: Vec<FrontendKey>) -> Result<Entries, EngineBusy> {
        keys.truncate(READ_BACK_MAX);
        self.send_query(QUERY_TIMEOUT, |answer| EngineQuery::Read(keys, answer)).await
    }

    /// Compares all of the maps with what was written.
    pub async fn check(&self) -> Result<Result<Vec<Drift>, CheckError>, EngineBusy> {
        self.send_query(CHECK_TIMEOUT, EngineQuery::Check).await
    }

    /// Has the maps looked after now. An engine that is too busy for it does so within a second or two anyway.
    pub fn request_upkeep(&self) {
        let _ = self.0.try_send(EngineQuery::RunUpkeep);
    }

    /// The channel itself, for a test that does not wait for its answer.
    #[cfg(test)]
    pub(super) fn sender(&self) -> mpsc::Sender<EngineQuery> {
        self.0.clone()
    }

    async fn send_query<T>(
        &self,
        patience: Duration,
        ask: impl FnOnce(oneshot::Sender<T>) -> EngineQuery,
    ) -> Result<T, EngineBusy> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(ask(answer)).map_err(|_| EngineBusy)?;
        tokio::time::timeout(patience, answered).await.map_err(|_| EngineBusy)?.map_err(|_| EngineBusy)
    }
}

impl EngineQuery {
    /// Whether its client has stopped waiting for the answer.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Read(_, answer) => answer.is_closed(),
            Self::Check(answer) => answer.is_closed(),
            Self::RunUpkeep => false,
        }
    }

    /// Answers the question, or leaves that to the comparison, which answers all its clients at once. That a client has
    /// left meanwhile is no error.
    pub(super) fn answer<M: Maps>(self, engine: &mut Engine<M>, checks: &mut MapChecks) {
        match self {
            Self::Read(keys, answer) => {
                let _ = answer.send(keys.iter().map(|key| engine.maps_mut().read(key)).collect());
            }
            Self::Check(answer) => checks.queue_check(answer, engine),
            Self::RunUpkeep => checks.upkeep_due = true,
        }
    }
}

/// The comparison of the maps with what was written: one at a time, for all clients that wait for it.
#[derive(Debug, Default)]
pub(super) struct MapChecks {
    waiting: Vec<oneshot::Sender<Result<Vec<Drift>, CheckError>>>,
    is_running: bool,
    upkeep_due: bool,
}

impl MapChecks {
    /// Whether a client wants the maps to be looked after; says so once.
    pub(super) fn take_upkeep_due(&mut self) -> bool {
        std::mem::take(&mut self.upkeep_due)
    }

    pub(super) const fn is_running(&self) -> bool {
        self.is_running
    }

    /// Begins a comparison, unless one runs.
    pub(super) fn begin_check<M: Maps>(&mut self, engine: &mut Engine<M>) {
        if !self.is_running {
            engine.begin_check();
            self.is_running = true;
        }
    }

    /// Goes on with the comparison for a piece.
    pub(super) fn continue_check<M: Maps>(&mut self, engine: &mut Engine<M>) {
        let Some(found) = self.is_running.then(|| engine.continue_check()).flatten() else { return };
        self.is_running = false;
        match &found {
            Ok(drift) => drift.iter().for_each(|drift| say!(warn, messages::MAPS_CHANGED, %drift)),
            Err(CheckError::NotYet) => {}
            Err(error) => tracing::warn!(%error, "cannot compare the maps with what was written"),
        }
        self.answer_all(&found);
    }

    fn queue_check<M: Maps>(
        &mut self,
        answer: oneshot::Sender<Result<Vec<Drift>, CheckError>>,
        engine: &mut Engine<M>,
    ) {
        self.waiting.retain(|waiting| !waiting.is_closed());
        // A client too many hears that the engine is busy, because its channel is dropped here.
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(answer);
        }
        self.begin_check(engine);
    }

    fn answer_all(&mut self, found: &Result<Vec<Drift>, CheckError>) {
        for answer in std::mem::take(&mut self.waiting) {
            let _ = answer.send(found.clone());
        }
    }
}
