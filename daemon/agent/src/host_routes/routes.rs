//! Tracks which of our routes the kernel has, and which changes it refused.
//!
//! Invariant: a route counts as installed from the kernel's acknowledgement until that of its removal. If an add timed
//! out, its route is removed too. A refused change is retried, less and less often, and delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use holdfast_host::logging::messages::NOTICE;
use holdfast_status::views::announcements::AnnouncedAddress;
use nix::libc;

use super::kernel::{Route, RouteChange, RouteStep};

/// How often routes are added again, in case another program removed them.
const REINSTALL_EVERY: Duration = Duration::from_secs(10);

/// The pause after the first refusal; each further one doubles it, up to the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct InstalledRoutes {
    installed: BTreeSet<Route>,
    /// Routes with an add that timed out.
    uncertain: BTreeSet<Route>,
    failures: BTreeMap<Route, RouteFailure>,
    kept_at: Option<Instant>,
    totals: [u64; 3],
}

#[derive(Debug)]
struct RouteFailure {
    error: String,
    pause: Duration,
    retry_at: Instant,
}

impl InstalledRoutes {
    pub(super) fn from_installed(there: BTreeSet<Route>) -> Self {
        Self { installed: there, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.installed.is_empty()
    }

    pub(super) fn contains(&self, route: Route) -> bool {
        self.installed.contains(&route)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.installed.iter()
    }

    /// How many routes were added and removed, and how many changes were refused.
    pub(super) const fn totals(&self) -> [u64; 3] {
        self.totals
    }

    /// The steps from the kernel's routes to these, removals first.
    pub(super) fn plan_steps(&mut self, wanted: &BTreeSet<Route>, now: Instant) -> Vec<RouteStep> {
        let Self { installed: there, uncertain: doubtful, failures: refused, kept_at: kept, .. } = self;
        refused
            .retain(|route, _| wanted.contains(route) != there.contains(route) || doubtful.contains(route));
        let waits = |route: &Route| refused.get(route).is_some_and(|it| it.retry_at > now);
        let step = |change| move |route: &Route| RouteStep { change, route: *route };
        let old = there.union(doubtful).filter(|route| !wanted.contains(route));
        let goes = old.filter(|route| !waits(route)).map(step(RouteChange::Remove));
        let comes = wanted.difference(there).filter(|route| !waits(route)).map(step(RouteChange::Add));
        let mut steps: Vec<RouteStep> = goes.chain(comes).collect();
        if kept.is_none_or(|kept| now.saturating_duration_since(kept) >= REINSTALL_EVERY) {
            *kept = Some(now);
            steps.extend(wanted.intersection(there).map(step(RouteChange::Keep)));
        }
        steps
    }

    /// Records the outcome of a step. `why` is the reason of a removal.
    pub(super) fn record_outcome(
        &mut self,
        step: RouteStep,
        outcome: io::Result<()>,
        now: Instant,
        why: &str,
    ) {
        let RouteStep { change, route } = step;
        let Route { table, address } = route;
        let errno = outcome.as_ref().err().and_then(io::Error::raw_os_error);
        match (change, outcome, errno) {
            (RouteChange::Add, Ok(()), _) => {
                tracing::info!(target: NOTICE, %address, table, "the address is announced");
                self.mark_present(route);
            }
            (RouteChange::Keep, Ok(()), _) => {
                tracing::warn!(%address, table, "another program removed the route; it is added again");
                self.mark_present(route);
            }
            (RouteChange::Keep, Err(_), Some(libc::EEXIST)) => {}
            (RouteChange::Remove, Ok(()), _) | (RouteChange::Remove, Err(_), Some(libc::ESRCH)) => {
                tracing::warn!(%address, table, why, "the address is withdrawn");
                self.installed.remove(&route);
                self.clear_failure(route);
                self.count(1);
            }
            (_, Err(error), _) => self.record_failure(step, &error, now),
        }
    }

    fn mark_present(&mut self, route: Route) {
        self.installed.insert(route);
        self.clear_failure(route);
        self.count(0);
    }

    fn clear_failure(&mut self, route: Route) {
        self.uncertain.remove(&route);
        self.failures.remove(&route);
    }

    fn count(&mut self, place: usize) {
        self.totals.get_mut(place).into_iter().for_each(|count| *count += 1);
    }

    fn record_failure(&mut self, RouteStep { change, route }: RouteStep, error: &io::Error, now: Instant) {
        let Route { table, address } = route;
        self.count(2);
        if change == RouteChange::Keep {
            // Its state is unknown; adding it again reveals it.
            self.installed.remove(&route);
        }
        if change == RouteChange::Keep
            || change == RouteChange::Add && error.kind() == io::ErrorKind::WouldBlock
        {
            self.uncertain.insert(route);
        }
        let before = self.failures.get(&route).map(|it| it.pause);
        let error = describe_failure(change, route, error);
        if before.is_none() {
            tracing::error!(%address, table, error, "the kernel refuses a route; retrying");
        }
        let pause = before.map_or(PAUSE_FIRST, |pause| pause.saturating_mul(2).min(PAUSE_MAX));
        self.failures.insert(route, RouteFailure { error, pause, retry_at: now + pause });
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.failures.values().map(|it| it.retry_at).min()
    }

    pub(super) fn to_view(&self, route: Route, why: Option<String>) -> AnnouncedAddress {
        let Route { table, address } = route;
        let error = self.failures.get(&route).map(|it| it.error.clone());
        AnnouncedAddress { address, table, announced: self.contains(route), why, error }
    }
}

/// The kernel's error, and what an operator can do.
fn describe_failure(change: RouteChange, Route { table, address }: Route, error: &io::Error) -> String {
    match (change, error.raw_os_error()) {
        (RouteChange::Add | RouteChange::Keep, Some(libc::EEXIST)) => format!(
            "table {table} has a route to {address} of another program: remove it (ip route show table \
             {table}), or give [announce] its own table"
        ),
        (_, Some(libc::EPERM)) => {
            format!("{error}: the daemon needs CAP_NET_ADMIN in the network namespace of the host")
        }
        (RouteChange::Add | RouteChange::Keep, Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
            if address.is_ipv6() =>
        {
            format!("{error}: this host has no IPv6 (ipv6.disable=1)")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock;

    use super::*;

    fn route(address: &str) -> Route {
        Route { table: 180, address: address.parse().unwrap() }
    }

    fn routes(addresses: &[&str]) -> BTreeSet<Route> {
        addresses.iter().map(|address| route(address)).collect()
    }

    fn refusal(errno: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(errno))
    }

    /// The steps as `take 192.0.2.1`.
    fn step_lines(steps: &[RouteStep]) -> Vec<String> {
        let word = |change| match change {
            RouteChange::Add => "put",
            RouteChange::Keep => "keep",
            RouteChange::Remove => "take",
        };
        steps.iter().map(|it| format!("{} {}", word(it.change), it.route.address)).collect()
    }

    #[test]
    fn old_routes_are_removed_before_new_ones_are_added() {
        let now = clock::now();
        let mut kernel = InstalledRoutes::from_installed(routes(&["192.0.2.1", "192.0.2.2"]));
        let wanted = routes(&["192.0.2.2", "2001:db8::1"]);
        let steps = kernel.plan_steps(&wanted, now);
        assert_eq!(step_lines(&steps), ["take 192.0.2.1", "put 2001:db8::1", "keep 192.0.2.2"]);
        for step in steps {
            let outcome = if step.change == RouteChange::Keep { refusal(libc::EEXIST) } else { Ok(()) };
            kernel.record_outcome(step, outcome, now, "");
        }
        assert_eq!((kernel.installed.clone(), kernel.totals()), (wanted.clone(), [1, 1, 0]));
        assert_eq!(step_lines(&kernel.plan_steps(&wanted, now)), [""; 0], "nothing is left to do");
        let later = now + REINSTALL_EVERY;
        assert_eq!(step_lines(&kernel.plan_steps(&wanted, later)), ["keep 192.0.2.2", "keep 2001:db8::1"]);
    }

    #[test]
    fn a_refused_route_is_retried_ever_less_often_and_delays_no_other() {
        let begun = clock::now();
        let mut kernel = InstalledRoutes::default();
        let (one, both) = (routes(&["192.0.2.1"]), routes(&["192.0.2.1", "192.0.2.2"]));
        let mut now = begun;
        for pause in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            let steps = kernel.plan_steps(&one, now);
            assert_eq!(step_lines(&steps), ["put 192.0.2.1"]);
            kernel.record_outcome(steps[0], refusal(libc::EPERM), now, "");
            let again = kernel.next_retry().unwrap();
            assert_eq!((again - now).as_millis(), pause);
            now = again;
        }
        assert_eq!(kernel.totals(), [0, 0, 9]);
        let before = now - Duration::from_millis(1);
        assert_eq!(step_lines(&kernel.plan_steps(&both, before)), ["put 192.0.2.2"]);
        let shown = kernel.to_view(route("192.0.2.1"), None);
        assert!(!shown.announced && shown.error.unwrap().contains("CAP_NET_ADMIN"));
        assert_eq!(step_lines(&kernel.plan_steps(&BTreeSet::new(), before)), [""; 0]);
        assert_eq!(kernel.next_retry(), None, "an unwanted route is not retried");
    }

    #[test]
    fn a_route_whose_add_timed_out_is_removed() {
        let now = clock::now();
        let mut kernel = InstalledRoutes::default();
        let steps = kernel.plan_steps(&routes(&["192.0.2.1"]), now);
        kernel.record_outcome(steps[0], refusal(libc::EAGAIN), now, "");
        assert!(!kernel.contains(route("192.0.2.1")));
        let later = now + PAUSE_FIRST;
        let steps = kernel.plan_steps(&BTreeSet::new(), later);
        assert_eq!(step_lines(&steps), ["take 192.0.2.1"]);
        kernel.record_outcome(steps[0], refusal(libc::ESRCH), later, "");
        assert_eq!(step_lines(&kernel.plan_steps(&BTreeSet::new(), later)), [""; 0]);
        assert_eq!(kernel.next_retry(), None);
    }

    #[test]
    fn a_route_of_another_program_is_not_ours() {
        let now = clock::now();
        let mut kernel = InstalledRoutes::default();
        let steps = kernel.plan_steps(&routes(&["192.0.2.1"]), now);
        kernel.record_outcome(steps[0], refusal(libc::EEXIST), now, "");
        let shown = kernel.to_view(route("192.0.2.1"), None);
        assert!(!shown.announced && shown.error.unwrap().contains("of another program"));
        assert_eq!(step_lines(&kernel.plan_steps(&BTreeSet::new(), now)), [""; 0], "nor is it removed");
    }

    #[test]
    fn removing_a_missing_route_succeeds() {
        let now = clock::now();
        let mut kernel = InstalledRoutes::from_installed(routes(&["192.0.2.1"]));
        let steps = kernel.plan_steps(&BTreeSet::new(), now);
        kernel.record_outcome(steps[0], refusal(libc::ESRCH), now, "");
        assert!(kernel.is_empty() && kernel.next_retry().is_none());
    }
}
