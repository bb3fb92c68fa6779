//! Selects the refusals that get a log line.
//!
//! Invariant: a frontend gets at most one line per [`LINE_GAP`], and each line counts the refusals since the last
//! one. Refusals after the last line appear only in `/refusals` and the metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::keys::FrontendKey;

/// The time between two lines of a frontend: short enough to show that it continues, long enough to leave all other
/// lines readable.
const LINE_GAP: Duration = Duration::from_secs(10);

/// The most frontends told apart. More refuse within one [`LINE_GAP`] only during a scan of all addresses, which
/// needs no line for each.
const FRONTENDS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct LineLimiter(BTreeMap<FrontendKey, FrontendLine>);

#[derive(Debug)]
struct FrontendLine {
    at: Duration,
    suppressed: u64,
}

impl LineLimiter {
    /// Counts a refusal at a time since boot. If a line is due, returns how many refusals it counts, this one
    /// included.
    pub(super) fn count_due(&mut self, frontend: FrontendKey, at: Duration) -> Option<u64> {
        if let Some(line) = self.0.get_mut(&frontend) {
            line.suppressed += 1;
            if at.saturating_sub(line.at) < LINE_GAP {
                return None;
            }
            line.at = at;
            return Some(std::mem::take(&mut line.suppressed));
        }
        if self.0.len() >= FRONTENDS_MAX {
            self.0.retain(|_, line| at.saturating_sub(line.at) < LINE_GAP);
        }
        let has_room = self.0.len() < FRONTENDS_MAX;
        has_room.then(|| {
            self.0.insert(frontend, FrontendLine { at, suppressed: 0 });
            1
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use holdfast_core::keys::Transport;

    use super::*;

    fn frontend(host: u16) -> FrontendKey {
        let [high, low] = host.to_be_bytes();
        FrontendKey { address: [10, 96, high, low].into(), port: NonZeroU16::MIN, transport: Transport::Tcp }
    }

    #[test]
    fn a_frontend_logs_one_line_per_gap_with_the_count_since() {
        let mut lines = LineLimiter::default();
        let due: Vec<_> =
            (0..25).map(|second| lines.count_due(frontend(1), Duration::from_secs(second))).collect();
        let told: Vec<_> =
            due.iter().enumerate().filter_map(|(second, due)| Some((second, (*due)?))).collect();
        assert_eq!(told, [(0, 1), (10, 10), (20, 10)]);
    }

    #[test]
    fn a_noisy_frontend_does_not_silence_another() {
        let mut lines = LineLimiter::default();
        assert_eq!(lines.count_due(frontend(1), LINE_GAP), Some(1));
        assert_eq!(lines.count_due(frontend(2), LINE_GAP), Some(1));
        assert_eq!(lines.count_due(frontend(2), LINE_GAP), None);
    }

    #[test]
    fn a_scan_is_bounded_and_quiet_frontends_are_evicted() {
        let mut lines = LineLimiter::default();
        let told = (0..1_000).filter_map(|host| lines.count_due(frontend(host), LINE_GAP)).count();
        assert_eq!((told, lines.0.len()), (FRONTENDS_MAX, FRONTENDS_MAX));
        assert_eq!(lines.count_due(frontend(2_000), 2 * LINE_GAP), Some(1));
        assert_eq!(lines.0.len(), 1);
    }
}
