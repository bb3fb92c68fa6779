//! Delivers everything once more when the table asks for it, because it had no room for something.
//!
//! Invariant: it causes at most one list of each kind in [`PAUSE`], however often the table asks. Everything is listed,
//! because the table could not keep even the names of what it left out.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};

use super::ending::Ending;
use super::reflector::SharedDelivered;

/// A list of everything is expensive, and room can come and go every moment.
const PAUSE: Duration = Duration::from_secs(60);

/// Runs until the publisher of snapshots or the watch is gone.
pub(super) async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    delivered: SharedDelivered,
    endings: mpsc::Sender<Ending>,
) {
    let mut heeded = 0;
    loop {
        let asks = |it: &Arc<Snapshot>| it.asks.get(&Source::Kubernetes).copied().unwrap_or_default();
        let Ok(now) = snapshots.wait_for(|it| asks(it) > heeded).await.map(|it| asks(&it)) else { return };
        heeded = now;
        delivered.lock().forget_versions();
        if endings.send(Ending::Asked).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
