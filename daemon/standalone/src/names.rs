//! Names of backends: asked for again and again, and told when what they have changes.
//!
//! Invariant: this source says what backends a service has, and nothing else of it; what becomes of that the source of
//! the service decides. A name that cannot be resolved changes nothing of what was told of it before. Nothing here is
//! on the way to an apiserver, and no other source waits for an answer.

mod course;
mod lookup;
mod pace;
mod seen;
mod servers;
mod set;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::keys::{Family, ObjectName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use course::{Change, Course};
pub use holdfast_config::Resolve;
use holdfast_host::clock::{self, sleep_until};
use holdfast_host::logging::quota::Quota;
pub use lookup::Said;
use lookup::{Answered, Asking, Unresolved};
use pace::Pace;
pub use seen::Names;
use servers::Failures;
pub use set::Set;

/// What is wished to be known of one service's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub resolve: Resolve,
    /// The families that clients of the service have.
    pub families: Vec<Family>,
    /// The name servers, in the order in which they are asked; at least one.
    pub servers: Arc<[SocketAddr]>,
}

impl Wish {
    fn first_server(&self) -> SocketAddr {
        // There is one: the configuration has no name without a server.
        self.servers.first().copied().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }
}

/// The services that are wished for.
pub type Wanted = BTreeMap<ObjectName, Arc<Wish>>;

/// What is said of a name's backends, or why nothing is known of them.
pub type News = Result<Arc<Said>, Arc<str>>;

/// What is known of a service's backends now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameNews {
    pub service: ObjectName,
    /// What was wished.
    pub wish: Arc<Wish>,
    pub said: News,
}

type Finished = (ObjectName, Arc<Wish>, Result<Answered, Unresolved>);

/// Asks for what is wanted, and tells what changes. `seed` spreads the questions of a cluster's nodes. Returns when
/// `wanted` has no sender or `news` no receiver any more.
pub async fn run(
    mut wanted: watch::Receiver<Arc<Wanted>>,
    news: mpsc::Sender<Vec<NameNews>>,
    seen: Arc<Names>,
    seed: u64,
) {
    let began = Instant::now();
    let asking = Arc::new(Asking { began, pace: Pace::new(began), failures: Failures::default() });
    let mut source =
        Running { asking, seen, course: Course::new(seed), tasks: JoinSet::new(), quota: Quota::default() };
    source.want(&Arc::clone(&wanted.borrow_and_update()));
    loop {
        source.start_due();
        let told = tokio::select! {
            wished = wanted.changed() => {
                if wished.is_err() {
                    return;
                }
                source.want(&Arc::clone(&wanted.borrow_and_update()));
                Vec::new()
            }
            // Never an error: no look-up is aborted while it is awaited, and a panic ends the whole process.
            Some(Ok(finished)) = source.tasks.join_next() => source.take_finished(finished),
            () = sleep_until(source.course.next_due().map(|due| began + due)) => Vec::new(),
            () = news.closed() => return,
        };
        if !told.is_empty() && news.send(told).await.is_err() {
            return;
        }
    }
}

struct Running {
    asking: Arc<Asking>,
    seen: Arc<Names>,
    course: Course,
    tasks: JoinSet<Finished>,
    quota: Quota,
}

impl Running {
    fn want(&mut self, wanted: &Wanted) {
        let servers = wanted.values().next().map(|wish| Arc::clone(&wish.servers)).unwrap_or_default();
        self.asking.failures.retain(&servers);
        for (service, row) in self.course.want(wanted, self.asking.began.elapsed()) {
            self.seen.put(&service, row);
        }
    }

    fn start_due(&mut self) {
        while let Some((service, wish)) = self.course.start_due(self.asking.began.elapsed()) {
            let (asking, seen) = (Arc::clone(&self.asking), Arc::clone(&self.seen));
            self.tasks.spawn(async move {
                let outcome = asking.resolve(&wish, &seen).await;
                (service, wish, outcome)
            });
        }
    }

    /// Takes every look-up that has ended by now, so that what turns together is told once.
    fn take_finished(&mut self, first: Finished) -> Vec<NameNews> {
        let mut told = Vec::new();
        let mut next = Some(first);
        while let Some((service, wish, outcome)) = next {
            let times = (self.asking.began.elapsed(), clock::now());
            if let Some(change) = self.course.finished((&service, &wish), outcome, times) {
                told.extend(self.show(&service, change));
            }
            next = self.tasks.try_join_next().and_then(Result::ok);
        }
        told
    }

    fn show(&mut self, service: &ObjectName, Change { news, row, is_mended }: Change) -> Option<NameNews> {
        let name = &row.name;
        let allowed = is_mended.then(|| self.quota.say(self.asking.began.elapsed())).flatten();
        if let Some(unsaid) = allowed {
            tracing::info!(%service, name, unsaid = (unsaid > 0).then_some(unsaid), "name resolved again");
        }
        self.seen.put(service, Some(row));
        news
    }
}

#[cfg(test)]
mod tests;
