//! How long to wait before the next request.
//!
//! Invariant: whatever a server does, requests of one kind come at a bounded rate, and those of many nodes spread.
//! Chance is an argument of the rules.

use std::time::Duration;

/// The wait after the first request that did not last: long enough for a server that merely restarted its process,
/// short enough for clients that wait.
const WAIT_MIN: Duration = Duration::from_millis(100);

/// The longest of the doubling waits; after an apiserver returns, this is the most that is lost.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// A watch that lived for so long was a good one, whatever ended it.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The longest wait that a server can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A share of a whole, out of [`u32::MAX`].
pub(crate) type Chance = u32;

/// A chance from the kernel's randomness; without it nodes move together, which does no other harm.
pub fn random_chance() -> Chance {
    getrandom::u32().unwrap_or(Chance::MAX / 2)
}

/// A part of a time, by chance.
pub fn random_part(whole: Duration, chance: Chance) -> Duration {
    whole.mul_f64(f64::from(chance) / f64::from(Chance::MAX))
}

/// How often in a row requests went badly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    short_lives: u32,
    has_granted: bool,
}

impl Backoff {
    /// How long to wait before the next request, after a request or a watch that lasted for `lived`. Nodes that may
    /// come together spread over `spread`.
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
        // The nodes that have tried in vain meet those that have not yet, so they spread over twice as much.
        let spread = if self.short_lives == 0 { spread } else { spread * 2 };
        self.short_lives = self.short_lives.saturating_add(1);
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        // Half of the wait is random, so that nodes which failed together do not come back together.
        asked + full / 2 + random_part(full / 2 + spread, chance)
    }

    /// Whether another kind of request may follow at once: the waits have grown while no server answered, and that is
    /// over. This is granted only once until a request has lived for long, so that a server to which every version is
    /// too old is not asked for lists in a loop.
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
    fn a_life_that_was_long_enough_is_forgiven() {
        let mut pace = Backoff::default();
        for _ in 0..9 {
            let _ = pace.next_wait(ms(1), None, Duration::ZERO, 0);
        }
        assert_eq!(pace.next_wait(STABLE_AFTER, None, Duration::ZERO, 0), ms(50));
        assert_eq!(pace.next_wait(ms(1), None, Duration::ZERO, 0), ms(100));
    }

    #[test]
    fn another_kind_of_request_follows_at_once_until_that_has_not_helped() {
        let mut pace = Backoff::default();
        let _ = pace.next_wait(ms(1), None, Duration::ZERO, 0);
        assert!(pace.grant_immediate());
        let _ = pace.next_wait(ms(1), None, Duration::ZERO, 0);
        assert!(!pace.grant_immediate() && !pace.grant_immediate());
        let _ = pace.next_wait(STABLE_AFTER, None, Duration::ZERO, 0);
        assert!(pace.grant_immediate());
    }

    #[test]
    fn a_server_may_ask_for_patience_within_reason() {
        let mut pace = Backoff::default();
        assert_eq!(pace.next_wait(ms(1), Some(ms(3_000)), Duration::ZERO, 0), ms(3_050));
        assert_eq!(pace.next_wait(ms(1), Some(Duration::MAX), Duration::ZERO, 0), RETRY_AFTER_MAX + ms(100));
    }
}
