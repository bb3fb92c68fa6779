//! Questions that only the engine can answer, because nobody else reads the maps.
//!
//! Invariant: a question is answered between two steps and costs the engine a bounded time; who asks more often than that is
//! sent away. Deliberately absent: questions that a snapshot answers.

use std::time::Duration;

use holdfast_core::keys::FrontendKey;
use holdfast_core::op::Entry;
use holdfast_core::world::Drift;
use holdfast_datapath::{MapError, Maps};
use tokio::sync::{mpsc, oneshot};

use super::Engine;

/// Questions that may wait: more askers than this are no people.
const WAITING_MAX: usize = 16;

/// Frontends of one question, so that one answer takes less than a millisecond.
pub const FRONTENDS_MAX: usize = 64;

/// An engine that does not answer within this time is busy, or does not move.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the maps say of each frontend asked for.
pub type Entries = Vec<Result<Option<Entry>, MapError>>;

/// A question, and where the answer goes.
#[derive(Debug)]
pub enum Ask {
    /// What the maps say of these frontends now.
    Read(Vec<FrontendKey>, oneshot::Sender<Entries>),
    /// What in all of the maps is not as it was written; that is written anew.
    Check(oneshot::Sender<Result<Vec<Drift>, MapError>>),
}

/// Asks the engine.
#[derive(Clone, Debug)]
pub struct Asker(mpsc::Sender<Ask>);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine does not answer now; try again in a few seconds")]
pub struct Busy;

/// Who asks, and what the engine hears.
pub fn channel() -> (Asker, mpsc::Receiver<Ask>) {
    let (asks, heard) = mpsc::channel(WAITING_MAX);
    (Asker(asks), heard)
}

impl Asker {
    /// What the maps say of these frontends now; of the first [`FRONTENDS_MAX`].
    pub async fn read(&self, mut keys: Vec<FrontendKey>) -> Result<Entries, Busy> {
        keys.truncate(FRONTENDS_MAX);
        self.ask(|answer| Ask::Read(keys, answer)).await
    }

    /// Compares all of the maps with what was written.
    pub async fn check(&self) -> Result<Result<Vec<Drift>, MapError>, Busy> {
        self.ask(Ask::Check).await
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Busy> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(ask(answer)).map_err(|_| Busy)?;
        tokio::time::timeout(PATIENCE, answered).await.map_err(|_| Busy)?.map_err(|_| Busy)
    }
}

impl Ask {
    /// Answers. Who asked may have left.
    pub(super) fn answer<M: Maps>(self, engine: &mut Engine<M>) {
        match self {
            Self::Read(keys, answer) => {
                let _ = answer.send(keys.iter().map(|key| engine.maps_mut().read(key)).collect());
            }
            Self::Check(answer) => {
                let _ = answer.send(engine.check());
            }
        }
    }
}
