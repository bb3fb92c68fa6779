//! One beat for all tasks that look around once a second.
//!
//! Invariant: all tasks that wait for the beat wake together. On a node where nothing happens, to wake up costs more
//! than what is then looked at.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The time between two beats.
pub const TICK: Duration = Duration::from_secs(1);

static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Waits for the next beat, which comes within a second.
pub async fn next_tick() {
    sleep_until(tick_after(*FIRST, Instant::now())).await;
}

/// The first beat after a moment.
fn tick_after(first: Instant, now: Instant) -> Instant {
    let since = now.saturating_duration_since(first);
    first + Duration::from_secs(since.as_secs()) + TICK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_at_any_time_waits_for_the_same_beat() {
        let first = Instant::now();
        for late in [0, 1, 400, 999] {
            assert_eq!(tick_after(first, first + Duration::from_millis(late)), first + TICK);
        }
        assert_eq!(tick_after(first, first + TICK), first + 2 * TICK, "a beat that is here was the last one");
    }

    #[test]
    fn who_was_here_before_the_first_waits_for_the_second() {
        let first = Instant::now();
        assert_eq!(tick_after(first + TICK, first), first + 2 * TICK);
    }
}
