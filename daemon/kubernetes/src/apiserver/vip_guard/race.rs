//! Staggered attempts in parallel: each starts a moment after the one before, or as soon as that one has failed.
//!
//! Invariant: attempts start in the given order, one at a time, each once. [`Race::next`] is cancel-safe: a running
//! attempt continues with the next call, and ends with the race.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

/// Attempts, some of them running.
pub(super) struct Race<'a, T> {
    pending: VecDeque<BoxFuture<'a, T>>,
    running: FuturesUnordered<BoxFuture<'a, T>>,
    stagger: Duration,
    next_at: Instant,
}

impl<'a, T> Race<'a, T> {
    /// A race without a running attempt.
    pub(super) fn new(attempts: impl IntoIterator<Item = BoxFuture<'a, T>>, stagger: Duration) -> Self {
        let pending = attempts.into_iter().collect();
        Self { pending, running: FuturesUnordered::new(), stagger, next_at: Instant::now() }
    }

    /// Whether all attempts have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.pending.is_empty() && self.running.is_empty()
    }

    /// Waits for the next attempt to end; `None`: all have ended.
    pub(super) async fn next(&mut self) -> Option<T> {
        loop {
            self.start_next();
            if self.running.is_empty() {
                return None;
            }
            tokio::select! {
                // An attempt's end makes the next one due. `biased`, so that both at once start one attempt, not two.
                biased;
                Some(ended) = self.running.next() => {
                    self.next_at = Instant::now();
                    return Some(ended);
                }
                () = sleep_until(self.next_at), if !self.pending.is_empty() => {}
            }
        }
    }

    /// Starts the next attempt if it is due.
    fn start_next(&mut self) {
        let now = Instant::now();
        if now < self.next_at {
            return;
        }
        if let Some(next) = self.pending.pop_front() {
            self.running.push(next);
            self.next_at = now + self.stagger;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use holdfast_fixtures::clock::{Stopwatch, pause_async};

    use super::*;

    const STAGGER: Duration = Duration::from_millis(150);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Attempts with a duration and an outcome; each records its start in `begun`.
    fn race(attempts: &[(Duration, bool)], begun: &Arc<Mutex<Vec<u128>>>) -> Race<'static, (usize, bool)> {
        let stopwatch = Stopwatch::start();
        let attempt = |(at, (takes, succeeds)): (usize, &(Duration, bool))| {
            let (begun, takes, succeeds) = (Arc::clone(begun), *takes, *succeeds);
            let attempt: BoxFuture<'static, _> = Box::pin(async move {
                begun.lock().unwrap().push(stopwatch.read().as_millis());
                pause_async(takes).await;
                (at, succeeds)
            });
            attempt
        };
        Race::new(attempts.iter().enumerate().map(attempt), STAGGER)
    }

    /// The first attempt to succeed, its time, and the starts until then.
    async fn first(attempts: &[(Duration, bool)]) -> (Option<usize>, u128, Vec<u128>) {
        let (begun, stopwatch) = (Arc::default(), Stopwatch::start());
        let mut race = race(attempts, &begun);
        let mut winner = None;
        while winner.is_none()
            && let Some((at, succeeds)) = race.next().await
        {
            winner = succeeds.then_some(at);
        }
        let took = stopwatch.read().as_millis();
        let begun = begun.lock().unwrap().clone();
        (winner, took, begun)
    }

    const SILENT: (Duration, bool) = (Duration::from_millis(2_800), false);
    const REFUSED: (Duration, bool) = (Duration::ZERO, false);
    const GOOD: (Duration, bool) = (Duration::from_millis(20), true);

    #[tokio::test(start_paused = true)]
    async fn four_silent_attempts_delay_a_good_one_by_four_staggers() {
        let (winner, took, begun) = first(&[SILENT, SILENT, SILENT, SILENT, GOOD]).await;
        assert_eq!((winner, took), (Some(4), 4 * STAGGER.as_millis() + 20));
        assert_eq!(begun, [0, 150, 300, 450, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_first_attempt_is_the_only_one() {
        assert_eq!(first(&[GOOD, GOOD, SILENT]).await, (Some(0), 20, vec![0]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_fails_at_once_costs_no_time() {
        let (winner, took, begun) = first(&[REFUSED, REFUSED, GOOD]).await;
        assert_eq!((winner, took, begun), (Some(2), 20, vec![0, 0, 0]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_attempt_wins_if_no_other_does() {
        let slow = (ms(2_500), true);
        assert_eq!(first(&[REFUSED, slow, SILENT]).await, (Some(1), 2_500, vec![0, 0, 150]));
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_19_attempts_run_at_once() {
        let (winner, took, begun) = first(&[SILENT; 33]).await;
        assert_eq!((winner, took), (None, 7_550), "and then it is over");
        let at_once = |from: &u128| begun.iter().filter(|at| **at >= *from && **at < from + 2_800).count();
        assert_eq!(begun.iter().map(at_once).max(), Some(19));
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_attempt_continues_with_the_next_call() {
        let begun = Arc::default();
        let mut race = race(&[(ms(1_000), true)], &begun);
        let stopwatch = Stopwatch::start();
        loop {
            tokio::select! {
                _ended = race.next() => break,
                () = pause_async(ms(300)) => {}
            }
        }
        assert_eq!((stopwatch.read(), begun.lock().unwrap().len()), (ms(1_000), 1));
        assert!(race.is_finished() && race.next().await.is_none());
    }
}
