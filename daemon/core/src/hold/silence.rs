//! Which sources cannot tell now whether the endpoints of a held list are back.
//!
//! Invariant: a source counts as silent from the step in which that was told until it tells again, and then for as long
//! as it was silent once more, but for no longer than [`RESYNC_WINDOW`]: what mends an accident is written a moment
//! after the apiserver is back. So a watch that breaks again and again, and is whole in between, prolongs little.

use alloc::collections::BTreeMap;

use super::judge::RESYNC_WINDOW;
use crate::keys::Source;
use crate::time::Uptime;

/// What is known of the silence of each source.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// What was told since the last decision: whether the source is silent.
    told: BTreeMap<Source, bool>,
    since: BTreeMap<Source, Uptime>,
    /// How long a source that tells again still counts as silent.
    until: BTreeMap<Source, Uptime>,
}

impl Silence {
    pub(super) fn tell(&mut self, source: Source, is_silent: bool) {
        self.told.insert(source, is_silent);
    }

    /// Dates what was told since the last decision.
    pub(super) fn begin(&mut self, now: Uptime) {
        for (source, is_silent) in core::mem::take(&mut self.told) {
            if is_silent {
                self.since.entry(source).or_insert(now);
            } else if let Some(since) = self.since.remove(&source) {
                let until = self.until.entry(source).or_insert(now);
                *until = now.plus(now.since(since).min(RESYNC_WINDOW)).max(*until);
            }
        }
    }

    pub(super) fn covers(&self, source: Source, now: Uptime) -> bool {
        self.since.contains_key(&source) || self.until.get(&source).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source::Kubernetes;

    /// Whether the source counts as silent at these seconds, after what was told at others.
    fn at(told: &[(i64, bool)], seconds: &[i64]) -> alloc::vec::Vec<bool> {
        let mut silence = Silence::default();
        for (second, is_silent) in told {
            silence.tell(SOURCE, *is_silent);
            silence.begin(Uptime(*second));
        }
        seconds.iter().map(|second| silence.covers(SOURCE, Uptime(*second))).collect()
    }

    #[test]
    fn a_source_counts_as_silent_until_it_has_told_for_as_long_again_or_for_a_minute() {
        assert_eq!(at(&[], &[0]), [false]);
        assert_eq!(at(&[(0, true)], &[0, 1_000_000]), [true, true]);
        assert_eq!(at(&[(0, true), (5, false)], &[5, 9, 10]), [true, true, false]);
        assert_eq!(at(&[(0, true), (300, false)], &[359, 360]), [true, false]);
        // Every failed try tells once more that it is silent, and every watch that it is not.
        assert_eq!(at(&[(0, true), (50, true), (60, false), (62, false)], &[119, 120]), [true, false]);
        assert_eq!(at(&[(0, true), (60, false), (70, true), (71, false)], &[119, 120]), [true, false]);
    }

    #[test]
    fn a_source_that_tells_again_within_the_same_batch_was_never_silent() {
        let mut silence = Silence::default();
        silence.tell(SOURCE, true);
        silence.tell(SOURCE, false);
        silence.begin(Uptime(7));
        assert!(!silence.covers(SOURCE, Uptime(7)));
    }
}
