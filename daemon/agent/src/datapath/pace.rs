//! Limits how fast refusals are read.
//!
//! Invariant: a client that dials a refusing address in a loop costs the daemon a few percent of one core. If
//! refusals come faster than they are read, the ring buffer drops and counts them.

use std::time::Duration;

/// The most refusals read in one window: 10,000 per second, far more than a person can read.
const REFUSALS_MAX: u32 = 1_000;

/// The length of a window: long enough to make a pause worth its wake-up, short enough not to delay a stop.
const WINDOW: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct ReadPacer {
    window_start: Duration,
    taken: u32,
}

impl ReadPacer {
    /// Counts a refusal, and returns the pause before the next one. `now` never steps back.
    pub(super) fn pause(&mut self, now: Duration) -> Option<Duration> {
        let over = self.window_start + WINDOW;
        if now >= over {
            *self = Self { window_start: now, taken: 0 };
        }
        self.taken += 1;
        if self.taken < REFUSALS_MAX {
            return None;
        }
        Some((self.window_start + WINDOW).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_read_at_a_bounded_rate() {
        let mut pace = ReadPacer::default();
        let mut now = Duration::from_secs(7);
        for _ in 0..10 * REFUSALS_MAX {
            now += Duration::from_micros(1) + pace.pause(now).unwrap_or_default();
        }
        let took = now - Duration::from_secs(7);
        assert!(took >= 9 * WINDOW && took <= 11 * WINDOW, "{took:?}");
    }

    #[test]
    fn a_trickle_is_never_paused() {
        let mut pace = ReadPacer::default();
        let step = 2 * WINDOW / REFUSALS_MAX;
        assert!((0..5 * REFUSALS_MAX).all(|nth| pace.pause(nth * step).is_none()));
    }
}
