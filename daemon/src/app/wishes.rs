//! What clients at the unix socket wish and order, on its way to the tasks that do it.
//!
//! Invariant: each kind of wish has a queue of its own, so none holds up another one.

use std::path::{Path, PathBuf};

use holdfast_core::event::Event;
use tokio::sync::{mpsc, watch};

use holdfast_agent::drains::{self, ORDERS_WAITING_MAX, Order};
use holdfast_api::{Acts, FORGETS_WAITING_MAX, ForgetWish, RELOADS_WAITING_MAX, ReloadWish};
use holdfast_evidence::diagnose::gather::Gatherer;

/// Wishes of clients at the unix socket.
pub(super) struct Wishes {
    pub(super) reloads: mpsc::Receiver<ReloadWish>,
    pub(super) forgets: mpsc::Receiver<ForgetWish>,
}

/// Orders to drain, and what was in force before the first one.
pub(super) struct Draining {
    orders: mpsc::Receiver<Order>,
    kept: drains::Kept,
    folder: PathBuf,
    written: watch::Sender<drains::Written>,
}

/// What clients may set going, and the other ends of it. The folder is that of the state.
pub(super) fn channels(gatherer: Gatherer, kept: drains::Kept, folder: &Path) -> (Acts, Wishes, Draining) {
    let (reloads_out, reloads) = mpsc::channel(RELOADS_WAITING_MAX);
    let (forgets_out, forgets) = mpsc::channel(FORGETS_WAITING_MAX);
    let (orders_out, orders) = mpsc::channel(ORDERS_WAITING_MAX);
    let acts = Acts { gatherer, reloads: reloads_out, forgets: forgets_out, drains: orders_out };
    let written = watch::channel(drains::Written::by_the_former(&kept)).0;
    (acts, Wishes { reloads, forgets }, Draining { orders, kept, folder: folder.to_owned(), written })
}

impl Draining {
    /// How the last write of the drains went.
    pub(super) fn written(&self) -> watch::Receiver<drains::Written> {
        self.written.subscribe()
    }

    /// Takes orders as long as the daemon runs.
    pub(super) async fn run(self, events: mpsc::Sender<Vec<Event>>) {
        drains::run(self.folder, self.kept, self.orders, events, self.written).await;
    }
}
