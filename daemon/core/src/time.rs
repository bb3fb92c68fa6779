//! The two clocks of a step: the wall clock, and the one that never steps.
//!
//! Invariant: every wait uses the clock of the process. People and other clocks set the wall clock, and a step of it
//! ends or prolongs no wait; it counts only for times that a former process saved.

use core::time::Duration;

use crate::facts::Timestamp;

/// Seconds on the clock of the process; negative: before its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uptime(pub i64);

impl Uptime {
    #[must_use]
    pub const fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    pub const fn since(self, then: Self) -> i64 {
        self.0.saturating_sub(then.0)
    }
}

/// The time of a step, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    pub wall: Timestamp,
    /// Since a fixed moment; never steps back.
    pub mono: Duration,
}

impl ClockReading {
    /// The time on the clock of the process, in seconds.
    pub fn uptime(&self) -> Uptime {
        Uptime(i64::try_from(self.mono.as_secs()).unwrap_or(i64::MAX))
    }

    /// Converts a time of the process to the current wall clock.
    pub fn wall_at(&self, then: Uptime) -> Timestamp {
        Timestamp(self.wall.0.saturating_add(then.since(self.uptime())))
    }

    /// Converts a wall clock time to the clock of the process. A future time counts as now, because the wall clock was
    /// set back since.
    pub fn uptime_at(&self, then: Timestamp) -> Uptime {
        self.uptime().plus(then.0.saturating_sub(self.wall.0).min(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: ClockReading = ClockReading { wall: Timestamp(1_000), mono: Duration::from_millis(20_900) };

    #[test]
    fn saved_times_never_lie_in_the_future() {
        for (wall, expected) in [(1_000, 20), (990, 10), (970, -10), (1_001, 20), (i64::MAX, 20)] {
            assert_eq!(NOW.uptime_at(Timestamp(wall)), Uptime(expected), "{wall}");
        }
        assert_eq!(NOW.uptime_at(Timestamp(i64::MIN)), Uptime(i64::MIN + 20));
    }

    #[test]
    fn deadlines_follow_the_current_wall_clock() {
        let stepped = ClockReading { wall: Timestamp(4_600), ..NOW };
        assert_eq!(
            (NOW.wall_at(Uptime(30)), stepped.wall_at(Uptime(30))),
            (Timestamp(1_010), Timestamp(4_610))
        );
    }
}
