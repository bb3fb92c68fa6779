//! The engine's counters: how long its steps take, and when it last caught up.
//!
//! Invariant: the engine adds, pages and metrics read, and neither waits for the other. Only steps that wrote to the
//! maps, or tried to, count.

mod programming_latency;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_core::snapshot::Counters;
use holdfast_status::rfc3339::Millis;
use programming_latency::ProgrammingLatency;

/// The counters since the start.
#[derive(Debug)]
pub struct StepMetrics {
    /// How long steps took.
    pub durations: Histogram,
    /// How long changes of endpoints took to reach the maps.
    pub(crate) programming_latency: ProgrammingLatency,
    // Writes tried when the last step ended: a step that adds none does not count.
    ops_tried: AtomicU64,
    // When events were last taken, and when the maps were last complete, in milliseconds since the Unix epoch; 0
    // means never.
    events_at: AtomicI64,
    caught_up_at: AtomicI64,
}

impl Default for StepMetrics {
    /// The buckets are kube-proxy's: a millisecond, doubled fourteen times.
    fn default() -> Self {
        let took = Histogram::new((0..15).map(|power| Duration::from_millis(1 << power)));
        let taken = AtomicI64::new(0);
        let caught_up = AtomicI64::new(0);
        let programmed = ProgrammingLatency::default();
        Self {
            durations: took,
            programming_latency: programmed,
            ops_tried: AtomicU64::new(0),
            events_at: taken,
            caught_up_at: caught_up,
        }
    }
}

impl StepMetrics {
    /// Counts a step that wrote to the maps or tried to.
    pub(super) fn record_step(&self, counters: &Counters, took: Duration) {
        let tried = counters.ops + counters.ops_failed;
        if self.ops_tried.swap(tried, Ordering::Relaxed) != tried {
            self.durations.add(took);
        }
    }

    /// Records that events were taken just now.
    pub(super) fn note_events(&self) {
        self.events_at.store(holdfast_host::clock::now().0, Ordering::Relaxed);
    }

    /// Records that the maps are complete just now.
    pub(super) fn note_caught_up(&self) {
        self.caught_up_at.store(holdfast_host::clock::now().0, Ordering::Relaxed);
    }

    pub(crate) fn last_events(&self) -> Millis {
        Millis(self.events_at.load(Ordering::Relaxed))
    }

    /// When the maps were last complete.
    pub(crate) fn last_caught_up(&self) -> Millis {
        Millis(self.caught_up_at.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub struct Histogram {
    // The upper bound of each bucket, and its count: a duration counts in the first bucket that it fits.
    buckets: Box<[(Duration, AtomicU64)]>,
    // Durations above the last bound.
    beyond: AtomicU64,
    microseconds: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: impl Iterator<Item = Duration>) -> Self {
        let buckets = bounds.map(|most| (most, AtomicU64::new(0))).collect();
        Self { buckets, beyond: AtomicU64::new(0), microseconds: AtomicU64::new(0) }
    }

    pub fn add(&self, took: Duration) {
        let bucket =
            self.buckets.iter().find(|(most, _)| took <= *most).map_or(&self.beyond, |(_, count)| count);
        bucket.fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// Each bound with the count of durations up to it, then the total count.
    pub(crate) fn totals(&self) -> (Vec<(Duration, u64)>, u64) {
        let mut total = 0;
        let mut so_many = |count: &AtomicU64| {
            total += count.load(Ordering::Relaxed);
            total
        };
        let buckets = self.buckets.iter().map(|(most, count)| (*most, so_many(count))).collect();
        (buckets, so_many(&self.beyond))
    }

    pub(crate) fn sum(&self) -> Duration {
        Duration::from_micros(self.microseconds.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_all_durations_up_to_its_bound() {
        let steps = StepMetrics::default();
        for milliseconds in [1, 2, 3, 16_384, 16_385, 60_000] {
            steps.durations.add(Duration::from_millis(milliseconds));
        }
        let (buckets, count) = steps.durations.totals();
        let of = |milliseconds| {
            let most = Duration::from_millis(milliseconds);
            buckets.iter().find(|(bound, _)| *bound == most).unwrap().1
        };
        assert_eq!((of(1), of(2), of(4), of(8_192), of(16_384), count), (1, 2, 3, 3, 4, 6));
        assert_eq!(steps.durations.sum(), Duration::from_millis(92_775));
        assert_eq!(buckets.len(), 15);
    }
}
