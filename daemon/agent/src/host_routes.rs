//! Announces services' addresses while this node can serve them, as routes for FRR, BIRD or keepalived.
//!
//! Invariant: a lost address loses its route at once, and gets it back only after it was served for a while. An
//! undecided state changes nothing, nor does an unread file, and no end of the daemon removes a route: the datapath
//! continues to serve. This module speaks no routing protocol, and touches no other program's route.

mod address_state;
mod flap_damper;
mod kernel;
mod routes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::{Rejections, ServiceViews, Snapshot};
use holdfast_status::views::announcements::{AnnouncedAddress, AnnouncementStatus};
use tokio::sync::watch;

use crate::readings::{Readings, translates_packets};
use address_state::{AddressStates, FormerAddresses, UnreadFiles};
use flap_damper::FlapDamper;
use holdfast_config::{Config, ServiceBlock};
use holdfast_host::ticker;
use holdfast_standalone::blocks::ParsedBlock;
use kernel::Route;
use routes::InstalledRoutes;

pub use kernel::remove_all;

/// Why a former process's route is neither kept nor removed yet.
const NOT_DECIDED: &str = "not judged yet: a former daemon's route stays";

/// Why an address that the configuration lacks loses its route.
const NO_LONGER: &str = "no service announces it any more";

/// Announces served addresses, until the publisher of snapshots or of configurations is gone.
pub async fn run(
    config: watch::Receiver<Arc<Config>>,
    readings: Readings,
    shown: watch::Sender<Arc<AnnouncementStatus>>,
) {
    let mut follower = RouteAnnouncer::new(config, readings, shown);
    loop {
        let next = follower.reconcile().await;
        let is_idle = follower.is_idle();
        tokio::select! {
            changed = follower.readings.snapshots.changed() => if changed.is_err() { return },
            changed = follower.config.changed() => if changed.is_err() { return },
            () = wait_until(next) => {}
            () = ticker::next_tick(), if !is_idle => {}
        }
    }
}

async fn wait_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

struct JudgementInput {
    services: ServiceViews,
    rejections: Arc<Rejections>,
    /// Whether every existing file of services was read.
    is_complete: bool,
    config: Arc<Config>,
    more_services: Arc<[Arc<ParsedBlock>]>,
    takes_packets: bool,
}

impl JudgementInput {
    fn is_same(&self, other: &Self) -> bool {
        self.services.is_same(&other.services)
            && Arc::ptr_eq(&self.rejections, &other.rejections)
            && Arc::ptr_eq(&self.config, &other.config)
            && Arc::ptr_eq(&self.more_services, &other.more_services)
            && (self.is_complete, self.takes_packets) == (other.is_complete, other.takes_packets)
    }

    /// The blocks of all files that were read.
    fn blocks(&self) -> impl Iterator<Item = &ServiceBlock> {
        self.config.services.iter().chain(self.more_services.iter().map(|read| &read.service))
    }

    fn judge(&self, former: &FormerAddresses) -> AddressStates {
        let mut standings = address_state::judge_blocks(self.blocks(), &self.services, self.takes_packets);
        if former.keys().all(|address| standings.contains_key(address)) {
            return standings;
        }
        let name = |it: &ServiceBlock| ObjectName::new(it.namespace.as_str(), it.name.as_str()).ok();
        let read = self.blocks().filter_map(name).collect();
        let Self { services, rejections, is_complete: is_told, .. } = self;
        let unread = UnreadFiles { read, services, rejections, is_complete: *is_told };
        address_state::keep_former(&mut standings, former, &unread, self.takes_packets);
        standings
    }
}

struct RouteAnnouncer {
    config: watch::Receiver<Arc<Config>>,
    readings: Readings,
    view: watch::Sender<Arc<AnnouncementStatus>>,
    /// `None` until the kernel has listed them.
    routes: Option<InstalledRoutes>,
    /// `None` until the kernel has listed them and the table that explains them exists.
    former: Option<FormerAddresses>,
    input: Option<JudgementInput>,
    states: AddressStates,
    damper: FlapDamper,
}

impl RouteAnnouncer {
    fn new(
        config: watch::Receiver<Arc<Config>>,
        readings: Readings,
        shown: watch::Sender<Arc<AnnouncementStatus>>,
    ) -> Self {
        let (standings, course) = (AddressStates::new(), FlapDamper::default());
        Self {
            config,
            readings,
            view: shown,
            routes: None,
            former: None,
            input: None,
            states: standings,
            damper: course,
        }
    }

