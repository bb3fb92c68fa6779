//! Routes to services' addresses that are there exactly while this node can serve them, for FRR, BIRD or keepalived.
//!
//! Invariant: a route goes at once when its address is lost, and comes only when the address has been served for a
//! while. What is not decided yet changes nothing, and no end of the daemon takes a route away: the datapath serves on.
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

use holdfast_core::snapshot::ServiceViews;
use holdfast_judgement::views::announced::{Announced, AnnouncedAddress};
use tokio::sync::watch;

use crate::beat;
use crate::config::Config;
use crate::readings::{Readings, translates_packets};
use crate::sources::config::Read;
use course::Course;
use judge::Standings;
use kernel::Route;
use routes::Routes;

pub(crate) use kernel::take_all;

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
    config: Arc<Config>,
    more: Arc<[Arc<Read>]>,
    takes_packets: bool,
}

struct Follower {
    config: watch::Receiver<Arc<Config>>,
    readings: Readings,
    shown: watch::Sender<Arc<Announced>>,
    /// `None` until the kernel has told which routes are there.
    routes: Option<Routes>,
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
        Self { config, readings, shown, routes: None, basis: None, standings, course }
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
            let takes_packets = config.packets.enabled && translates_packets(&self.readings.datapath());
            let more = Arc::clone(&self.readings.more_services.borrow());
            let services = snapshot.services.clone();
            self.judge(Basis { services, config: Arc::clone(&config), more, takes_packets });
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

    fn judge(&mut self, basis: Basis) {
        let is_same = |before: &Basis| {
            before.services.is_same(&basis.services)
                && Arc::ptr_eq(&before.config, &basis.config)
                && Arc::ptr_eq(&before.more, &basis.more)
                && before.takes_packets == basis.takes_packets
        };
        if !self.basis.as_ref().is_some_and(is_same) {
            let blocks = basis.config.services.iter().chain(basis.more.iter().map(|read| &read.service));
            self.standings = judge::judge(blocks, &basis.services, basis.takes_packets);
            self.basis = Some(basis);
        }
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
