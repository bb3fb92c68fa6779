//! Orders to drain backends, and to take that back: by which user and when, told to the engine, kept over restarts.
//!
//! Invariant: one task changes the drains, one order after the other, so two orders at once both count. An order counts
//! at once, also where the disk does not take it: the answer says so, and the write is tried again. What a former
//! process left and the disk does not give now is not written over: it is read again, and later orders count on top of
//! it. What the disk does holds up no order for longer than `DISK_WAIT_MAX`. Nothing else makes or ends a drain.

mod file;
#[cfg(test)]
mod tests;
mod user;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::drains::{Drain, DrainOrder, Drains, TooManyDrains};
use holdfast_core::event::Event;
use tokio::sync::{mpsc, oneshot, watch};

/// Orders that may wait; each takes no longer than a write to disk.
pub const ORDERS_WAITING_MAX: usize = 16;

/// How long the answer to an order waits for the disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(3);

/// The pause after a write or a read that failed: a full disk is not made better by haste.
const RETRY_WAIT: Duration = Duration::from_secs(1);

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
    pub answer: oneshot::Sender<OrderOutcome>,
}

/// What came of an order that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedOrder {
    /// All drains from now on.
    pub drains: Arc<Drains>,
    /// The order by which it was drained before; `None`: it was not.
    pub before: Option<DrainOrder>,
    /// Why a restart would not know it yet.
    pub problem: Option<String>,
}

/// How an order ended.
pub type OrderOutcome = Result<AcceptedOrder, TooManyDrains>;

/// The drains that a former process left.
#[derive(Clone, Debug, Default)]
pub struct RestoredDrains {
    pub drains: Arc<Drains>,
    /// Why there may be others: what would say so cannot be read now.
    unread: Option<String>,
}

/// Reads what a former process left. What cannot be read is named in the log and stops nothing.
pub fn load_drains(folder: &Path) -> RestoredDrains {
    let file::LoadedDrains { drains, faults: wrong, unread } = file::load(folder);
    for error in &wrong {
        let found = drains.len();
        tracing::warn!(%error, drains = found, "a file of drains is not used; `holdfast drain` shows what is in force");
    }
    RestoredDrains { drains: Arc::new(drains), unread }
}

/// What was written last.
#[derive(Clone, Debug, Default)]
pub struct DrainsWrite {
    /// What the last try was to write.
    drains: Arc<Drains>,
    error: Option<String>,
}