    /// Whether there is neither an address nor a route.
    fn is_idle(&self) -> bool {
        self.states.is_empty() && self.routes.as_ref().is_some_and(InstalledRoutes::is_empty)
    }

    /// Reconciles the kernel's routes with the served addresses, and returns when to run again at the latest.
    async fn reconcile(&mut self) -> Option<Instant> {
        self.list_routes().await;
        let snapshot = Arc::clone(&self.readings.snapshots.borrow_and_update());
        let config = Arc::clone(&self.config.borrow_and_update());
        let mut next = None;
        if snapshot.programmed {
            self.judge(self.build_input(&snapshot, &config));
            let now = Instant::now();
            next = self.damper.update(&self.states, now);
            next = next.into_iter().chain(self.carry_out(&config, now).await).min();
        }
        self.publish(&config);
        next
    }

    /// Lists the kernel's routes once; a failure is retried.
    async fn list_routes(&mut self) {
        if self.routes.is_some() {
            return;
        }
        match tokio::task::spawn_blocking(kernel::list_routes).await {
            Ok(Ok(listed)) => {
                self.damper = FlapDamper::from_announced(listed.iter().map(|route| route.address));
                self.routes = Some(InstalledRoutes::from_installed(listed));
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot list routes; retrying within a second");
            }
            Err(_) => {}
        }
    }

    fn build_input(&self, snapshot: &Snapshot, config: &Arc<Config>) -> JudgementInput {
        JudgementInput {
            services: snapshot.services.clone(),
            rejections: Arc::clone(&snapshot.rejections),
            is_complete: snapshot.sources.get(&Source::Config) != Some(&false),
            config: Arc::clone(config),
            more_services: Arc::clone(&self.readings.more_services.borrow()),
            takes_packets: config.packets.enabled && translates_packets(&self.readings.datapath()),
        }
    }

    fn judge(&mut self, basis: JudgementInput) {
        if self.former.is_none() && self.routes.is_some() {
            self.former =
                Some(address_state::former_addresses(self.damper.announced_addresses(), &basis.services));
        } else if self.input.as_ref().is_some_and(|before| before.is_same(&basis)) {
            return;
        }
        let nothing = FormerAddresses::new();
        self.states = basis.judge(self.former.as_ref().unwrap_or(&nothing));
        self.input = Some(basis);
    }

    async fn carry_out(&mut self, config: &Config, now: Instant) -> Option<Instant> {
        let routes = self.routes.as_mut()?;
        let table = config.announce.table.number();
        let wanted: BTreeSet<Route> =
            self.damper.announced_addresses().map(|address| Route { table, address }).collect();
        let steps = routes.plan_steps(&wanted, now);
        if !steps.is_empty()
            && let Ok(outcomes) = tokio::task::spawn_blocking(move || kernel::carry_out(steps)).await
        {
            for (step, outcome) in outcomes {
                let why = self.states.get(&step.route.address).and_then(|it| it.serving.reason());
                routes.record_outcome(step, outcome, now, why.unwrap_or(NO_LONGER));
            }
        }
        routes.next_retry()
    }

    fn publish(&self, config: &Config) {
        let now = self
            .routes
            .as_ref()
            .map_or_else(AnnouncementStatus::default, |routes| self.to_view(routes, config));
        self.view.send_if_modified(|before| {
            let is_news = **before != now;
            if is_news {
                *before = Arc::new(now);
            }
            is_news
        });
    }

    fn to_view(&self, routes: &InstalledRoutes, config: &Config) -> AnnouncementStatus {
        let table = config.announce.table.number();
        let of_services = self.states.iter().map(|(address, standing)| {
            let route = Route { table, address: *address };
            routes.to_view(route, standing.pending_reason(routes.contains(route)))
        });
        let left = if self.input.is_some() { NO_LONGER } else { NOT_DECIDED };
        let is_other = |route: &&Route| route.table != table || !self.states.contains_key(&route.address);
        let others =
            routes.iter().filter(is_other).map(|route| routes.to_view(*route, Some(left.to_owned())));
        let mut addresses: Vec<AnnouncedAddress> = of_services.chain(others).collect();
        addresses.sort_by_key(|it| (it.address, it.table));
        let [put, taken, refused] = routes.totals();
        AnnouncementStatus { addresses, added: put, removed: taken, failures: refused }
    }
}
