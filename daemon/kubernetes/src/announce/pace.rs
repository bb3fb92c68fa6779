//! How fast Events are written: some at once, then one after the other.
//!
//! Invariant: in any span of time at most a burst of Events is written, and one more for each [`EVERY`].

use std::time::{Duration, Instant};

/// The time between two Events when the burst is used up. An apiserver of a large cluster takes some hundreds of writes
/// a second from all its clients.
const EVERY: Duration = Duration::from_secs(1);

/// Events that may be written at once: what goes wrong on a bad day; client libraries allow as many for one object.
const BURST: u32 = 25;

/// When the next Event may be written.
#[derive(Debug)]
pub(super) struct Pace {
    // When the next Event would be due if Events came evenly.
    even: Instant,
}

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self { even: now }
    }

    /// Takes a turn and says when it is.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        let even = self.even.max(now);
        self.even = even + EVERY;
        even.checked_sub(EVERY * (BURST - 1)).map_or(now, |turn| turn.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_one_by_one() {
        let begin = Instant::now() + Duration::from_secs(3_600);
        let mut pace = Pace::new(begin);
        let turns: Vec<_> = (0..BURST + 3).map(|_| pace.next(begin) - begin).collect();
        let (at_once, later) = turns.split_at(BURST as usize);
        assert!(at_once.iter().all(Duration::is_zero), "{turns:?}");
        assert_eq!(later, [EVERY, EVERY * 2, EVERY * 3]);
    }

    #[test]
    fn who_was_quiet_may_burst_again_and_no_more_than_that() {
        let begin = Instant::now() + Duration::from_secs(3_600);
        let mut pace = Pace::new(begin);
        for _ in 0..BURST {
            pace.next(begin);
        }
        let later = begin + EVERY * BURST * 9;
        let turns: Vec<_> = (0..=BURST).map(|_| pace.next(later) - later).collect();
        assert_eq!(turns.iter().filter(|turn| turn.is_zero()).count(), BURST as usize);
        assert_eq!(turns.last(), Some(&EVERY));
    }
}
