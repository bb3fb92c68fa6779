//! Routes to services' addresses that are there exactly while this node can serve them, for FRR, BIRD or keepalived.
//!
//! Invariant: a route goes at once when its address is lost, and comes only when the address has been served for a
//! while. What is not decided yet changes nothing, nor does a file that is not read; and no end of the daemon takes a
//! route away: the datapath serves on.
//! No routing protocol is spoken here, and no other program's route is touched.

mod course;
mod judge;
mod kernel;
mod routes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::{Rejections, ServiceViews, Snapshot};
use holdfast_status::views::announced::{Announced, AnnouncedAddress};
use tokio::sync::watch;

use crate::readings::{Readings, translates_packets};
use course::Course;
use holdfast_config::{Config, ServiceBlock};
use holdfast_host::beat;
use holdfast_standalone::blocks::Read;
use judge::{Former, Standings, Unread};
use kernel::Route;
use routes::Routes;

pub use kernel::take_all;

/// Why a route that a former process left is neither kept nor taken yet.
const NOT_DECIDED: &str = "nothing is decided yet: what a former daemon announced stays";

/// Why a route goes to an address that the configuration no longer has.
const NO_LONGER: &str = "no service is announced there any more";

/// Announces what can be served, until the publisher of snapshots or of configurations is gone.
pub async fn run(
    config: watch::Receiver<Arc<Config>>,
    readings: Readings,
    shown: watch::Sender<Arc<Announced>>,
) {
    let mut follower = Follower::new(config, readings, shown);
    loop {
        let next = follower.look().await;
        let is_idle = follower.is_idle();
        tokio::select! {
            changed = follower.readings.snapshots.changed() => if changed.is_err() { return },
            changed = follower.config.changed() => if changed.is_err() { return },
            () = until(next) => {}
            () = beat::next(), if !is_idle => {}
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

/// What a judgement was made of.
struct Basis {
    services: ServiceViews,
    rejections: Arc<Rejections>,
    /// Whether every file of services has been told that is there.
    is_told: bool,
    config: Arc<Config>,
    more: Arc<[Arc<Read>]>,
    takes_packets: bool,
}

impl Basis {
    fn is_same(&self, other: &Self) -> bool {
        self.services.is_same(&other.services)
            && Arc::ptr_eq(&self.rejections, &other.rejections)
            && Arc::ptr_eq(&self.config, &other.config)
            && Arc::ptr_eq(&self.more, &other.more)
            && (self.is_told, self.takes_packets) == (other.is_told, other.takes_packets)
    }

    /// The blocks that are read.
    fn blocks(&self) -> impl Iterator<Item = &ServiceBlock> {
        self.config.services.iter().chain(self.more.iter().map(|read| &read.service))
    }

    fn judge(&self, former: &Former) -> Standings {
        let mut standings = judge::judge(self.blocks(), &self.services, self.takes_packets);
        if former.keys().all(|address| standings.contains_key(address)) {
            return standings;
        }
        let name = |it: &ServiceBlock| ObjectName::new(it.namespace.as_str(), it.name.as_str()).ok();
        let read = self.blocks().filter_map(name).collect();
        let Self { services, rejections, is_told, .. } = self;
        let unread = Unread { read, services, rejections, is_told: *is_told };
        judge::keep(&mut standings, former, &unread, self.takes_packets);
        standings
    }
}

struct Follower {
    config: watch::Receiver<Arc<Config>>,
    readings: Readings,
    shown: watch::Sender<Arc<Announced>>,
    /// `None` until the kernel has told which routes are there.
    routes: Option<Routes>,
    /// `None` until the kernel has told that, and the table is there by which it is understood.
    former: Option<Former>,
    basis: Option<Basis>,
    standings: Standings,
    course: Course,
}

impl Follower {
    fn new(
        config: watch::Receiver<Arc<Config>>,
        readings: Readings,
        shown: watch::Sender<Arc<Announced>>,
    ) -> Self {
        let (standings, course) = (Standings::new(), Course::default());
        Self { config, readings, shown, routes: None, former: None, basis: None, standings, course }
    }

    /// Whether there is nothing to look after: no address, no route.
    fn is_idle(&self) -> bool {
        self.standings.is_empty() && self.routes.as_ref().is_some_and(Routes::is_empty)
    }

    /// Brings the kernel's routes to what can be served now, and says when to look again at the latest.
    async fn look(&mut self) -> Option<Instant> {
        self.list().await;
        let snapshot = Arc::clone(&self.readings.snapshots.borrow_and_update());
        let config = Arc::clone(&self.config.borrow_and_update());
        let mut next = None;
        if snapshot.programmed {
            self.judge(self.basis_of(&snapshot, &config));
            let now = Instant::now();
            next = self.course.follow(&self.standings, now);
            next = next.into_iter().chain(self.carry_out(&config, now).await).min();
        }
        self.show(&config);
        next
    }

    /// Asks the kernel once which routes are there; where it does not tell, it is asked again.
    async fn list(&mut self) {
        if self.routes.is_some() {
            return;
        }
        match tokio::task::spawn_blocking(kernel::list).await {
            Ok(Ok(listed)) => {
                self.course = Course::of(listed.iter().map(|route| route.address));
                self.routes = Some(Routes::of(listed));
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot list routes; this is tried again within a second");
            }
            Err(_) => {}
        }
    }

    fn basis_of(&self, snapshot: &Snapshot, config: &Arc<Config>) -> Basis {
        Basis {
            services: snapshot.services.clone(),
            rejections: Arc::clone(&snapshot.rejections),
            is_told: snapshot.sources.get(&Source::Config) != Some(&false),
            config: Arc::clone(config),
            more: Arc::clone(&self.readings.more_services.borrow()),
            takes_packets: config.packets.enabled && translates_packets(&self.readings.datapath()),
        }
    }

    fn judge(&mut self, basis: Basis) {
        if self.former.is_none() && self.routes.is_some() {
            self.former = Some(judge::former(self.course.announced(), &basis.services));
        } else if self.basis.as_ref().is_some_and(|before| before.is_same(&basis)) {
            return;
        }
        let nothing = Former::new();
        self.standings = basis.judge(self.former.as_ref().unwrap_or(&nothing));
        self.basis = Some(basis);
    }

    async fn carry_out(&mut self, config: &Config, now: Instant) -> Option<Instant> {
        let routes = self.routes.as_mut()?;
        let table = config.announce.table.number();
        let wanted: BTreeSet<Route> =
            self.course.announced().map(|address| Route { table, address }).collect();
        let steps = routes.steps(&wanted, now);
        if !steps.is_empty()
            && let Ok(outcomes) = tokio::task::spawn_blocking(move || kernel::carry_out(steps)).await
        {
            for (step, outcome) in outcomes {
                let why = self.standings.get(&step.route.address).and_then(|it| it.judged.why());
                routes.done(step, outcome, now, why.unwrap_or(NO_LONGER));
            }
        }
        routes.next()
    }

    fn show(&self, config: &Config) {
        let now =
            self.routes.as_ref().map_or_else(Announced::default, |routes| self.announced(routes, config));
        self.shown.send_if_modified(|before| {
            let is_news = **before != now;
            if is_news {
                *before = Arc::new(now);
            }
            is_news
        });
    }

    fn announced(&self, routes: &Routes, config: &Config) -> Announced {
        let table = config.announce.table.number();
        let of_services = self.standings.iter().map(|(address, standing)| {
            let route = Route { table, address: *address };
            routes.shown(route, standing.why(routes.has(route)))
        });
        let left = if self.basis.is_some() { NO_LONGER } else { NOT_DECIDED };
        let is_other = |route: &&Route| route.table != table || !self.standings.contains_key(&route.address);
        let others = routes.there().filter(is_other).map(|route| routes.shown(*route, Some(left.to_owned())));
        let mut addresses: Vec<AnnouncedAddress> = of_services.chain(others).collect();
        addresses.sort_by_key(|it| (it.address, it.table));
        let [put, taken, refused] = routes.totals();
        Announced { addresses, put, taken, refused }
    }
}