impl DrainsWrite {
    /// As a process begins.
    pub fn from_restored(kept: &RestoredDrains) -> Self {
        Self { drains: Arc::clone(&kept.drains), error: kept.unread.as_deref().map(unread_reason) }
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn from_error(error: &str) -> Self {
        Self { error: Some(error.to_owned()), ..Self::default() }
    }

    /// Why a restart would not know the last orders, as far as the disk tells.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

const NO_ANSWER: &str = "the disk does not answer; it is written as soon as it does";

fn unread_reason(unread: &str) -> String {
    format!("{unread}; nothing is written over it before it can be read")
}

/// Takes orders until nothing can order any more. `told` begins with what the former process wrote.
pub async fn run(
    folder: PathBuf,
    RestoredDrains { drains: begun_with, unread }: RestoredDrains,
    mut orders: mpsc::Receiver<Order>,
    events: mpsc::Sender<Vec<Event>>,
    told: watch::Sender<DrainsWrite>,
) {
    let (wanted, mut to_write) = watch::channel(Arc::clone(&begun_with));
    // One of the two files may have been damaged.
    if !begun_with.is_empty() {
        to_write.mark_changed();
    }
    let (unread, still_unread) = watch::channel(unread);
    let mut desk = DrainController {
        desired: wanted,
        last_write: told.subscribe(),
        events,
        restored: begun_with,
        unread,
    };
    let serving = async {
        loop {
            let is_whole = desk.unread.borrow().is_none();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => desk.execute_order(order).await,
                    None => return,
                },
                () = tokio::time::sleep(RETRY_WAIT), if !is_whole => desk.reread(&folder).await,
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = run_writer(folder.clone(), (to_write, still_unread), told) => {}
    }
}

/// Where orders are taken.
struct DrainController {
    /// The drains in force, for the disk too.
    desired: watch::Sender<Arc<Drains>>,
    last_write: watch::Receiver<DrainsWrite>,
    events: mpsc::Sender<Vec<Event>>,
    // The drains without any order to this process.
    restored: Arc<Drains>,
    // Why there may be others; nothing is written until that is known.
    unread: watch::Sender<Option<String>>,
}

impl DrainController {
    /// Reads again what could not be read, and puts it in force below the orders since then.
    async fn reread(&mut self, folder: &Path) {
        let folder = folder.to_owned();
        let Ok(found) = tokio::task::spawn_blocking(move || file::load(&folder)).await else { return };
        if found.unread.is_some() {
            return;
        }
        let by = stamp_order(nix::unistd::getuid().as_raw()).await;
        let next = merge_later_orders(&self.restored, &self.desired.borrow(), found.drains);
        tracing::info!(drains = next.len(), "the drains of the former process are read now");
        let next = Arc::new(next);
        // What is wanted comes first: what may be written is never less than was found.
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
        // The engine listens until it is stopped; after that no event matters.
        let _ = self.events.send(vec![Event::DrainsApplied(next, by)]).await;
    }

    /// Why these drains are not on disk, in words.
    async fn write_problem(&mut self, drains: &Arc<Drains>) -> Option<String> {
        let is_tried = self.last_write.wait_for(|written| Arc::ptr_eq(&written.drains, drains));
        match tokio::time::timeout(DISK_WAIT_MAX, is_tried).await {
            Ok(Ok(written)) => written.error.clone(),
            Ok(Err(_)) | Err(_) => Some(NO_ANSWER.to_owned()),
        }
    }
}

/// What was found late, with what was ordered meanwhile: drains that have come, and such as were taken back. Where all
/// of them are more than there may be, those that were found stay.
fn merge_later_orders(before: &Drains, now: &Drains, mut found: Drains) -> Drains {
    for (drain, _) in before.iter().filter(|(drain, _)| now.get(drain).is_none()) {
        found.remove(&drain);
    }
    for (drain, by) in now.iter().filter(|(drain, _)| before.get(drain).is_none()) {
        if found.get(&drain).is_none() && found.add(drain.clone(), by.clone()).is_err() {
            tracing::warn!(%drain, "there are as many drains as may be; this one ends");
        }
    }
    found
}

/// The user that orders, at this moment.
async fn stamp_order(uid: u32) -> DrainOrder {
    let user = tokio::task::spawn_blocking(move || user::user_name(Path::new(user::USERS), uid)).await;
    DrainOrder { uid, user: user.ok().flatten(), at: holdfast_host::clock::now().seconds() }
}

/// Writes down what is in force, each time that it is another one, and again where that failed.
async fn run_writer(
    folder: PathBuf,
    (mut wanted, unread): (watch::Receiver<Arc<Drains>>, watch::Receiver<Option<String>>),
    told: watch::Sender<DrainsWrite>,
) {
    let mut failed = false;
    while wanted.changed().await.is_ok() {
        while let Some(error) = write_once(&folder, (&mut wanted, &unread), &told).await {
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
    (wanted, unread): (&mut watch::Receiver<Arc<Drains>>, &watch::Receiver<Option<String>>),
    told: &watch::Sender<DrainsWrite>,
) -> Option<String> {
    let unread = unread.borrow().clone();
    let drains = Arc::clone(&wanted.borrow_and_update());
    let error = match unread {
        Some(unread) => Some(unread_reason(&unread)),
        None => {
            // The disk may hang.
            told.send_modify(|it| it.error = it.error.take().or_else(|| Some(NO_ANSWER.to_owned())));
            store_drains(folder, &drains).await.err()
        }
    };
    told.send_replace(DrainsWrite { drains, error: error.clone() });
    error
}

async fn store_drains(folder: &Path, drains: &Arc<Drains>) -> Result<(), String> {
    let (folder, writing) = (folder.to_owned(), Arc::clone(drains));
    let stored = tokio::task::spawn_blocking(move || file::store(&folder, &writing)).await;
    stored.map_err(|error| error.to_string())?
}
