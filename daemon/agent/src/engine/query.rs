//! Queries that only the engine can answer, because no other part reads the maps.
//!
//! Invariant: a query is answered between two steps, when no event waits and nothing is dirty, and costs the engine a
//! bounded time. A full queue rejects clients, and clients that left get no response. Under lasting load, one query
//! is answered per `WAIT_MAX`. Queries that a snapshot can answer do not belong here.

use std::time::Duration;

use holdfast_core::engine::{CheckError, Drift, Engine};
use holdfast_core::keys::FrontendKey;
use holdfast_core::limits::READ_BACK_MAX;
use holdfast_core::maps::{MapError, Maps};
use holdfast_core::op::FrontendEntry;
use tokio::sync::{mpsc, oneshot};

use holdfast_host::logging::messages::{self, say};

/// The most queries that may wait: more clients than this are programs, not people.
const WAITING_MAX: usize = 16;

/// How long events and dirty services may delay the next query: long enough that queries take no noticeable share of
/// the engine's time, and short enough that all waiting clients get a response before their timeout.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(100);

/// An engine that does not answer within this time is busy or stalled.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A comparison of all maps yields to everything else, so it may take longer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

pub type Entries = Vec<Result<Option<FrontendEntry>, MapError>>;

#[derive(Debug)]
pub enum EngineQuery {
    Read(Vec<FrontendKey>, oneshot::Sender<Entries>),
    /// Runs upkeep of the maps now instead of within a second, because something outside of the engine changed. It
    /// has no response.
    RunUpkeep,
    /// Compares all maps with what was written; every difference is rewritten and reported.
    Check(oneshot::Sender<Result<Vec<Drift>, CheckError>>),
}

#[derive(Clone, Debug)]
pub struct EngineClient(mpsc::Sender<EngineQuery>);

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine does not answer now; try again in a few seconds")]
pub struct EngineBusy;

/// The queue of queries: the clients' end and the engine's.
pub fn channel() -> (EngineClient, mpsc::Receiver<EngineQuery>) {
    let (queries, incoming) = mpsc::channel(WAITING_MAX);
    (EngineClient(queries), incoming)
}

impl EngineClient {
    /// Reads the current map entries of these frontends, of the first [`READ_BACK_MAX`].
    pub async fn read(&self, mut keys: Vec<FrontendKey>) -> Result<Entries, EngineBusy> {
        keys.truncate(READ_BACK_MAX);
        self.send_query(QUERY_TIMEOUT, |answer| EngineQuery::Read(keys, answer)).await
    }

    /// Compares all maps with what was written.
    pub async fn check(&self) -> Result<Result<Vec<Drift>, CheckError>, EngineBusy> {
        self.send_query(CHECK_TIMEOUT, EngineQuery::Check).await
    }

    /// Requests upkeep of the maps now. A busy engine does it within a second or two anyway.
    pub fn request_upkeep(&self) {
        let _ = self.0.try_send(EngineQuery::RunUpkeep);
    }

    /// The channel itself, for a test that does not wait for the response.
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
    /// Whether the client has stopped waiting for the response.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Read(_, answer) => answer.is_closed(),
            Self::Check(answer) => answer.is_closed(),
            Self::RunUpkeep => false,
        }
    }

    /// Answers the query, or queues it for the comparison, which answers all its clients at once. A client that left
    /// meanwhile is no error.
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
    /// Whether upkeep was requested since the last call.
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

    /// Continues the comparison for one piece.
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
        // Beyond the limit, dropping the channel reports a busy engine.
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
