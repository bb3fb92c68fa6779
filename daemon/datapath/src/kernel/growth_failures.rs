//! Failed growths, and when they may be retried.
//!
//! Invariant: the engine waits for a bounded number of failing growths per pause, because each loads all programs while
//! no other change is written. A growth that is smaller in any map than the failed ones may be tried, because memory
//! may suffice for it. A successful growth resets everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_status::datapath::MapSizes;

use crate::error::StartError;
use crate::shape::ShapeGrowth;

/// The first pause. Each further one doubles, because the kernel usually refuses again.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The most failed growths per pause: one for each map that grows, and one for several at once.
const FAILURES_MAX: usize = 7;

/// The failures since the last successful growth.
#[derive(Debug, Default)]
pub(super) struct GrowthFailures {
    // Those of this pause, the latest one last.
    failures: Vec<(MapSizes, Arc<StartError>)>,
    // When the latest growth failed, and the length of the pause since.
    pause: Option<(Instant, Duration)>,
}

impl GrowthFailures {
    /// The error of a recent growth to this shape or a smaller one; `None`: try it.
    pub(super) fn recent_failure(&self, wanted: &MapSizes) -> Option<Arc<StartError>> {
        if self.is_pause_over() {
            return None;
        }
        let is_as_large = |(shape, _): &&(MapSizes, _)| wanted.max_with(*shape) == *wanted;
        let known = self.failures.iter().find(is_as_large);
        let full = || self.failures.last().filter(|_| self.failures.len() >= FAILURES_MAX);
        known.or_else(full).map(|(_, why)| Arc::clone(why))
    }

    fn is_pause_over(&self) -> bool {
        self.pause.is_none_or(|(begun, length)| begun.elapsed() >= length)
    }

    /// Records why a growth to this shape failed. The pause begins after the latest failure.
    pub(super) fn record_failure(&mut self, shape: MapSizes, error: StartError) -> Arc<StartError> {
        let length = match self.pause {
            None => PAUSE_FIRST,
            Some((_, length)) if self.is_pause_over() => (length * 2).min(PAUSE_MAX),
            Some((_, length)) => length,
        };
        if self.is_pause_over() {
            self.failures.clear();
        }
        let why = Arc::new(error);
        self.failures.push((shape, Arc::clone(&why)));
        self.pause = Some((Instant::now(), length));
        why
    }
}

#[cfg(test)]
impl GrowthFailures {
    pub(super) fn end_pause(&mut self) {
        let set_back = |(_, length)| (holdfast_fixtures::clock::now() - length, length);
        self.pause = self.pause.map(set_back);
    }

    /// Lets the pause begin an hour from now, so that it lasts however slow the test is.
    pub(super) fn prolong_pause(&mut self) {
        let hour = Duration::from_secs(3_600);
        self.pause = self.pause.map(|(begun, length)| (begun + hour, length));
    }

    pub(super) fn count(&self) -> usize {
        self.failures.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(frontends: u32, members: u32) -> MapSizes {
        MapSizes { frontends: [frontends, 0], members, ..MapSizes::NONE }
    }

    fn fail(failures: &mut GrowthFailures, shape: MapSizes, why: &str) {
        let error = StartError::from_load(std::io::Error::other(why.to_owned()).into());
        failures.record_failure(shape, error);
    }

    fn why(failures: &GrowthFailures, shape: MapSizes) -> Option<String> {
        failures.recent_failure(&shape).map(|why| why.to_string())
    }

    #[test]
    fn only_growths_as_large_as_a_failed_one_are_refused_without_a_try() {
        let mut refused = GrowthFailures::default();
        assert_eq!(why(&refused, shape(8, 8)), None, "nothing has failed");
        fail(&mut refused, shape(8, 2), "no memory");
        for larger in [shape(8, 2), shape(8, 4), shape(16, 2)] {
            assert!(why(&refused, larger).unwrap().contains("no memory"), "{larger:?}");
        }
        for other in [shape(4, 2), shape(2, 8), shape(8, 1)] {
            assert_eq!(why(&refused, other), None, "{other:?}");
        }
        fail(&mut refused, shape(2, 8), "no pins");
        assert!(why(&refused, shape(2, 8)).unwrap().contains("no pins"));
        assert!(why(&refused, shape(8, 2)).unwrap().contains("no memory"), "each has its own cause");
    }

    #[test]
    fn a_pause_allows_one_failure_per_map_and_one_more() {
        let mut refused = GrowthFailures::default();
        for number in 0..7 {
            assert_eq!(why(&refused, shape(10 - number, number)), None, "{number}");
            fail(&mut refused, shape(10 - number, number), &format!("the one of {number}"));
        }
        assert!(why(&refused, shape(1, 1)).unwrap().contains("the one of 6"));
        refused.end_pause();
        assert_eq!(why(&refused, shape(1, 1)), None);
    }

    #[test]
    fn a_failing_growth_is_retried_ever_less_often() {
        let mut refused = GrowthFailures::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert_eq!(why(&refused, shape(8, 8)), None);
            fail(&mut refused, shape(8, 8), "busy");
            fail(&mut refused, shape(9, 4), "busy as well");
            assert!(why(&refused, shape(8, 8)).is_some());
            pauses.push(refused.pause.unwrap().1.as_secs());
            refused.end_pause();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
