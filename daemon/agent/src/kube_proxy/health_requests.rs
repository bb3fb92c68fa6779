//! Counts the requests for kube-proxy's health.
//!
//! Invariant: the handler counts a request as it answers, and the metrics read the counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// The requests for health, by path and by whether the response was good.
#[derive(Debug, Default)]
pub(super) struct HealthRequests {
    pub(super) healthz: AnswerCounts,
    pub(super) livez: AnswerCounts,
}

#[derive(Debug, Default)]
pub(super) struct AnswerCounts([AtomicU64; 2]);

impl AnswerCounts {
    pub(super) fn count(&self, is_good: bool) {
        let [good, bad] = &self.0;
        if is_good { good } else { bad }.fetch_add(1, Ordering::Relaxed);
    }

    /// Each status with its count.
    pub(super) fn totals(&self) -> [(&'static str, u64); 2] {
        let [good, bad] = &self.0;
        [("200", good), ("503", bad)].map(|(code, count)| (code, count.load(Ordering::Relaxed)))
    }
}
