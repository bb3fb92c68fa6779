//! Executes orders to drain backends or to end a drain, sends them to the engine, and saves them over restarts.
//!
//! Invariant: one task changes the drains, one order after the other, so two concurrent orders both count. An order
//! counts at once, even if the disk fails: the response reports it, and the write is retried. A file that cannot be
//! read now is not overwritten: it is read again, and later orders apply on top of it. The disk delays no order by
//! more than `DISK_WAIT_MAX`. Nothing else makes or ends a drain.

mod file;
#[cfg(test)]
mod tests;
mod user;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::drains::{Drain, DrainOrder, Drains, TooManyDrains};
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_host::logging::messages::NOTICE;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;

/// The most orders that may wait; each takes at most as long as a write to disk.
pub const ORDERS_WAITING_MAX: usize = 16;

/// How long the response to an order waits for the disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(3);

/// The pause after a failed write or read.
const RETRY_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Order {
    /// The user that gave it.
    pub uid: u32,
    /// The process that gave it, if the system reports one.
    pub pid: Option<i32>,
    pub drain: Drain,
    /// Whether to drain, or to end the drain.
    pub is_on: bool,
    pub answer: oneshot::Sender<OrderOutcome>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedOrder {
    pub drains: Arc<Drains>,
    /// The previous order to drain it; `None` if it was not drained.
    pub before: Option<DrainOrder>,
    /// Why a restart would not restore it yet.
    pub problem: Option<String>,
}

pub type OrderOutcome = Result<AcceptedOrder, TooManyDrains>;

#[derive(Clone, Debug, Default)]
pub struct RestoredDrains {
    pub drains: Arc<Drains>,
    /// Why there may be more: a file cannot be read now.
    unread: Option<String>,
}

/// Loads a former process's drains. A file that cannot be read is logged and stops nothing.
pub fn load_drains(folder: &Path) -> RestoredDrains {
    let file::LoadedDrains { drains, faults: wrong, unread } = file::load(folder);
    for error in &wrong {
        let found = drains.len();
        tracing::warn!(%error, drains = found, "a drains file is not used; `holdfast drain` shows the drains in force");
    }
    RestoredDrains { drains: Arc::new(drains), unread }
}

#[derive(Clone, Debug, Default)]
pub struct DrainsWrite {
    /// The drains of the last attempt.
    drains: Arc<Drains>,
    /// The drains that a restart would restore.
    stored: Arc<Drains>,
    /// Whether nobody knows what a restart would restore: a file cannot be read, or the disk does not answer.
    is_unknown: bool,
    error: Option<String>,
    /// Since when every try has failed.
    failing_since: Option<Timestamp>,
}

impl DrainsWrite {
    /// The initial state of a process.
    pub fn from_restored(restored: &RestoredDrains) -> Self {
        let error = restored.unread.as_deref().map(unread_reason);
        Self {
            drains: Arc::clone(&restored.drains),
            stored: Arc::clone(&restored.drains),
            is_unknown: error.is_some(),
            failing_since: error.is_some().then(now),
            error,
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn from_error(error: &str) -> Self {
        Self { error: Some(error.to_owned()), is_unknown: true, ..Self::default() }
    }

    /// Why a restart would not restore the last orders, as far as the disk reports. Orders that cancel each other need
    /// no write.
    pub(crate) fn problem(&self) -> Option<&str> {
        let is_lossless = !self.is_unknown && self.lost().next().is_none() && self.revived().next().is_none();
        self.error.as_deref().filter(|_| !is_lossless)
    }

    /// Since when the disk takes no order.
    pub const fn failing_since(&self) -> Option<Timestamp> {
        self.failing_since
    }

    /// The drains that a restart would end.
    pub fn lost(&self) -> impl Iterator<Item = Drain> {
        self.drains.iter().map(|(drain, _)| drain).filter(|drain| self.stored.get(drain).is_none())
    }

    /// The ended drains that a restart would bring back.
    pub fn revived(&self) -> impl Iterator<Item = Drain> {
        self.stored.iter().map(|(drain, _)| drain).filter(|drain| self.drains.get(drain).is_none())
    }
}

fn now() -> Timestamp {
    holdfast_host::clock::now().seconds()
}

const NO_ANSWER: &str = "the disk does not answer; it is written as soon as it does";

fn unread_reason(unread: &str) -> String {
    format!("{unread}; the file is not overwritten until it can be read")
}

/// Takes orders until no sender is left. `last_write` begins with what the former process wrote.
pub async fn run(
    folder: PathBuf,
    RestoredDrains { drains: restored, unread }: RestoredDrains,
    mut orders: mpsc::Receiver<Order>,
    events: mpsc::Sender<Vec<Event>>,
    last_write: watch::Sender<DrainsWrite>,
) {
    let (desired, mut to_write) = watch::channel(Arc::clone(&restored));
    // One of the two files may have been damaged.
    if !restored.is_empty() {
        to_write.mark_changed();
    }
    let (unread, still_unread) = watch::channel(unread);
    let mut controller =
        DrainController { desired, last_write: last_write.subscribe(), events, restored, unread };
    let serving = async {
        loop {
            let is_whole = controller.unread.borrow().is_none();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => controller.execute_order(order).await,
                    None => return,
                },
                () = tokio::time::sleep(RETRY_WAIT), if !is_whole => controller.reread(&folder).await,
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = run_writer(folder.clone(), (to_write, still_unread), last_write) => {}
    }
}

/// Executes the orders.
struct DrainController {
    desired: watch::Sender<Arc<Drains>>,
    last_write: watch::Receiver<DrainsWrite>,
    events: mpsc::Sender<Vec<Event>>,
    // The restored drains, without orders to this process.
    restored: Arc<Drains>,
    // Why there may be more; nothing is written until that is clear.
    unread: watch::Sender<Option<String>>,
}

impl DrainController {
    /// Retries an unreadable file, and puts its drains in force below the orders since then.
    async fn reread(&mut self, folder: &Path) {
        let folder = folder.to_owned();
        let Ok(found) = tokio::task::spawn_blocking(move || file::load(&folder)).await else { return };
        if found.unread.is_some() {
            return;
        }
        let by = stamp_order(nix::unistd::getuid().as_raw()).await;
        let next = merge_later_orders(&self.restored, &self.desired.borrow(), found.drains);
        tracing::info!(drains = next.len(), "the drains of the former process are restored");
        let next = Arc::new(next);
        // Set the desired drains first: a write must never contain less than was found.
        self.desired.send_replace(Arc::clone(&next));
        self.unread.send_replace(None);
        self.publish(next, by).await;
    }

    async fn execute_order(&mut self, Order { uid, pid, drain, is_on, answer }: Order) {
        let backend = drain.to_string();
        let service = drain.service().map(ToString::to_string);
        let by = stamp_order(uid).await;
        let outcome = match self.apply_order(&drain, is_on, &by) {
            Ok((before, next)) => Ok(self.commit(before, next, by).await),
            Err(error) => Err(error),
        };
        let problem = outcome.as_ref().ok().and_then(|taken| taken.problem.as_deref());
        match &outcome {
            Ok(_) => {
                tracing::info!(uid, pid, backend, service, is_on, problem, "an order to drain was accepted");
            }
            Err(error) => {
                tracing::warn!(uid, pid, backend, service, %error, "an order to drain was rejected");
            }
        }
        // A client that left meanwhile finds the outcome in the list.
        let _ = answer.send(outcome);
    }

    /// The previous order, and the drains after this one; `None` if they are unchanged.
    fn apply_order(
        &self,
        drain: &Drain,
        is_on: bool,
        by: &DrainOrder,
    ) -> Result<(Option<DrainOrder>, Option<Drains>), TooManyDrains> {
        let now = Arc::clone(&self.desired.borrow());
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

    async fn commit(
        &mut self,
        before: Option<DrainOrder>,
        next: Option<Drains>,
        by: DrainOrder,
    ) -> AcceptedOrder {
        if let Some(next) = next.map(Arc::new) {
            self.publish(next, by).await;
        }
        let drains = Arc::clone(&self.desired.borrow());
        let problem = self.write_problem(&drains).await;
        AcceptedOrder { drains, before, problem }
    }

    async fn publish(&self, next: Arc<Drains>, by: DrainOrder) {
        self.desired.send_replace(Arc::clone(&next));
        // The engine receives until it is stopped; after that no event matters.
        let _ = self.events.send(vec![Event::DrainsApplied(next, by)]).await;
    }

    async fn write_problem(&mut self, drains: &Arc<Drains>) -> Option<String> {
        let is_tried = self.last_write.wait_for(|written| Arc::ptr_eq(&written.drains, drains));
        match tokio::time::timeout(DISK_WAIT_MAX, is_tried).await {
            Ok(Ok(written)) => written.problem().map(str::to_owned),
            Ok(Err(_)) | Err(_) => Some(NO_ANSWER.to_owned()),
        }
    }
}

/// Merges drains found late with the orders since: new drains and ended ones. If they exceed the limit, the found
/// ones stay.
fn merge_later_orders(before: &Drains, now: &Drains, mut found: Drains) -> Drains {
    for (drain, _) in before.iter().filter(|(drain, _)| now.get(drain).is_none()) {
        found.remove(&drain);
    }
    for (drain, by) in now.iter().filter(|(drain, _)| before.get(drain).is_none()) {
        if found.get(&drain).is_none() && found.add(drain.clone(), by.clone()).is_err() {
            tracing::warn!(%drain, "the limit of drains is reached; this drain ends");
        }
    }
    found
}

/// An order of this user, given now.
pub async fn stamp_order(uid: u32) -> DrainOrder {
    let user = tokio::task::spawn_blocking(move || user::user_name(Path::new(user::USERS), uid)).await;
    DrainOrder { uid, user: user.ok().flatten(), at: holdfast_host::clock::now().seconds() }
}

/// Writes the drains in force after each change, and retries a failed write.
async fn run_writer(
    folder: PathBuf,
    (mut desired, unread): (watch::Receiver<Arc<Drains>>, watch::Receiver<Option<String>>),
    last_write: watch::Sender<DrainsWrite>,
) {
    let mut failed = false;
    while desired.changed().await.is_ok() {
        while let Some(error) = write_once(&folder, (&mut desired, &unread), &last_write).await {
            if !std::mem::replace(&mut failed, true) {
                tracing::warn!(
                    error,
                    "cannot write the drains; trying again, and `holdfast status` says what a restart would lose"
                );
            }
            tokio::select! {
                changed = desired.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY_WAIT) => {}
            }
        }
        if std::mem::take(&mut failed) {
            tracing::info!(target: NOTICE, "the drains are written again");
        }
    }
}

async fn write_once(
    folder: &Path,
    (desired, unread): (&mut watch::Receiver<Arc<Drains>>, &watch::Receiver<Option<String>>),
    last_write: &watch::Sender<DrainsWrite>,
) -> Option<String> {
    let unread = unread.borrow().clone();
    let drains = Arc::clone(&desired.borrow_and_update());
    let before = last_write.borrow().clone();
    let StoreOutcome { error, stored, is_unknown } = match unread {
        Some(unread) => {
            StoreOutcome { error: Some(unread_reason(&unread)), stored: before.stored, is_unknown: true }
        }
        None => {
            last_write.send_modify(expect_hanging_disk);
            store_drains(folder, &drains).await
        }
    };
    let failing_since = error.is_some().then(|| before.failing_since.unwrap_or_else(now));
    last_write.send_replace(DrainsWrite { drains, stored, is_unknown, error: error.clone(), failing_since });
    error
}

/// Notes that a write has begun. The disk may never answer, and then nobody knows what a restart would restore.
fn expect_hanging_disk(written: &mut DrainsWrite) {
    written.error.get_or_insert_with(|| NO_ANSWER.to_owned());
    written.failing_since.get_or_insert_with(now);
    written.is_unknown = true;
}

/// Why the drains are not written, and what a restart would read.
struct StoreOutcome {
    error: Option<String>,
    stored: Arc<Drains>,
    /// Whether a restart may read something else than `stored`.
    is_unknown: bool,
}

/// Writes the drains. If that fails, it reads what a restart would read: one of the two files may have been replaced.
async fn store_drains(folder: &Path, drains: &Arc<Drains>) -> StoreOutcome {
    let (folder, writing) = (folder.to_owned(), Arc::clone(drains));
    let storing = move || match file::store(&folder, &writing) {
        Ok(()) => StoreOutcome { error: None, stored: writing, is_unknown: false },
        Err(error) => {
            let found = file::load(&folder);
            let is_unknown = found.unread.is_some();
            StoreOutcome { error: Some(error), stored: Arc::new(found.drains), is_unknown }
        }
    };
    let failed = |error: JoinError| StoreOutcome {
        error: Some(error.to_string()),
        stored: Arc::default(),
        is_unknown: true,
    };
    tokio::task::spawn_blocking(storing).await.unwrap_or_else(failed)
}
