//! Asks the backends of held lists whether they are there.
//!
//! Invariant: only an address is dialled that a service of the table had as a ready backend, and only while its list is
//! held; from a socket that no program translates. Probes in flight and per second are bounded whatever is held.
//! Deliberately absent: what follows from an answer (the rules decide).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_core::event::Event;
use holdfast_core::hold::{Answer, Probed};
use holdfast_core::keys::{PortKey, ServiceKey};
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::exempt;

/// A backend in the same cluster accepts within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two probes of any backends: 500 a second, far below what a node's own clients do.
const GAP: Duration = Duration::from_millis(2);

/// As many as can begin within [`TIMEOUT`].
const IN_FLIGHT_MAX: usize = 512;

/// How often it is looked at what is held while snapshots keep coming.
const LOOK: Duration = Duration::from_millis(100);

/// One backend of one held list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    service: ServiceKey,
    port: PortKey,
    backend: SocketAddr,
}

/// What is probed, and when each is next.
#[derive(Debug, Default)]
struct Schedule {
    due: BTreeSet<(Instant, Arc<Target>)>,
    known: BTreeMap<Arc<Target>, Instant>,
}

impl Schedule {
    /// Takes over what is held now: what is new is due at once, what is no longer held is forgotten.
    fn follow(&mut self, held: BTreeSet<Target>, now: Instant) {
        let Self { due, known } = self;
        known.retain(|target, at| held.contains(&**target) || !due.remove(&(*at, Arc::clone(target))));
        for target in held {
            if !self.known.contains_key(&target) {
                self.plan(Arc::new(target), now);
            }
        }
    }

    fn plan(&mut self, target: Arc<Target>, at: Instant) {
        self.due.insert((at, Arc::clone(&target)));
        self.known.insert(target, at);
    }

    fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The one that has waited longest, and when it is its turn again.
    fn take_first(&mut self, again: Instant) -> Option<Arc<Target>> {
        let (_, target) = self.due.pop_first()?;
        self.plan(Arc::clone(&target), again);
        Some(target)
    }
}

/// How many probes met which answer, since the start.
#[derive(Debug, Default)]
pub struct Probes([AtomicU64; Answer::ALL.len()]);

impl Probes {
    /// Each answer with its count.
    pub fn totals(&self) -> impl Iterator<Item = (Answer, u64)> {
        Answer::ALL.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(crate) fn count(&self, answer: Answer) {
        if let Some((_, count)) = Answer::ALL.into_iter().zip(&self.0).find(|(it, _)| *it == answer) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Probes until nobody listens any more.
pub async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    config: watch::Receiver<Arc<Config>>,
    events: mpsc::Sender<Vec<Event>>,
    counts: Arc<Probes>,
) {
    let mut schedule = Schedule::default();
    let mut probes: JoinSet<Option<Probed>> = JoinSet::new();
    let (mut look, mut begin) = (Instant::now(), Instant::now());
    loop {
        let is_free = probes.len() < IN_FLIGHT_MAX;
        let next = schedule.next().filter(|_| is_free).map(|at| at.max(begin));
        tokio::select! {
            seen = changed(&mut snapshots, look) => {
                let Some(snapshot) = seen else { return };
                look = Instant::now() + LOOK;
                schedule.follow(held(&snapshot), Instant::now());
            }
            Some(Ok(Some(probed))) = probes.join_next() => {
                counts.count(probed.answer);
                if events.send(vec![Event::Probed(Box::new(probed))]).await.is_err() {
                    return;
                }
            }
            () = until(next) => {
                begin = Instant::now() + GAP;
                let interval = spread(config.borrow().hold.probe_interval);
                probes.spawn(probe(schedule.take_first(Instant::now() + interval)));
            }
        }
    }
}

/// The next snapshot, but none before that time. `None`: there will be no more.
async fn changed(snapshots: &mut watch::Receiver<Arc<Snapshot>>, earliest: Instant) -> Option<Arc<Snapshot>> {
    tokio::time::sleep_until(earliest.into()).await;
    snapshots.changed().await.ok()?;
    Some(Arc::clone(&snapshots.borrow_and_update()))
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Every backend that may be asked now.
fn held(snapshot: &Snapshot) -> BTreeSet<Target> {
    let views = snapshot.held.iter().filter_map(|id| snapshot.services.get(id.0 as usize));
    let mut targets = BTreeSet::new();
    for view in views {
        for port in &view.ports {
            let backends = port.hold.iter().flat_map(|hold| hold.probes(port.key.transport));
            targets.extend(backends.map(|backend| Target {
                service: view.key.clone(),
                port: port.key.clone(),
                backend,
            }));
        }
    }
    targets
}

/// Up to a fifth more or less, so that many backends do not stay in step.
fn spread(interval: Duration) -> Duration {
    // Without randomness they merely stay in step.
    let part = f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX);
    interval.mul_f64(0.8 + 0.4 * part)
}

async fn probe(target: Option<Arc<Target>>) -> Option<Probed> {
    let target = target?;
    let answer = match tokio::time::timeout(TIMEOUT, exempt::connect(target.backend)).await {
        Ok(Ok(_stream)) => Answer::Accepted,
        Ok(Err(error)) if says_nobody(&error) => Answer::Refused,
        Ok(Err(_)) | Err(_) => Answer::Silent,
    };
    let Target { service, port, backend } = Target::clone(&target);
    Some(Probed { service, port, backend, answer })
}

/// Whether somebody answered for the address, and said that nobody is there.
fn says_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable)
}

#[cfg(test)]
mod tests;
