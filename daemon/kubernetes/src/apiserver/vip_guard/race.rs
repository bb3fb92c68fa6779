//! Several attempts side by side: each begins a moment after the one before, or as soon as that one has failed.
//!
//! Invariant: attempts begin in the order in which they were given, one at a time, and never a second time. What ends
//! is told as it ends, and waiting for it can be given up and taken up again: an attempt that has begun goes on with
//! the next wait, and ends with the race.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

/// Attempts of which some have begun.
pub(super) struct Race<'a, T> {
    pending: VecDeque<BoxFuture<'a, T>>,
    running: FuturesUnordered<BoxFuture<'a, T>>,
    stagger: Duration,
    next_at: Instant,
}

impl<'a, T> Race<'a, T> {
    /// A race in which nothing has begun yet.
    pub(super) fn new(attempts: impl IntoIterator<Item = BoxFuture<'a, T>>, stagger: Duration) -> Self {
        let to_begin = attempts.into_iter().collect();
        Self { pending: to_begin, running: FuturesUnordered::new(), stagger, next_at: Instant::now() }
    }

    /// Whether all attempts have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.pending.is_empty() && self.running.is_empty()
    }

    /// Waits for the next end of an attempt; `None`: all have ended.
    pub(super) async fn next(&mut self) -> Option<T> {
        loop {
            self.start_next();
            if self.running.is_empty() {
                return None;
            }
            tokio::select! {
                // The end of an attempt is the time for the next one, so both at once begin one, not two.
                biased;
                Some(ended) = self.running.next() => {
                    self.next_at = Instant::now();
                    return Some(ended);
                }
                () = sleep_until(self.next_at), if !self.pending.is_empty() => {}
            }
        }
    }

    /// Begins the next attempt if it is its time.
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

    use tokio::time::{sleep, timeout};

    use super::*;

    const STAGGER: Duration = Duration::from_millis(150);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What each attempt takes, and whether it succeeds then. It notes when it began.
    fn race(attempts: &[(Duration, bool)], begun: &Arc<Mutex<Vec<u128>>>) -> Race<'static, (usize, bool)> {
        let from = Instant::now();
        let attempt = |(at, (takes, succeeds)): (usize, &(Duration, bool))| {
            let (begun, takes, succeeds) = (Arc::clone(begun), *takes, *succeeds);
            let attempt: BoxFuture<'static, _> = Box::pin(async move {
                begun.lock().unwrap().push(from.elapsed().as_millis());
                sleep(takes).await;
                (at, succeeds)
            });
            attempt
        };
        Race::new(attempts.iter().enumerate().map(attempt), STAGGER)
    }

    /// Which attempt succeeds first, when, and when each had begun by then.
    async fn first(attempts: &[(Duration, bool)]) -> (Option<usize>, u128, Vec<u128>) {
        let (begun, from) = (Arc::default(), Instant::now());
        let mut race = race(attempts, &begun);
        let mut winner = None;
        while winner.is_none()
            && let Some((at, succeeds)) = race.next().await
        {
            winner = succeeds.then_some(at);
        }
        let took = from.elapsed().as_millis();
        let begun = begun.lock().unwrap().clone();
        (winner, took, begun)
    }

    const SILENT: (Duration, bool) = (Duration::from_millis(2_800), false);
    const REFUSED: (Duration, bool) = (Duration::ZERO, false);
    const GOOD: (Duration, bool) = (Duration::from_millis(20), true);

    #[tokio::test(start_paused = true)]
    async fn four_silent_ones_before_a_good_one_cost_four_moments() {
        let (winner, took, begun) = first(&[SILENT, SILENT, SILENT, SILENT, GOOD]).await;
        assert_eq!((winner, took), (Some(4), 4 * STAGGER.as_millis() + 20));
        assert_eq!(begun, [0, 150, 300, 450, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_one_that_is_quick_is_the_only_one_that_is_tried() {
        assert_eq!(first(&[GOOD, GOOD, SILENT]).await, (Some(0), 20, vec![0]));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_at_once_costs_nothing() {
        let (winner, took, begun) = first(&[REFUSED, REFUSED, GOOD]).await;
        assert_eq!((winner, took, begun), (Some(2), 20, vec![0, 0, 0]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_one_wins_where_no_other_does() {
        let slow = (ms(2_500), true);
        assert_eq!(first(&[REFUSED, slow, SILENT]).await, (Some(1), 2_500, vec![0, 0, 150]));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_go_on_at_once_than_begin_while_one_may_last() {
        let (winner, took, begun) = first(&[SILENT; 33]).await;
        assert_eq!((winner, took), (None, 7_550), "and then it is over");
        let at_once = |from: &u128| begun.iter().filter(|at| **at >= *from && **at < from + 2_800).count();
        assert_eq!(begun.iter().map(at_once).max(), Some(19));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_begun_goes_on_with_the_next_wait() {
        let begun = Arc::default();
        let mut race = race(&[(ms(1_000), true)], &begun);
        let from = Instant::now();
        while timeout(ms(300), race.next()).await.is_err() {}
        assert_eq!((from.elapsed(), begun.lock().unwrap().len()), (ms(1_000), 1));
        assert!(race.is_finished() && race.next().await.is_none());
    }
}
