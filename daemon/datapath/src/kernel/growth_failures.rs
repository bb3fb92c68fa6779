//! Growths that failed, and until when they are not tried again.
//!
//! Invariant: whatever the engine asks for, it waits for a few failing growths in a pause at most: each loads all
//! programs, and no other change is written meanwhile. A growth that is smaller in any map than those that failed may
//! be tried all the same, because there may be memory for it. A growth that succeeds ends all of this.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_status::datapath::MapSizes;

use crate::error::StartError;
use crate::shape::ShapeGrowth;

/// The first pause. Each time twice as long passes, because what the kernel refused once it mostly refuses again.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The most growths that fail in one pause: one for each map that grows, and one for what comes at once.
const FAILURES_MAX: usize = 7;

/// What was refused since the last growth that succeeded.
#[derive(Debug, Default)]
pub(super) struct GrowthFailures {
    // Those of this pause, the latest one last.
    failures: Vec<(MapSizes, Arc<StartError>)>,
    // When the latest one failed, and how long the pause is after it.
    pause: Option<(Instant, Duration)>,
}

impl GrowthFailures {
    /// Why maps of this shape are not to be had now; `None`: that is to be tried.
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

    /// Notes why a growth to this shape failed. The pause begins after the last one that failed.
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
    /// Has the pause come to its end.
    pub(super) fn end_pause(&mut self) {
        self.pause = self.pause.map(|(begun, length)| (begun.checked_sub(length).unwrap(), length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(frontends: u32, members: u32) -> MapSizes {
        MapSizes { frontends: [frontends, 0], members, ..MapSizes::NONE }
    }

    fn fail(refused: &mut GrowthFailures, shape: MapSizes, why: &str) {
        let error = StartError::from_load(std::io::Error::other(why.to_owned()).into());
        refused.record_failure(shape, error);
    }

    fn why(refused: &GrowthFailures, shape: MapSizes) -> Option<String> {
        refused.recent_failure(&shape).map(|why| why.to_string())
    }

    #[test]
    fn only_what_is_as_large_as_a_growth_that_failed_is_refused_without_a_try() {
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
    fn a_pause_has_no_more_failures_than_there_are_maps_and_one() {
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
    fn a_growth_that_fails_is_tried_again_ever_less_often() {
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
