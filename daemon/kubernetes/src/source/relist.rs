//! Delivers all objects again when the table has space for some that it had left out.
//!
//! Invariant: at most one list per kind and [`RELIST_INTERVAL_MIN`], however often the table asks. All objects are
//! listed, because the table has no space even for the names of those that it left out.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};

use super::reflector::SharedObjectCache;
use super::watch_error::WatchError;

/// The least time between two such lists: a list is expensive, and space can come and go every moment.
const RELIST_INTERVAL_MIN: Duration = Duration::from_secs(60);

/// Runs until the snapshots' publisher or the watch is gone.
pub(super) async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    (source, cache): (Source, SharedObjectCache),
    relist_requests: mpsc::Sender<WatchError>,
) {
    let mut answered = 0;
    loop {
        let requests = |it: &Arc<Snapshot>| it.relist_requests.get(&source).copied().unwrap_or_default();
        let Ok(now) = snapshots.wait_for(|it| requests(it) > answered).await.map(|it| requests(&it)) else {
            return;
        };
        answered = now;
        cache.lock().forget_versions();
        if relist_requests.send(WatchError::RelistRequested).await.is_err() {
            return;
        }
        tokio::time::sleep(RELIST_INTERVAL_MIN).await;
    }
}
