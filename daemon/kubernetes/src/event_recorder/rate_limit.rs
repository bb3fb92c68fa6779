//! Limits the rate of Events: a burst at once, then one by one.
//!
//! Invariant: any span of time has at most one burst, and one more Event per [`EVENT_INTERVAL`].

use std::time::{Duration, Instant};

/// The interval of Events after the burst. An apiserver of a large cluster takes some hundreds of writes a second from
/// all its clients.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// The size of a burst: the problems of a bad day; client libraries allow as many per object.
const BURST: u32 = 25;

/// A GCRA limiter.
#[derive(Debug)]
pub(super) struct RateLimiter {
    // When the next Event would be due at an even rate.
    theoretical_arrival: Instant,
}

impl RateLimiter {
    pub(super) const fn new(now: Instant) -> Self {
        Self { theoretical_arrival: now }
    }

    /// Reserves the next write and returns its time.
    pub(super) fn reserve_write(&mut self, now: Instant) -> Instant {
        let even = self.theoretical_arrival.max(now);
        self.theoretical_arrival = even + EVENT_INTERVAL;
        even.checked_sub(EVENT_INTERVAL * (BURST - 1)).map_or(now, |turn| turn.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_one_by_one() {
        let begin = holdfast_fixtures::clock::now() + Duration::from_secs(3_600);
        let mut pace = RateLimiter::new(begin);
        let turns: Vec<_> = (0..BURST + 3).map(|_| pace.reserve_write(begin) - begin).collect();
        let (at_once, later) = turns.split_at(BURST as usize);
        assert!(at_once.iter().all(Duration::is_zero), "{turns:?}");
        assert_eq!(later, [EVENT_INTERVAL, EVENT_INTERVAL * 2, EVENT_INTERVAL * 3]);
    }

    #[test]
    fn a_quiet_recorder_gets_one_burst_and_no_more() {
        let begin = holdfast_fixtures::clock::now() + Duration::from_secs(3_600);
        let mut pace = RateLimiter::new(begin);
        for _ in 0..BURST {
            pace.reserve_write(begin);
        }
        let later = begin + EVENT_INTERVAL * BURST * 9;
        let turns: Vec<_> = (0..=BURST).map(|_| pace.reserve_write(later) - later).collect();
        assert_eq!(turns.iter().filter(|turn| turn.is_zero()).count(), BURST as usize);
        assert_eq!(turns.last(), Some(&EVENT_INTERVAL));
    }
}
