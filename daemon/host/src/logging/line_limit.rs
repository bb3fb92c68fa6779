//! Limits how many lines of one kind are written per window, and counts the rest.
//!
//! Invariant: a flood becomes a few lines and a number.

use std::time::Duration;

/// The most lines about rejected objects in one window; a tenant that writes one bad object may write thousands.
const LINES_MAX: u64 = 10;

/// How long a window is: long enough that a flood leaves the log readable.
const LINES_WINDOW: Duration = Duration::from_secs(60);

/// How many lines were requested in this window, and how many were suppressed since the last written one.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineLimit {
    window_start: Duration,
    requested: u64,
    suppressed: u64,
}

impl LineLimit {
    /// Whether a line may be written now and, if so, how many were suppressed since the last. `now` never steps back.
    pub fn allow_line(&mut self, now: Duration) -> Option<u64> {
        if now >= self.window_start + LINES_WINDOW {
            *self = Self { window_start: now, requested: 0, suppressed: self.suppressed };
        }
        self.requested += 1;
        if self.requested > LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_flood_of_bad_objects_is_a_few_lines() {
        let mut quota = LineLimit::default();
        let said = (0..1_000).filter(|_| quota.allow_line(ms(5)).is_some()).count();
        assert_eq!(said as u64, LINES_MAX);
        assert_eq!(quota.allow_line(LINES_WINDOW + ms(5)), Some(990));
        assert_eq!(quota.allow_line(LINES_WINDOW + ms(6)), Some(0));
    }
}
