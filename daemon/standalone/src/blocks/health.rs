//! The health of one backend, from its successive checks.
//!
//! Invariant: readiness turns only after `fall` failures or `rise` successes in a row; any other result restarts the
//! count.

/// A change of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The backend gets new connections again.
    Ready,
    /// The backend gets no new connections.
    Unready,
}

/// The state of one checked backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    rise: u32,
    fall: u32,
    ready: bool,
    proven: bool,
    // Results in a row against the present readiness.
    opposing: u32,
    // Failures since the backend was last healthy, for the log.
    failures: u32,
}

impl Health {
    /// A backend before its first check: ready until proven otherwise.
    pub(super) const fn new(rise: u32, fall: u32) -> Self {
        Self { rise, fall, ready: true, proven: false, opposing: 0, failures: 0 }
    }

    /// Whether the backend may get new connections.
    pub(super) const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether there was a verdict: one success, or `fall` failures in a row.
    pub(super) const fn is_proven(&self) -> bool {
        self.proven
    }

    /// Failures since the backend was last healthy; a recovery keeps the count until the next failure.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Changes the thresholds. The verdict stays: a reload is no reason to trust a dead backend.
    pub(super) const fn set_thresholds(&mut self, rise: u32, fall: u32) {
        self.rise = rise;
        self.fall = fall;
        self.opposing = 0;
    }

    /// Records one result; returns the transition, if any.
    pub(super) fn record_result(&mut self, success: bool) -> Option<Transition> {
        self.count_failures(success);
        if success == self.ready {
            self.proven |= success;
            self.opposing = 0;
            return None;
        }
        self.opposing = self.opposing.saturating_add(1);
        let needed = if self.ready { self.fall } else { self.rise };
        (self.opposing >= needed).then(|| self.flip_readiness())
    }

    fn count_failures(&mut self, success: bool) {
        let begins = self.opposing == 0 && self.ready;
        if !success {
            self.failures = if begins { 1 } else { self.failures.saturating_add(1) };
        }
    }

    const fn flip_readiness(&mut self) -> Transition {
        self.ready = !self.ready;
        self.proven = true;
        self.opposing = 0;
        if self.ready { Transition::Ready } else { Transition::Unready }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds results as `+` and `-`; expects `R` or `u` after each, with `!` for a transition.
    #[track_caller]
    fn check(rule: &str, (rise, fall): (u32, u32), results: &str, expected: &str) {
        let mut health = Health::new(rise, fall);
        let mut seen = String::new();
        for result in results.chars() {
            let transition = health.record_result(result == '+');
            seen.push(if health.is_ready() { 'R' } else { 'u' });
            match transition {
                Some(Transition::Ready) => assert!(health.is_ready(), "{rule}"),
                Some(Transition::Unready) => assert!(!health.is_ready(), "{rule}"),
                None => continue,
            }
            seen.push('!');
        }
        assert_eq!(seen, expected, "{rule}");
    }

    #[test]
    fn readiness_turns_after_rise_or_fall_results_in_a_row() {
        check("ready from the start", (2, 3), "", "");
        check("a success proves nothing new", (2, 3), "++", "RR");
        check("fall failures", (2, 3), "---", "RRu!");
        check("zero is as one", (0, 0), "-+", "u!R!");
        check("fall is one", (1, 1), "-+-", "u!R!u!");
        check("a success between failures resets the count", (2, 3), "--+--+---", "RRRRRRRRu!");
        check("rise successes", (2, 3), "---++", "RRu!uR!");
        check("a failure between successes resets the count", (2, 3), "---+-+-++", "RRu!uuuuuR!");
        check("further failures are no transition", (2, 3), "------", "RRu!uuu");
        check("after a recovery fall counts from nothing", (1, 2), "--+-", "Ru!R!R");
        check("flapping never turns it with fall 2", (1, 2), "-+-+-+-+", "RRRRRRRR");
    }

    #[track_caller]
    fn check_proven(rule: &str, results: &str, expected: bool) {
        let mut health = Health::new(2, 3);
        for result in results.chars() {
            health.record_result(result == '+');
        }
        assert_eq!(health.is_proven(), expected, "{rule}");
    }

    #[test]
    fn a_verdict_is_the_first_success_or_fall_failures() {
        check_proven("nothing seen", "", false);
        check_proven("one success", "+", true);
        check_proven("too few failures", "--", false);
        check_proven("fall failures", "---", true);
        check_proven("a success after failures", "--+", true);
    }

    #[test]
    fn other_thresholds_keep_the_verdict_and_count_anew() {
        let mut health = Health::new(2, 3);
        health.record_result(false);
        health.record_result(false);
        health.set_thresholds(1, 2);
        assert_eq!(health.record_result(false), None, "the two failures before do not count");
        assert_eq!(health.record_result(false), Some(Transition::Unready));
        health.set_thresholds(1, 1);
        assert!(!health.is_ready());
        assert_eq!(health.record_result(true), Some(Transition::Ready));
    }

    #[test]
    fn failures_are_counted_since_the_last_health() {
        let mut health = Health::new(1, 2);
        for (result, failures) in [(false, 1), (false, 2), (false, 3), (true, 3), (true, 3), (false, 1)] {
            health.record_result(result);
            assert_eq!(health.failures(), failures);
        }
    }
}
