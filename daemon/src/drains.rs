//! Orders to drain backends, and to take that back: by which user and when, told to the engine, kept over restarts.
//!
//! Invariant: one task changes the drains, one order after the other, so two orders at once both count. An order counts
//! at once, also where the disk does not take it: the answer says so, and the write is tried again. What the disk does
//! holds up no order for longer than `DISK_WAIT_MAX`. Nothing else makes or ends a drain.

mod file;
#[cfg(test)]
mod tests;
mod user;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::drains::{Drain, Drains, Ordered, TooMany};
use holdfast_core::event::Event;
use tokio::sync::{mpsc, oneshot, watch};

/// Orders that may wait; each takes no longer than a write to disk.
pub const ORDERS_WAITING_MAX: usize = 16;

/// How long the answer to an order waits for the disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(3);

/// The pause after a write that failed: a full disk is not made better by haste.
const RETRY_WAIT: Duration = Duration::from_secs(5);

/// An order.
#[derive(Debug)]
pub struct Order {
    /// The user that orders it.
    pub uid: u32,
    /// The process that does, as far as the system tells.
    pub pid: Option<i32>,
    pub drain: Drain,
    /// To drain; or else to take that back.
    pub is_on: bool,
    /// Where the outcome goes.
    pub answer: oneshot::Sender<Outcome>,
}

/// What came of an order that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// All drains from now on.
    pub drains: Arc<Drains>,
    /// The order by which it was drained before; `None`: it was not.
    pub before: Option<Ordered>,
    /// Why a restart would not know it yet.
    pub problem: Option<String>,
}

/// How an order ended.
pub type Outcome = Result<Taken, TooMany>;

/// The drains that a former process left. What cannot be read is named in the log and stops nothing.
pub fn kept(folder: &Path) -> Arc<Drains> {
    let (drains, wrong) = file::load(folder);
    for error in &wrong {
        let found = drains.len();
        tracing::warn!(%error, drains = found, "a file of drains is not used; `holdfast drain` shows what is in force");
    }
    Arc::new(drains)
}

/// What was written last.
#[derive(Clone, Debug)]
struct Written {
    /// What the last try was to write.
    drains: Arc<Drains>,
    error: Option<String>,
}

/// Takes orders until nothing can order any more.
pub async fn run(
    folder: PathBuf,
    begun_with: Arc<Drains>,
    mut orders: mpsc::Receiver<Order>,
    events: mpsc::Sender<Vec<Event>>,
) {
    let (wanted, mut to_write) = watch::channel(Arc::clone(&begun_with));
    // One of the two files may have been damaged.
    if !begun_with.is_empty() {
        to_write.mark_changed();
    }
    let (told, written) = watch::channel(Written { drains: begun_with, error: None });
    let mut desk = Desk { wanted, written, events };
    let serving = async {
        while let Some(order) = orders.recv().await {
            desk.take(order).await;
        }
    };
    tokio::select! {
        () = serving => {}
        () = write_down(folder, to_write, told) => {}
    }
}

/// Where orders are taken.
struct Desk {
    /// The drains in force, for the disk too.
    wanted: watch::Sender<Arc<Drains>>,
    written: watch::Receiver<Written>,
    events: mpsc::Sender<Vec<Event>>,
}

impl Desk {
    async fn take(&mut self, Order { uid, pid, drain, is_on, answer }: Order) {
        let backend = drain.to_string();
        let service = drain.service().map(ToString::to_string);
        let by = ordered(uid).await;
        let outcome = match self.turned(&drain, is_on, &by) {
            Ok((before, next)) => Ok(self.put_in_force(before, next, by).await),
            Err(error) => Err(error),
        };
        let problem = outcome.as_ref().ok().and_then(|taken| taken.problem.as_deref());
        match &outcome {
            Ok(_) => {
                tracing::info!(uid, pid, backend, service, is_on, problem, "an order to drain was taken");
            }
            Err(error) => {
                tracing::warn!(uid, pid, backend, service, %error, "an order to drain was not taken");
            }
        }
        // A client that has gone meanwhile finds the outcome in the list.
        let _ = answer.send(outcome);
    }

    /// The order of before, and the drains after this one; `None`: they are as they were.
    fn turned(
        &self,
        drain: &Drain,
        is_on: bool,
        by: &Ordered,
    ) -> Result<(Option<Ordered>, Option<Drains>), TooMany> {
        let now = Arc::clone(&self.wanted.borrow());
        let before = now.get(drain).cloned();
        if before.is_some() == is_on {
            return Ok((before, None));
        }
        let mut next = Drains::clone(&now);
        if is_on {
            next.add(drain.clone(), by.clone())?;
        } else {
            next.remove(drain);
        }
        Ok((before, Some(next)))
    }

    async fn put_in_force(&mut self, before: Option<Ordered>, next: Option<Drains>, by: Ordered) -> Taken {
        if let Some(next) = next.map(Arc::new) {
            self.wanted.send_replace(Arc::clone(&next));
            // The engine listens until it is stopped; after that no event matters.
            let _ = self.events.send(vec![Event::DrainsApplied(next, by)]).await;
        }
        let drains = Arc::clone(&self.wanted.borrow());
        let problem = self.problem(&drains).await;
        Taken { drains, before, problem }
    }

    /// Why these drains are not on disk, in words.
    async fn problem(&mut self, drains: &Arc<Drains>) -> Option<String> {
        let is_tried = self.written.wait_for(|written| Arc::ptr_eq(&written.drains, drains));
        match tokio::time::timeout(DISK_WAIT_MAX, is_tried).await {
            Ok(Ok(written)) => written.error.clone(),
            Ok(Err(_)) | Err(_) => {
                Some("the disk does not answer; it is written as soon as it does".to_owned())
            }
        }
    }
}

/// The user that orders, at this moment.
async fn ordered(uid: u32) -> Ordered {
    let user = tokio::task::spawn_blocking(move || user::name(Path::new(user::USERS), uid)).await;
    Ordered { uid, user: user.ok().flatten(), at: crate::clock::now().seconds() }
}

/// Writes down what is in force, each time that it is another one, and again where that failed.
async fn write_down(folder: PathBuf, mut wanted: watch::Receiver<Arc<Drains>>, told: watch::Sender<Written>) {
    let mut failed = false;
    while wanted.changed().await.is_ok() {
        while let Some(error) = write_once(&folder, &mut wanted, &told).await {
            if !std::mem::replace(&mut failed, true) {
                tracing::warn!(error, "the drains are not written; a restart would not know the last orders");
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY_WAIT) => {}
            }
        }
        if std::mem::take(&mut failed) {
            tracing::info!("the drains are written again");
        }
    }
}

/// Gives what kept the drains from being written.
async fn write_once(
    folder: &Path,
    wanted: &mut watch::Receiver<Arc<Drains>>,
    told: &watch::Sender<Written>,
) -> Option<String> {
    let drains = Arc::clone(&wanted.borrow_and_update());
    let folder = folder.to_owned();
    let writing = Arc::clone(&drains);
    let stored = tokio::task::spawn_blocking(move || file::store(&folder, &writing)).await;
    let error = stored.map_err(|error| error.to_string()).and_then(|stored| stored).err();
    told.send_replace(Written { drains, error: error.clone() });
    error
}
