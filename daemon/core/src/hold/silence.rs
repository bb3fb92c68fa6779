//! The sources that cannot report endpoints of held lists now, and their answers to queries.
//!
//! Invariant: a source counts as silent from the step in which that was reported until it reports endpoints again, and
//! then for as long as the silence lasted, at most [`RESYNC_WINDOW`]: a repair is written a moment after the apiserver
//! is back. So a watch that breaks again and again, and is whole in between, adds little. A query is repeated if it is
//! older than [`ANSWER_SECONDS`] or than a standstill of this process, and its answer does not count.

use alloc::collections::BTreeMap;

use super::judge::{RESYNC_WINDOW, SourceLiveness};
use crate::keys::Source;
use crate::time::Uptime;

/// How long an answer counts, and how long a query waits for one. The nodes of a large cluster need less to query one
/// apiserver after the other, find that one hangs, and query the next one.
const ANSWER_SECONDS: i64 = 30;

/// A gap of this length between decisions means a standstill. The process decides each second, and no step takes as
/// long.
const STANDSTILL_SECONDS: i64 = 5;

#[derive(Debug, Default)]
pub(super) struct SourceSilence {
    /// The reports since the last decision: whether the source is silent.
    reports: BTreeMap<Source, bool>,
    since: BTreeMap<Source, Uptime>,
    /// Until when a source that reports again still counts as silent.
    until: BTreeMap<Source, Uptime>,
    /// When each source was last queried.
    queries: BTreeMap<Source, Uptime>,
    /// The time of the last query that a source has answered.
    answers: BTreeMap<Source, Uptime>,
    decided: Uptime,
    /// When this process resumed after a standstill.
    resumed: Uptime,
}

impl SourceSilence {
    pub(super) fn record_report(&mut self, source: Source, is_silent: bool) {
        self.reports.insert(source, is_silent);
    }

    /// Dates the reports since the last decision.
    pub(super) fn apply_reports(&mut self, now: Uptime) {
        let before = core::mem::replace(&mut self.decided, now);
        if now.since(before) > STANDSTILL_SECONDS {
            self.resumed = now;
        }
        for (source, is_silent) in core::mem::take(&mut self.reports) {
            if is_silent {
                self.since.entry(source).or_insert(now);
            } else if let Some(since) = self.since.remove(&source) {
                let until = self.until.entry(source).or_insert(now);
                *until = now.plus(now.since(since).min(RESYNC_WINDOW)).max(*until);
            }
        }
    }

    /// Queries the source, unless a recent query from `since` or later still waits for its answer.
    pub(super) fn query_source(&mut self, source: Source, since: Uptime, now: Uptime) {
        let is_open =
            |put: &Uptime| *put >= since && self.is_young(*put, now) && self.answers.get(&source) < Some(put);
        let question = self.queries.get(&source).copied().filter(is_open).unwrap_or(now);
        self.queries.insert(source, question);
    }

    /// Records that the source has answered the query of that time.
    pub(super) fn record_answer(&mut self, source: Source, put: Uptime) {
        let answered = self.answers.entry(source).or_insert(put);
        *answered = put.max(*answered);
    }

    /// When each source was last queried.
    pub(super) const fn queries(&self) -> &BTreeMap<Source, Uptime> {
        &self.queries
    }

    pub(super) fn source_liveness(&self, source: Source, now: Uptime) -> SourceLiveness {
        if self.is_silent(source, now) {
            return SourceLiveness::Silent;
        }
        if !source.is_tenant_writable() {
            return SourceLiveness::Always;
        }
        SourceLiveness::Queried(self.answers.get(&source).copied().filter(|put| self.is_young(*put, now)))
    }

    fn is_young(&self, put: Uptime, now: Uptime) -> bool {
        put >= self.resumed && now.since(put) <= ANSWER_SECONDS
    }

