//! Asks the apiserver which Pod has a held address that another object lists too.
//!
//! Invariant: nothing waits for a reply. The engine names such addresses in its snapshots, and replies return to it as
//! events. All requests are bounded, whatever tenants write: the rate, the requests per address with growing pauses,
//! and the addresses per namespace. Namespaces take turns. Without the permission to list Pods, or without a reply,
//! nothing changes.

mod disputes;
mod pod_list;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::hold::PodsAt;
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use self::disputes::Disputes;
use crate::apiserver::{Access, JSON};

/// The least time between two requests of this node.
const QUERY_INTERVAL_MIN: Duration = Duration::from_millis(200);

/// How often to read snapshots while they keep coming.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(200);

/// The longest delay of a new address, so that the nodes of a cluster do not ask at the same moment.
const INITIAL_DELAY_MAX: Duration = Duration::from_secs(1);

/// The limit of one request.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest reply: an address has one Pod or a few.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// The pause after the apiserver has refused to list Pods.
const FORBIDDEN_PAUSE: Duration = Duration::from_mins(5);

/// Statuses of an apiserver that denies listing Pods.
const FORBIDDEN: [u16; 2] = [401, 403];

/// Asks until the snapshots' publisher or the engine is gone.
pub async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    access: Access,
    events: mpsc::Sender<Vec<Event>>,
) {
    let mut disputes = Disputes::default();
    let (mut look, mut ask_at) = (Instant::now(), Instant::now());
    let mut is_news = true;
    loop {
        let next = disputes.next_due().map(|due| due.max(ask_at));
        tokio::select! {
            changed = snapshots.changed(), if !is_news => {
                let Ok(()) = changed else { return };
                is_news = true;
            }
            () = sleep_until(look), if is_news => {
                is_news = false;
                look = Instant::now() + SNAPSHOT_INTERVAL;
                let snapshot = Arc::clone(&snapshots.borrow_and_update());
                disputes.update_disputes(&snapshot, Instant::now(), &random_delay);
            }
            () = sleep_until_due(next) => {
                ask_at = Instant::now() + QUERY_INTERVAL_MIN;
                let Some(address) = disputes.take_due(Instant::now()) else { continue };
                match query_pods(&access, address).await {
                    PodListOutcome::Pods(pods) => {
                        if events.send(vec![Event::PodsObserved(Box::new(pods))]).await.is_err() {
                            return;
                        }
                    }
                    PodListOutcome::Nothing => {}
                    PodListOutcome::Forbidden => ask_at = Instant::now() + FORBIDDEN_PAUSE,
                }
            }
        }
    }
}

async fn sleep_until_due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A random part of [`INITIAL_DELAY_MAX`].
fn random_delay() -> Duration {
    INITIAL_DELAY_MAX.mul_f64(f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX))
}

/// The result of a request.
enum PodListOutcome {
    Pods(PodsAt),
    /// No Pod runs at the address, or no reply came.
    Nothing,
    /// This node may not list Pods.
    Forbidden,
}

async fn query_pods(access: &Access, address: IpAddr) -> PodListOutcome {
    let result = timeout(QUERY_TIMEOUT, list_pods(access, address)).await;
    let (status, body) = match result {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "cannot list the pods at a held address");
            return PodListOutcome::Nothing;
        }
        Err(_) => return PodListOutcome::Nothing,
    };
    match status {
        200 => pod_list::parse_pods(address, &body).map_or(PodListOutcome::Nothing, PodListOutcome::Pods),
        status if FORBIDDEN.contains(&status) => {
            tracing::info!(status, "may not list pods, so cannot find the owner of a held address");
            PodListOutcome::Forbidden
        }
        _ => PodListOutcome::Nothing,
    }
}

/// Asks over its own connection, so that no outcome counts against the apiserver.
async fn list_pods(
    access: &Access,
    address: IpAddr,
) -> Result<(u16, Vec<u8>), crate::apiserver::AccessError> {
    let connection = access.connect().await?;
    let reply = access.get_best_effort(JSON, &pod_list::pod_list_path(address), connection).await?;
    let status = reply.status;
    let (body, _) = reply.read_body(REPLY_BYTES_MAX, QUERY_TIMEOUT).await?;
    Ok((status, body.to_vec()))
}
