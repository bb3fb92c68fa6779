//! One beat for all tasks that look around once a second.
//!
//! Invariant: all tasks that wait for the beat wake together. On a node where nothing happens, to wake up costs more
//! than what is then looked at.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The time between two beats.
pub const BEAT: Duration = Duration::from_secs(1);

static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Waits for the next beat, which comes within a second.
pub async fn next() {
    sleep_until(after(*FIRST, Instant::now())).await;
}

/// The first beat after a moment.
fn after(first: Instant, now: Instant) -> Instant {
    let since = now.saturating_duration_since(first);
    first + Duration::from_secs(since.as_secs()) + BEAT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_at_any_time_waits_for_the_same_beat() {
        let first = Instant::now();
        for late in [0, 1, 400, 999] {
            assert_eq!(after(first, first + Duration::from_millis(late)), first + BEAT);
        }
        assert_eq!(after(first, first + BEAT), first + 2 * BEAT, "a beat that is here was the last one");
    }

    #[test]
    fn who_was_here_before_the_first_waits_for_the_second() {
        let first = Instant::now();
        assert_eq!(after(first + BEAT, first), first + 2 * BEAT);
    }
}
