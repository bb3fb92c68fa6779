//! What the checks of one backend, one after another, say of it.
//!
//! Invariant: readiness turns only after `fall` failures or `rise` successes in a row; one result of the other kind
//! starts the count anew.

/// How the readiness of a backend turned.
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
    // Results in a row that speak against `is_ready`.
    opposing: u32,
    // Failures since it was last well, for the log.
    failures: u32,
}

impl Health {
    /// The state of a backend before its first check: ready until proven otherwise.
    pub(super) const fn new(rise: u32, fall: u32) -> Self {
        Self { rise, fall, ready: true, proven: false, opposing: 0, failures: 0 }
    }

    /// Whether the backend may get new connections.
    pub(super) const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether a verdict was ever reached: one success, or `fall` failures in a row.
    pub(super) const fn is_proven(&self) -> bool {
        self.proven
    }

    /// Failed checks since the backend was last well; the number is kept over a recovery, until the next failure.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Sets other thresholds from now on. The verdict stays: a reload is no reason to trust a dead backend.
    pub(super) const fn set_thresholds(&mut self, rise: u32, fall: u32) {
        self.rise = rise;
        self.fall = fall;
        self.opposing = 0;
    }

    /// Takes one result in; returns how the backend's readiness turned, if it did.
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

    /// Results as `+` and `-`; expected: the readiness after each, `R` or `u`, and whether each was a transition (`!`).
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
        check("a success between failures starts anew", (2, 3), "--+--+---", "RRRRRRRRu!");
        check("rise successes", (2, 3), "---++", "RRu!uR!");
        check("a failure between successes starts anew", (2, 3), "---+-+-++", "RRu!uuuuuR!");
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
    fn failures_are_counted_since_it_was_last_well() {
        let mut health = Health::new(1, 2);
        for (result, failures) in [(false, 1), (false, 2), (false, 3), (true, 3), (true, 3), (false, 1)] {
            health.record_result(result);
            assert_eq!(health.failures(), failures);
        }
    }
}
