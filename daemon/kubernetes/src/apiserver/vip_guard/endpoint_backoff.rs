//! Backoffs of endpoints that did not prove themselves.
//!
//! Invariant: each failure in a row doubles the pause before the next attempt, up to a bound; a success clears it. So
//! nodes that all wait for one apiserver do not keep it from starting.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::super::limits::{GUARD_RETRY_MAX, GUARD_RETRY_MIN};

#[derive(Debug)]
struct EndpointBackoff {
    address: SocketAddr,
    times: u32,
    until: Instant,
}

/// The backoffs, at most one per endpoint.
#[derive(Debug, Default)]
pub(super) struct EndpointBackoffs(Vec<EndpointBackoff>);

impl EndpointBackoffs {
    /// Records a failure. `spread` varies the pause per node.
    pub(super) fn record_failure(
        &mut self,
        address: SocketAddr,
        now: Instant,
        spread: impl FnOnce(Duration) -> Duration,
    ) {
        let times = self.0.iter().find(|it| it.address == address).map_or(0, |it| it.times.saturating_add(1));
        self.clear_address(address);
        let until = now.checked_add(spread(retry_pause(times))).unwrap_or(now);
        self.0.push(EndpointBackoff { address, times, until });
    }

    /// Lets each endpoint be tried once now. Its count of failures stays.
    pub(super) fn lift_all(&mut self, now: Instant) {
        for backoff in &mut self.0 {
            backoff.until = backoff.until.min(now);
        }
    }

    pub(super) fn clear_address(&mut self, address: SocketAddr) {
        self.0.retain(|it| it.address != address);
    }

    /// Drops addresses that are not endpoints any more.
    pub(super) fn retain_known(&mut self, known: impl Fn(SocketAddr) -> bool) {
        self.0.retain(|it| known(it.address));
    }

    pub(super) fn can_try(&self, address: SocketAddr, now: Instant) -> bool {
        self.0.iter().all(|it| it.address != address || it.until <= now)
    }
}

/// The pause after so many failures, or connections that were closed at once.
pub(super) fn retry_pause(times: u32) -> Duration {
    GUARD_RETRY_MIN.saturating_mul(2_u32.saturating_pow(times)).min(GUARD_RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock;

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 6443))
    }

    #[test]
    fn each_failure_in_a_row_doubles_the_pause_up_to_a_bound() {
        let (mut backoffs, start): (_, Instant) = (EndpointBackoffs::default(), clock::now().into());
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            backoffs.record_failure(address(1), now, |pause| pause);
            let waited = (0..).map(|tenth| now + Duration::from_millis(50 * tenth));
            let next = waited.into_iter().find(|at| backoffs.can_try(address(1), *at)).unwrap();
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert!(backoffs.can_try(address(2), start), "another endpoint has no backoff");
    }

    #[test]
    fn a_lifted_backoff_allows_one_attempt_and_keeps_growing() {
        let (mut backoffs, now): (_, Instant) = (EndpointBackoffs::default(), clock::now().into());
        for _ in 0..5 {
            backoffs.record_failure(address(1), now, |pause| pause);
        }
        backoffs.lift_all(now);
        assert!(backoffs.can_try(address(1), now));
        backoffs.record_failure(address(1), now, |pause| pause);
        assert!(
            !backoffs.can_try(address(1), now + 30 * GUARD_RETRY_MIN),
            "or it would be dialled in a loop"
        );
    }

    #[test]
    fn a_success_clears_the_backoff() {
        let (mut backoffs, now): (_, Instant) = (EndpointBackoffs::default(), clock::now().into());
        for _ in 0..5 {
            backoffs.record_failure(address(1), now, |pause| pause);
        }
        backoffs.clear_address(address(1));
        assert!(backoffs.can_try(address(1), now));
        backoffs.record_failure(address(1), now, |pause| pause);
        assert!(backoffs.can_try(address(1), now + GUARD_RETRY_MIN), "and starts over");
        backoffs.retain_known(|known| known == address(2));
        assert!(backoffs.can_try(address(1), now), "an address that is no endpoint any more");
    }
}
