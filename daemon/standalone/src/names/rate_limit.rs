//! Limits the rate of queries to name servers.
//!
//! Invariant: queries are at least [`QUERY_INTERVAL_MIN`] apart, whatever their names: at most 1,000 a second, without
//! a burst after the start.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The least time between two queries.
pub(super) const QUERY_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// When the next query may go out.
#[derive(Debug)]
pub(super) struct RateLimiter(Mutex<Instant>);

impl RateLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(now))
    }

    /// Waits for the next turn.
    pub(super) async fn wait_turn(&self) {
        let turn = {
            let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + QUERY_INTERVAL_MIN;
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn at_most_a_thousand_queries_go_out_per_second() {
        let began = Instant::now();
        let pace = RateLimiter::new(began);
        for _ in 0..2_001 {
            pace.wait_turn().await;
        }
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(10)).await;
        let later = Instant::now();
        for _ in 0..101 {
            pace.wait_turn().await;
        }
        assert!(later.elapsed() >= Duration::from_millis(100), "turns that were not taken are not saved");
    }
}
