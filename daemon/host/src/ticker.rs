//! One timer for all tasks that check something once a second.
//!
//! Invariant: all tasks that wait for a tick wake together. On an idle node, waking up costs more than the checks.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

pub const TICK: Duration = Duration::from_secs(1);

static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Waits for the next tick, which comes within a second.
pub async fn next_tick() {
    sleep_until(tick_after(*FIRST, Instant::now())).await;
}

fn tick_after(first: Instant, now: Instant) -> Instant {
    let since = now.saturating_duration_since(first);
    first + Duration::from_secs(since.as_secs()) + TICK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_at_any_time_wait_for_the_same_tick() {
        let first = Instant::now();
        for late in [0, 1, 400, 999] {
            assert_eq!(tick_after(first, first + Duration::from_millis(late)), first + TICK);
        }
        assert_eq!(tick_after(first, first + TICK), first + 2 * TICK, "the current tick is over");
    }

    #[test]
    fn a_waiter_before_the_first_tick_waits_for_the_second() {
        let first = Instant::now();
        assert_eq!(tick_after(first + TICK, first), first + 2 * TICK);
    }
}
