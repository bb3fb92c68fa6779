//! Which refusals get a line in the log.
//!
//! Invariant: a frontend gets at most one line per [`QUIET`], however often it refuses; each line says how many
//! refusals it stands for. Refusals after the last line are in `/refusals` and the metrics only.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::keys::FrontendKey;

/// The time between two lines of a frontend: short enough for a reader of the log to see that it goes on, and long
/// enough to leave all other lines readable.
const QUIET: Duration = Duration::from_secs(10);

/// How many frontends are told apart. More of them refuse within one [`QUIET`] only in a scan of all addresses, which
/// needs no line for each.
const FRONTENDS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Lines(BTreeMap<FrontendKey, Line>);

#[derive(Debug)]
struct Line {
    at: Duration,
    untold: u64,
}

impl Lines {
    /// Counts one more refusal at a time since boot. If a line is due now, gives for how many refusals it stands, this
    /// one included.
    pub(super) fn due(&mut self, frontend: FrontendKey, at: Duration) -> Option<u64> {
        if let Some(line) = self.0.get_mut(&frontend) {
            line.untold += 1;
            if at.saturating_sub(line.at) < QUIET {
                return None;
            }
            line.at = at;
            return Some(std::mem::take(&mut line.untold));
        }
        if self.0.len() >= FRONTENDS_MAX {
            self.0.retain(|_, line| at.saturating_sub(line.at) < QUIET);
        }
        let has_room = self.0.len() < FRONTENDS_MAX;
        has_room.then(|| {
            self.0.insert(frontend, Line { at, untold: 0 });
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
    fn a_frontend_has_one_line_at_a_time_with_the_count_since_the_last() {
        let mut lines = Lines::default();
        let due: Vec<_> = (0..25).map(|second| lines.due(frontend(1), Duration::from_secs(second))).collect();
        let told: Vec<_> =
            due.iter().enumerate().filter_map(|(second, due)| Some((second, (*due)?))).collect();
        assert_eq!(told, [(0, 1), (10, 10), (20, 10)]);
    }

    #[test]
    fn frontends_do_not_silence_one_another() {
        let mut lines = Lines::default();
        assert_eq!(lines.due(frontend(1), QUIET), Some(1));
        assert_eq!(lines.due(frontend(2), QUIET), Some(1));
        assert_eq!(lines.due(frontend(2), QUIET), None);
    }

    #[test]
    fn a_scan_is_bounded_and_what_is_quiet_again_makes_room() {
        let mut lines = Lines::default();
        let told = (0..1_000).filter_map(|host| lines.due(frontend(host), QUIET)).count();
        assert_eq!((told, lines.0.len()), (FRONTENDS_MAX, FRONTENDS_MAX));
        assert_eq!(lines.due(frontend(2_000), 2 * QUIET), Some(1));
        assert_eq!(lines.0.len(), 1);
    }
}
