//! Asks the apiserver which pod has a held address that another object lists too.
//!
//! Invariant: nothing waits for an answer. The engine names such addresses in its snapshots, and what an apiserver says
//! comes back to it as an event. All that is asked has a bound, whatever tenants write: so many questions a second, so
//! many for one address with growing pauses, so many addresses of a namespace at once. The namespaces take turns.
//! Without the right to list pods, or without an answer, nothing changes.

mod answer;
mod disputes;

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

/// The least time between two questions of this node.
const PACE: Duration = Duration::from_millis(200);

/// How often snapshots are looked at while they keep coming.
const LOOK: Duration = Duration::from_millis(200);

/// The longest that a new address waits, so that the nodes of a cluster do not ask in one moment.
const SPREAD: Duration = Duration::from_secs(1);

/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(5);

/// The largest answer that is read: the pods at one address are one or a few.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// For how long nothing is asked after the apiserver has refused to list pods.
const FORBIDDEN_PAUSE: Duration = Duration::from_mins(5);

/// The statuses that an apiserver answers with who does not let pods be listed.
const FORBIDDEN: [u16; 2] = [401, 403];

/// Asks until the publisher of snapshots or the engine is gone.
pub async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    access: Access,
    events: mpsc::Sender<Vec<Event>>,
) {
    let mut disputes = Disputes::default();
    let (mut look, mut ask_at) = (Instant::now(), Instant::now());
    let mut is_news = true;
    loop {
        let next = disputes.next().map(|due| due.max(ask_at));
        tokio::select! {
            changed = snapshots.changed(), if !is_news => {
                let Ok(()) = changed else { return };
                is_news = true;
            }
            () = sleep_until(look), if is_news => {
                is_news = false;
                look = Instant::now() + LOOK;
                let snapshot = Arc::clone(&snapshots.borrow_and_update());
                disputes.follow(&snapshot, Instant::now(), &spread);
            }
            () = until(next) => {
                ask_at = Instant::now() + PACE;
                let Some(address) = disputes.take_due(Instant::now()) else { continue };
                match ask(&access, address).await {
                    Answer::Pods(pods) => {
                        if events.send(vec![Event::PodsObserved(Box::new(pods))]).await.is_err() {
                            return;
                        }
                    }
                    Answer::Nothing => {}
                    Answer::Forbidden => ask_at = Instant::now() + FORBIDDEN_PAUSE,
                }
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A random part of the time over which nodes spread.
fn spread() -> Duration {
    SPREAD.mul_f64(f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX))
}

/// What came of a question.
enum Answer {
    Pods(PodsAt),
    /// No pod runs there, or no answer came.
    Nothing,
    /// This node may not list pods.
    Forbidden,
}

async fn ask(access: &Access, address: IpAddr) -> Answer {
    let asked = timeout(QUESTION, list(access, address)).await;
    let (status, body) = match asked {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "the pods at a held address could not be asked for");
            return Answer::Nothing;
        }
        Err(_) => return Answer::Nothing,
    };
    match status {
        200 => answer::pods_at(address, &body).map_or(Answer::Nothing, Answer::Pods),
        status if FORBIDDEN.contains(&status) => {
            tracing::info!(status, "may not list pods: whose a held address is cannot be asked");
            Answer::Forbidden
        }
        _ => Answer::Nothing,
    }
}

/// Asks over a connection of its own, so that what comes of it is held against no apiserver.
async fn list(access: &Access, address: IpAddr) -> Result<(u16, Vec<u8>), crate::apiserver::AccessError> {
    let connection = access.connect().await?;
    let reply = access.ask_aside(JSON, &answer::path(address), connection).await?;
    let status = reply.status;
    let (body, _) = reply.whole(ANSWER_BYTES_MAX, QUESTION).await?;
    Ok((status, body.to_vec()))
}