    fn is_silent(&self, source: Source, now: Uptime) -> bool {
        self.since.contains_key(&source) || self.until.get(&source).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source::Kubernetes;

    /// Whether the source counts as silent at these seconds, after reports at others.
    fn at(reports: &[(i64, bool)], seconds: &[i64]) -> alloc::vec::Vec<bool> {
        let mut silence = SourceSilence::default();
        for (second, is_silent) in reports {
            silence.record_report(SOURCE, *is_silent);
            silence.apply_reports(Uptime(*second));
        }
        seconds.iter().map(|second| silence.is_silent(SOURCE, Uptime(*second))).collect()
    }

    #[test]
    fn a_source_stays_silent_as_long_again_but_at_most_a_minute() {
        assert_eq!(at(&[], &[0]), [false]);
        assert_eq!(at(&[(0, true)], &[0, 1_000_000]), [true, true]);
        assert_eq!(at(&[(0, true), (5, false)], &[5, 9, 10]), [true, true, false]);
        assert_eq!(at(&[(0, true), (300, false)], &[359, 360]), [true, false]);
        // Each failed try reports the silence again, and each watch its end.
        assert_eq!(at(&[(0, true), (50, true), (60, false), (62, false)], &[119, 120]), [true, false]);
        assert_eq!(at(&[(0, true), (60, false), (70, true), (71, false)], &[119, 120]), [true, false]);
    }

    /// Checks the last query and the answer that counts after these steps. Each step queries the source for a hold that
    /// is due at that second, or records an answer to the query of that time.
    #[track_caller]
    fn check_asked(done: &[(i64, Option<i64>)], now: i64, expected: (i64, Option<i64>)) {
        let mut silence = SourceSilence::default();
        for (second, answers) in done {
            match answers {
                None => silence.query_source(SOURCE, Uptime(*second), Uptime(*second)),
                Some(put) => silence.record_answer(SOURCE, Uptime(*put)),
            }
        }
        let answered = SourceLiveness::Queried(expected.1.map(Uptime));
        assert_eq!(silence.queries().get(&SOURCE), Some(&Uptime(expected.0)), "{done:?}");
        assert_eq!(silence.source_liveness(SOURCE, Uptime(now)), answered, "{done:?}");
    }

    #[test]
    fn an_answer_counts_for_its_own_query_and_thirty_seconds() {
        check_asked(&[(10, None)], 11, (10, None));
        check_asked(&[(10, None), (11, Some(10))], 40, (10, Some(10)));
        check_asked(&[(10, None), (11, Some(10))], 41, (10, None));
        check_asked(&[(10, None), (12, None), (13, Some(10))], 13, (12, Some(10)));
        check_asked(&[(10, None), (11, Some(10)), (11, Some(9))], 12, (10, Some(10)));
    }

    #[test]
    fn a_query_is_repeated_when_answered_older_than_the_loss_or_expired() {
        let mut silence = SourceSilence::default();
        let mut ask = |since, now| {
            silence.apply_reports(Uptime(now));
            silence.query_source(SOURCE, Uptime(since), Uptime(now));
            silence.queries().get(&SOURCE).copied()
        };
        assert_eq!([ask(5, 10), ask(5, 12)], [Some(Uptime(10)); 2], "one query is enough");
        assert_eq!(ask(11, 13), Some(Uptime(13)), "a later loss needs a later answer");
        for now in 14..=43 {
            assert_eq!(ask(11, now), Some(Uptime(13)), "{now}");
        }
        assert_eq!(ask(11, 44), Some(Uptime(44)));
        silence.record_answer(SOURCE, Uptime(44));
        silence.query_source(SOURCE, Uptime(11), Uptime(45));
        assert_eq!(silence.queries().get(&SOURCE), Some(&Uptime(45)), "an answer ends a query");
    }

    #[test]
    fn answers_from_before_a_standstill_do_not_count() {
        for (standstill, put_again) in [(5, 10), (6, 16)] {
            let mut silence = SourceSilence::default();
            silence.apply_reports(Uptime(5));
            silence.apply_reports(Uptime(10));
            silence.query_source(SOURCE, Uptime(10), Uptime(10));
            silence.record_answer(SOURCE, Uptime(10));
            let now = Uptime(10 + standstill);
            silence.apply_reports(now);
            let answered = Some(Uptime(10)).filter(|_| put_again == 10);
            assert_eq!(
                silence.source_liveness(SOURCE, now),
                SourceLiveness::Queried(answered),
                "{standstill} s"
            );
        }
    }

    #[test]
    fn a_source_that_recovers_within_one_batch_was_never_silent() {
        let mut silence = SourceSilence::default();
        silence.record_report(SOURCE, true);
        silence.record_report(SOURCE, false);
        silence.apply_reports(Uptime(7));
        assert!(!silence.is_silent(SOURCE, Uptime(7)));
    }
}
