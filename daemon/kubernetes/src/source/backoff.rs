//! The wait before the next request.
//!
//! Invariant: whatever a server does, the rate of requests of one kind is bounded, and many nodes spread. Randomness is
//! an argument.

use std::time::Duration;

/// The first wait: long enough for a server that restarts its process, short enough for waiting clients.
const WAIT_MIN: Duration = Duration::from_millis(100);

/// The longest of the doubling waits, and so the longest delay after an apiserver returns.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// A watch that lasted this long was good, whatever ended it.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The longest wait that a server can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A fraction of [`u32::MAX`].
pub(crate) type Chance = u32;

/// A random chance from the kernel. Without it nodes move together, which does no other harm.
pub fn random_chance() -> Chance {
    getrandom::u32().unwrap_or(Chance::MAX / 2)
}

/// A random part of a time.
pub fn random_part(whole: Duration, chance: Chance) -> Duration {
    whole.mul_f64(f64::from(chance) / f64::from(Chance::MAX))
}

/// Failed requests in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    short_lives: u32,
    has_granted: bool,
}

impl Backoff {
    /// The wait after a request or watch that lasted for `lived`. Nodes that may come together spread over `spread`.
    pub(super) fn next_wait(
        &mut self,
        lived: Duration,
        retry_after: Option<Duration>,
        spread: Duration,
        chance: Chance,
    ) -> Duration {
        if lived >= STABLE_AFTER {
            *self = Self::default();
        }
        let full = WAIT_MIN.saturating_mul(1 << self.short_lives.min(16)).min(WAIT_MAX);
        // Nodes that have failed meet those that have not tried yet, so they spread over twice as much.
        let spread = if self.short_lives == 0 { spread } else { spread * 2 };
        self.short_lives = self.short_lives.saturating_add(1);
        let requested = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        // Half of the wait is random, so that nodes that failed together do not return together.
        requested + full / 2 + random_part(full / 2 + spread, chance)
    }

    /// Whether a list may follow at once: the waits grew while no server replied, and now one does. Granted once until
    /// a request lasts, so that a server that finds every version too old is not listed in a loop.
    pub(super) fn grant_immediate(&mut self) -> bool {
        !std::mem::replace(&mut self.has_granted, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let mut pace = Backoff::default();
        let waits: Vec<u128> =
            (0..8).map(|_| pace.next_wait(ms(1), None, Duration::ZERO, Chance::MAX).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3000, 3000, 3000]);
        assert!((0..100).all(|_| pace.next_wait(ms(1), None, Duration::ZERO, Chance::MAX) <= WAIT_MAX));
    }

    #[test]
    fn half_of_a_wait_is_chance() {
        assert_eq!(Backoff::default().next_wait(ms(1), None, Duration::ZERO, 0), ms(50));
        assert_eq!(Backoff::default().next_wait(ms(1), None, Duration::ZERO, Chance::MAX), ms(100));
    }

    #[test]
    fn nodes_that_may_come_together_spread() {
        let wait = |chance| Backoff::default().next_wait(ms(1), None, ms(5_000), chance);
        assert_eq!((wait(0), wait(Chance::MAX)), (ms(50), ms(5_100)));
        let mut pace = Backoff::default();
        let mut again = || pace.next_wait(ms(1), None, ms(5_000), Chance::MAX);
        assert_eq!([again(), again(), again()], [ms(5_100), ms(10_200), ms(10_400)]);
    }

    #[test]
    fn a_long_life_resets_the_wait() {
        let mut pace = Backoff::default();
        for _ in 0..9 {
            let _ = pace.next_wait(ms(1), None, Duration::ZERO, 0);
        }
        assert_eq!(pace.next_wait(STABLE_AFTER, None, Duration::ZERO, 0), ms(50));
        assert_eq!(pace.next_wait(ms(1), None, Duration::ZERO, 0), ms(100));
    }

    #[test]
    fn an_immediate_list_is_granted_once_until_a_request_lasts() {
        let mut pace = Backoff::default();
        let _ = pace.next_wait(ms(1), None, Duration::ZERO, 0);
        assert!(pace.grant_immediate());
        let _ = pace.next_wait(ms(1), None, Duration::ZERO, 0);
        assert!(!pace.grant_immediate() && !pace.grant_immediate());
        let _ = pace.next_wait(STABLE_AFTER, None, Duration::ZERO, 0);
        assert!(pace.grant_immediate());
    }

    #[test]
    fn a_server_may_ask_for_a_bounded_wait() {
        let mut pace = Backoff::default();
        assert_eq!(pace.next_wait(ms(1), Some(ms(3_000)), Duration::ZERO, 0), ms(3_050));
        assert_eq!(pace.next_wait(ms(1), Some(Duration::MAX), Duration::ZERO, 0), RETRY_AFTER_MAX + ms(100));
    }
}
