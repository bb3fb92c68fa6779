//! Which of our routes the kernel has, and what it refused.
//!
//! Invariant: a route counts as there from the kernel's consent until its consent to take it out. One that may have
//! come while the kernel gave no answer is taken out too. A change that is refused is tried again, less and less often,
//! and delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use holdfast_status::views::announced::AnnouncedAddress;
use nix::libc;

use super::kernel::{Change, Route, Step};

/// How often routes that should be there are put in once more, in case that another program took them out.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// The pause after the first refusal; each further one is twice as long, up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The routes of ours.
#[derive(Debug, Default)]
pub(super) struct Routes {
    there: BTreeSet<Route>,
    /// Those that were to be put in while the kernel gave no answer in time.
    doubtful: BTreeSet<Route>,
    refused: BTreeMap<Route, Refused>,
    kept: Option<Instant>,
    totals: [u64; 3],
}

#[derive(Debug)]
struct Refused {
    error: String,
    pause: Duration,
    again: Instant,
}

impl Routes {
    pub(super) fn of(there: BTreeSet<Route>) -> Self {
        Self { there, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.there.is_empty()
    }

    pub(super) fn has(&self, route: Route) -> bool {
        self.there.contains(&route)
    }

    pub(super) fn there(&self) -> impl Iterator<Item = &Route> {
        self.there.iter()
    }

    /// How many were put in and taken out, and how many changes were refused.
    pub(super) const fn totals(&self) -> [u64; 3] {
        self.totals
    }

    /// What brings the kernel to these routes, those that go first.
    pub(super) fn steps(&mut self, wanted: &BTreeSet<Route>, now: Instant) -> Vec<Step> {
        let Self { there, doubtful, refused, kept, .. } = self;
        refused
            .retain(|route, _| wanted.contains(route) != there.contains(route) || doubtful.contains(route));
        let waits = |route: &Route| refused.get(route).is_some_and(|it| it.again > now);
        let step = |change| move |route: &Route| Step { change, route: *route };
        let old = there.union(doubtful).filter(|route| !wanted.contains(route));
        let goes = old.filter(|route| !waits(route)).map(step(Change::Take));
        let comes = wanted.difference(there).filter(|route| !waits(route)).map(step(Change::Put));
        let mut steps: Vec<Step> = goes.chain(comes).collect();
        if kept.is_none_or(|kept| now.saturating_duration_since(kept) >= KEEP_EVERY) {
            *kept = Some(now);
            steps.extend(wanted.intersection(there).map(step(Change::Keep)));
        }
        steps
    }

    /// Takes in how a step went. `why` is why a route goes.
    pub(super) fn done(&mut self, step: Step, outcome: io::Result<()>, now: Instant, why: &str) {
        let Step { change, route } = step;
        let Route { table, address } = route;
        let errno = outcome.as_ref().err().and_then(io::Error::raw_os_error);
        match (change, outcome, errno) {
            (Change::Put, Ok(()), _) => {
                tracing::info!(%address, table, "the address is announced");
                self.is_there(route);
            }
            (Change::Keep, Ok(()), _) => {
                tracing::warn!(%address, table, "another program took the route out; it is there again");
                self.is_there(route);
            }
            (Change::Keep, Err(_), Some(libc::EEXIST)) => {}
            (Change::Take, Ok(()), _) | (Change::Take, Err(_), Some(libc::ESRCH)) => {
                tracing::warn!(%address, table, why, "the address is announced no longer");
                self.there.remove(&route);
                self.settle(route);
                self.count(1);
            }
            (_, Err(error), _) => self.refuse(step, &error, now),
        }
    }

    fn is_there(&mut self, route: Route) {
        self.there.insert(route);
        self.settle(route);
        self.count(0);
    }

    fn settle(&mut self, route: Route) {
        self.doubtful.remove(&route);
        self.refused.remove(&route);
    }

    fn count(&mut self, place: usize) {
        self.totals.get_mut(place).into_iter().for_each(|count| *count += 1);
    }

    fn refuse(&mut self, Step { change, route }: Step, error: &io::Error, now: Instant) {
        let Route { table, address } = route;
        self.count(2);
        if change == Change::Keep {
            // Whether it is there is not known: it is put in anew, which tells.
            self.there.remove(&route);
        }
        if change == Change::Keep || change == Change::Put && error.kind() == io::ErrorKind::WouldBlock {
            self.doubtful.insert(route);
        }
        let before = self.refused.get(&route).map(|it| it.pause);
        let error = explained(change, route, error);
        if before.is_none() {
            tracing::error!(%address, table, error, "the kernel does not take a route; this is tried again");
        }
        let pause = before.map_or(PAUSE_FIRST, |pause| pause.saturating_mul(2).min(PAUSE_MAX));
        self.refused.insert(route, Refused { error, pause, again: now + pause });
    }

    /// When something that was refused is tried again first.
    pub(super) fn next(&self) -> Option<Instant> {
        self.refused.values().map(|it| it.again).min()
    }

    /// What readers see of a route.
    pub(super) fn shown(&self, route: Route, why: Option<String>) -> AnnouncedAddress {
        let Route { table, address } = route;
        let error = self.refused.get(&route).map(|it| it.error.clone());
        AnnouncedAddress { address, table, announced: self.has(route), why, error }
    }
}

/// What the kernel said, and what an operator can do.
fn explained(change: Change, Route { table, address }: Route, error: &io::Error) -> String {
    match (change, error.raw_os_error()) {
        (Change::Put | Change::Keep, Some(libc::EEXIST)) => format!(
            "table {table} has a route to {address} that another program made: take it out (ip route show table \
             {table}), or give [announce] a table of its own"
        ),
        (_, Some(libc::EPERM)) => {
            format!("{error}: the daemon needs CAP_NET_ADMIN in the network namespace of the host")
        }
        (Change::Put | Change::Keep, Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) if address.is_ipv6() => {
            format!("{error}: this host has no IPv6 (ipv6.disable=1)")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
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
    fn told(steps: &[Step]) -> Vec<String> {
        let word = |change| match change {
            Change::Put => "put",
            Change::Keep => "keep",
            Change::Take => "take",
        };
        steps.iter().map(|it| format!("{} {}", word(it.change), it.route.address)).collect()
    }

    #[test]
    fn what_goes_is_taken_out_before_what_comes_is_put_in() {
        let now = Instant::now();
        let mut kernel = Routes::of(routes(&["192.0.2.1", "192.0.2.2"]));
        let wanted = routes(&["192.0.2.2", "2001:db8::1"]);
        let steps = kernel.steps(&wanted, now);
        assert_eq!(told(&steps), ["take 192.0.2.1", "put 2001:db8::1", "keep 192.0.2.2"]);
        for step in steps {
            let outcome = if step.change == Change::Keep { refusal(libc::EEXIST) } else { Ok(()) };
            kernel.done(step, outcome, now, "");
        }
        assert_eq!((kernel.there.clone(), kernel.totals()), (wanted.clone(), [1, 1, 0]));
        assert_eq!(told(&kernel.steps(&wanted, now)), [""; 0], "all is as it should be");
        let later = now + KEEP_EVERY;
        assert_eq!(told(&kernel.steps(&wanted, later)), ["keep 192.0.2.2", "keep 2001:db8::1"]);
    }

    #[test]
    fn what_is_refused_is_tried_again_less_and_less_often_and_delays_no_other() {
        let begun = Instant::now();
        let mut kernel = Routes::default();
        let (one, both) = (routes(&["192.0.2.1"]), routes(&["192.0.2.1", "192.0.2.2"]));
        let mut now = begun;
        for pause in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            let steps = kernel.steps(&one, now);
            assert_eq!(told(&steps), ["put 192.0.2.1"]);
            kernel.done(steps[0], refusal(libc::EPERM), now, "");
            let again = kernel.next().unwrap();
            assert_eq!((again - now).as_millis(), pause);
            now = again;
        }
        assert_eq!(kernel.totals(), [0, 0, 9]);
        let before = now - Duration::from_millis(1);
        assert_eq!(told(&kernel.steps(&both, before)), ["put 192.0.2.2"]);
        let shown = kernel.shown(route("192.0.2.1"), None);
        assert!(!shown.announced && shown.error.unwrap().contains("CAP_NET_ADMIN"));
        assert_eq!(told(&kernel.steps(&BTreeSet::new(), before)), [""; 0]);
        assert_eq!(kernel.next(), None, "what nobody wants any more is not tried again");
    }

    #[test]
    fn what_may_have_come_while_the_kernel_was_silent_is_taken_out() {
        let now = Instant::now();
        let mut kernel = Routes::default();
        let steps = kernel.steps(&routes(&["192.0.2.1"]), now);
        kernel.done(steps[0], refusal(libc::EAGAIN), now, "");
        assert!(!kernel.has(route("192.0.2.1")));
        let later = now + PAUSE_FIRST;
        let steps = kernel.steps(&BTreeSet::new(), later);
        assert_eq!(told(&steps), ["take 192.0.2.1"]);
        kernel.done(steps[0], refusal(libc::ESRCH), later, "");
        assert_eq!(told(&kernel.steps(&BTreeSet::new(), later)), [""; 0]);
        assert_eq!(kernel.next(), None);
    }

    #[test]
    fn another_programs_route_is_not_taken_for_ours() {
        let now = Instant::now();
        let mut kernel = Routes::default();
        let steps = kernel.steps(&routes(&["192.0.2.1"]), now);
        kernel.done(steps[0], refusal(libc::EEXIST), now, "");
        let shown = kernel.shown(route("192.0.2.1"), None);
        assert!(!shown.announced && shown.error.unwrap().contains("another program made"));
        assert_eq!(told(&kernel.steps(&BTreeSet::new(), now)), [""; 0], "nor is it taken out");
    }

    #[test]
    fn a_route_that_is_gone_already_is_gone() {
        let now = Instant::now();
        let mut kernel = Routes::of(routes(&["192.0.2.1"]));
        let steps = kernel.steps(&BTreeSet::new(), now);
        kernel.done(steps[0], refusal(libc::ESRCH), now, "");
        assert!(kernel.is_empty() && kernel.next().is_none());
    }
}
