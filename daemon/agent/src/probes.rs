//! Probes whether the backends of held lists are alive.
//!
//! Invariant: an address is dialled only if a service of the table had it as a ready backend and a pod can have it,
//! only while its list is held, and from an exempt socket. The probes in flight, per second and per address are
//! bounded, however much is held, and the nodes of a cluster do not begin at the same time.

mod addresses;
mod dial;
mod fair_queue;
mod schedule;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::hold::{ProbeAnswer, ProbeResult};
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use holdfast_config::Config;
use schedule::Schedule;

/// The time between two probes of any backends: 500 per second, far below a node's own clients.
const GAP: Duration = Duration::from_millis(2);

/// The most probes in flight: as many as can begin within [`dial::TIMEOUT`].
const IN_FLIGHT_MAX: usize = 512;

/// How often the held lists are scanned while snapshots keep coming: the longest delay before a new hold is noticed.
const RESCAN_GAP: Duration = Duration::from_millis(100);

/// The longest delay before a new list is probed. All nodes learn of a loss at once, so this spreads the probes of
/// thousands of nodes. It equals the default pause between two probes of one backend.
const START_JITTER_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct ProbeCounts([AtomicU64; ProbeAnswer::ALL.len()]);

impl ProbeCounts {
    pub fn totals(&self) -> impl Iterator<Item = (ProbeAnswer, u64)> {
        ProbeAnswer::ALL.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub fn count(&self, answer: ProbeAnswer) {
        if let Some((_, count)) = ProbeAnswer::ALL.into_iter().zip(&self.0).find(|(it, _)| *it == answer) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Probes until the publisher of snapshots or the engine is gone.
pub async fn run(
    snapshots: watch::Receiver<Arc<Snapshot>>,
    config: watch::Receiver<Arc<Config>>,
    events: mpsc::Sender<Vec<Event>>,
    counts: Arc<ProbeCounts>,
) {
    run_by(dial::probe_backend, snapshots, config, events, counts).await;
}

async fn run_by<A: Future<Output = Option<ProbeAnswer>> + Send + 'static>(
    ask: impl Fn(SocketAddr) -> A,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    config: watch::Receiver<Arc<Config>>,
    events: mpsc::Sender<Vec<Event>>,
    counts: Arc<ProbeCounts>,
) {
    let mut schedule = Schedule::default();
    let mut probes: JoinSet<Option<ProbeResult>> = JoinSet::new();
    let mut look = Instant::now();
    let mut begin = Instant::now();
    let mut is_news = false;
    loop {
        let is_free = probes.len() < IN_FLIGHT_MAX;
        let next = schedule.next(begin).filter(|_| is_free);
        tokio::select! {
            changed = snapshots.changed(), if !is_news => {
                let Ok(()) = changed else { return };
                is_news = true;
            }
            () = tokio::time::sleep_until(look), if is_news => {
                is_news = false;
                look = Instant::now() + RESCAN_GAP;
                let snapshot = Arc::clone(&snapshots.borrow_and_update());
                let most = config.borrow().hold.probe_interval.min(START_JITTER_MAX);
                schedule.follow(&snapshot, Instant::now(), &|| most.mul_f64(random_fraction()));
            }
            Some(Ok(probed)) = probes.join_next() => {
                let Some(probed) = probed else { continue };
                counts.count(probed.answer);
                if events.send(vec![Event::Probed(Box::new(probed))]).await.is_err() {
                    return;
                }
            }
            () = wait_until(next) => {
                let now = Instant::now();
                begin = now + GAP;
                let interval = jitter(config.borrow().hold.probe_interval);
                if let Some(target) = schedule.take_first(now, now + interval) {
                    let answer = ask(target.backend);
                    probes.spawn(async move { answer.await.map(|answer| target.into_probed(answer)) });
                }
            }
        }
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The interval, up to a fifth longer or shorter, so that many backends do not synchronize.
fn jitter(interval: Duration) -> Duration {
    interval.mul_f64(0.8 + 0.4 * random_fraction())
}

/// A random number between 0 and 1. Without randomness, nodes and backends merely stay synchronized.
fn random_fraction() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
