//! Carries requests of clients at the unix socket to the tasks that serve them.
//!
//! Invariant: each kind of request has its own queue, so none delays another.

use std::path::{Path, PathBuf};

use holdfast_core::event::Event;
use tokio::sync::{mpsc, watch};

use holdfast_agent::drains::{self, ORDERS_WAITING_MAX, Order};
use holdfast_api::{FORGETS_WAITING_MAX, ForgetRequest, RELOADS_WAITING_MAX, ReloadRequest, RequestSenders};
use holdfast_evidence::diagnose::gather::Gatherer;

pub(super) struct ClientRequests {
    pub(super) reloads: mpsc::Receiver<ReloadRequest>,
    pub(super) forgets: mpsc::Receiver<ForgetRequest>,
}

/// Orders to drain, and the drains in force before the first one.
pub(super) struct DrainOrders {
    orders: mpsc::Receiver<Order>,
    restored: drains::RestoredDrains,
    folder: PathBuf,
    last_write: watch::Sender<drains::DrainsWrite>,
}

/// The channels of what clients may request. The folder holds the state.
pub(super) fn channels(
    gatherer: Gatherer,
    restored_drains: drains::RestoredDrains,
    folder: &Path,
) -> (RequestSenders, ClientRequests, DrainOrders) {
    let (reloads_out, reloads) = mpsc::channel(RELOADS_WAITING_MAX);
    let (forgets_out, forgets) = mpsc::channel(FORGETS_WAITING_MAX);
    let (orders_out, orders) = mpsc::channel(ORDERS_WAITING_MAX);
    let acts = RequestSenders { gatherer, reloads: reloads_out, forgets: forgets_out, drains: orders_out };
    let written = watch::channel(drains::DrainsWrite::from_restored(&restored_drains)).0;
    (
        acts,
        ClientRequests { reloads, forgets },
        DrainOrders { orders, restored: restored_drains, folder: folder.to_owned(), last_write: written },
    )
}

impl DrainOrders {
    pub(super) fn last_write(&self) -> watch::Receiver<drains::DrainsWrite> {
        self.last_write.subscribe()
    }

    /// Takes orders as long as the daemon runs.
    pub(super) async fn run(self, events: mpsc::Sender<Vec<Event>>) {
        drains::run(self.folder, self.restored, self.orders, events, self.last_write).await;
    }
}
