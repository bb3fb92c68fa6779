//! Tracks which name servers failed recently.
//!
//! Invariant: every server is queried before a look-up fails; a recent failure only moves a server to the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a failed server is queried last.
pub(super) const PENALTY: Duration = Duration::from_secs(30);

/// The time of each server's last failure, on the resolver's clock.
#[derive(Debug, Default)]
pub(super) struct ServerFailures(Mutex<BTreeMap<SocketAddr, Duration>>);

impl ServerFailures {
    /// The servers in query order.
    pub(super) fn query_order(&self, servers: &[SocketAddr], now: Duration) -> Vec<SocketAddr> {
        let failures = self.lock();
        let has_failed =
            |server: &SocketAddr| failures.get(server).is_some_and(|at| now.saturating_sub(*at) < PENALTY);
        let (last, first): (Vec<_>, Vec<_>) = servers.iter().copied().partition(has_failed);
        first.into_iter().chain(last).collect()
    }

    pub(super) fn record_result(&self, server: SocketAddr, has_failed: bool, now: Duration) {
        let mut failures = self.lock();
        if has_failed {
            failures.insert(server, now);
        } else {
            failures.remove(&server);
        }
    }

    /// Drops all servers but these.
    pub(super) fn retain(&self, servers: &[SocketAddr]) {
        self.lock().retain(|server, _| servers.contains(server));
    }

    /// Locks the map. Every statement leaves it consistent.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers() -> [SocketAddr; 3] {
        [1, 2, 3].map(|number| SocketAddr::from(([192, 0, 2, number], 53)))
    }

    #[test]
    fn a_server_that_failed_is_asked_last_for_a_while() {
        let [first, second, third] = servers();
        let failures = ServerFailures::default();
        let order = |seconds| failures.query_order(&servers(), Duration::from_secs(seconds));
        assert_eq!(order(0), servers());
        failures.record_result(first, true, Duration::from_secs(10));
        assert_eq!(order(10), [second, third, first]);
        assert_eq!(order(39), [second, third, first]);
        assert_eq!(order(40), servers(), "the while is over");
        servers()
            .into_iter()
            .for_each(|server| failures.record_result(server, true, Duration::from_secs(50)));
        assert_eq!(order(51), servers(), "where all failed, the order is that of the configuration");
        failures.record_result(second, false, Duration::from_secs(52));
        assert_eq!(order(52), [second, first, third]);
        failures.retain(&[second]);
        assert_eq!(order(52), servers());
    }
}
