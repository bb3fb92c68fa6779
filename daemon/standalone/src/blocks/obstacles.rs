//! Tracks what keeps this node from checking backends.
//!
//! Invariant: a resource that this node lacks never counts against a backend. A missing route counts only after
//! [`ROUTE_GRACE`]: a network that is reconfigured is back by then, and a node without a route for longer cannot serve
//! the backend's clients either, so an announced address should move to another node. At most one line per
//! [`WARN_EVERY`] is logged, however many backends there are.

use std::time::Duration;

use super::CheckResult;
use super::check_table::{CheckOutcome, Obstacle};

/// How long a route may be missing until the check fails: longer than `systemd-networkd` or a network plugin takes to
/// restart.
pub(super) const ROUTE_GRACE: Duration = Duration::from_secs(10);

/// The least interval of log lines about checks that cannot run.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// Since when this node has no route to one backend.
#[derive(Debug, Default)]
pub(super) struct RouteLoss(Option<Duration>);

impl RouteLoss {
    /// Judges an outcome: a route missing for long is a failure.
    pub(super) fn judge_outcome(&mut self, outcome: CheckOutcome, now: Duration) -> CheckOutcome {
        match (outcome.obstacle, outcome.result) {
            (Some(Obstacle::Route), _) => {}
            (_, CheckResult::NotRun) => return outcome,
            (_, CheckResult::Good | CheckResult::Bad) => {
                self.0 = None;
                return outcome;
            }
        }
        let since = *self.0.get_or_insert(now);
        let is_lasting = now.saturating_sub(since) >= ROUTE_GRACE;
        if is_lasting { outcome.with_result(CheckResult::Bad) } else { outcome }
    }
}

/// Logs that checks cannot run.
#[derive(Debug, Default)]
pub(super) struct ObstacleLog(Option<Duration>);

impl ObstacleLog {
    pub(super) fn log_outcome(&mut self, outcome: &CheckOutcome, now: Duration) {
        let is_due = self.0.is_none_or(|last| now.saturating_sub(last) >= WARN_EVERY);
        if outcome.obstacle.is_some() && outcome.result == CheckResult::NotRun && is_due {
            self.0 = Some(now);
            let error = outcome.error().unwrap_or_default();
            tracing::warn!(error, "this node cannot check backends; they stay as they are");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use holdfast_status::rfc3339::Millis;
    use nix::libc;

    use super::super::check::CheckError;
    use super::*;

    fn outcome(result: &Result<(), CheckError>) -> CheckOutcome {
        CheckOutcome::new(result, Millis(0), Duration::ZERO)
    }

    #[test]
    fn a_missing_route_counts_once_it_has_lasted() {
        let error = |number| io::Error::from_raw_os_error(number);
        let no_route = || outcome(&Err(CheckError::NoRoute(error(libc::ENETUNREACH))));
        let unable = || outcome(&Err(CheckError::Unable(error(libc::EMFILE))));
        let well = || outcome(&Ok(()));
        let mut loss = RouteLoss::default();
        for (seconds, outcome, expected) in [
            (0, no_route(), CheckResult::NotRun),
            (9, no_route(), CheckResult::NotRun),
            (9, unable(), CheckResult::NotRun),
            (10, no_route(), CheckResult::Bad),
            (11, no_route(), CheckResult::Bad),
            (12, unable(), CheckResult::NotRun),
            (13, well(), CheckResult::Good),
            (14, no_route(), CheckResult::NotRun),
            (24, no_route(), CheckResult::Bad),
        ] {
            let judged = loss.judge_outcome(outcome, Duration::from_secs(seconds));
            assert_eq!(judged.result, expected, "{seconds} s");
        }
    }
}
