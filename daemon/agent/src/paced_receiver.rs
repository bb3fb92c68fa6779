//! Receives changes of a value at a bounded pace.
//!
//! Invariant: the first change after a pause is reported at once, and the last of many is always reported.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A value that may change as often as a tenant likes.
#[derive(Debug)]
pub struct PacedReceiver<T> {
    value: Option<watch::Receiver<T>>,
    pace: Duration,
    next_allowed: Instant,
}

impl<T> PacedReceiver<T> {
    /// Reports the changes of a value at this pace. Without a value it never reports any.
    pub fn new(value: Option<watch::Receiver<T>>, pace: Duration) -> Self {
        Self { value, pace, next_allowed: Instant::now() }
    }

    /// Waits until the value has changed. Dropping the wait loses no change.
    pub async fn wait_for_change(&mut self) {
        sleep_until(self.next_allowed).await;
        if let Some(value) = &mut self.value
            && value.changed().await.is_ok()
        {
            self.next_allowed = Instant::now() + self.pace;
            return;
        }
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock::{Stopwatch, pause_async};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_change_is_reported_at_once_and_many_as_one() {
        let (value, now) = watch::channel(0);
        let pace = Duration::from_millis(200);
        let mut paced = PacedReceiver::new(Some(now), pace);
        let (stopwatch, mut reports) = (Stopwatch::start(), Vec::new());
        for _ in 0..pace.as_millis() * 5 / 2 {
            value.send_modify(|value| *value += 1);
            tokio::select! {
                () = paced.wait_for_change() => reports.push(stopwatch.read()),
                () = pause_async(Duration::from_millis(1)) => {}
            }
        }
        assert_eq!(reports[0], Duration::ZERO, "the first one");
        assert_eq!(reports.len(), 3, "{reports:?}");
        value.send_modify(|value| *value += 1);
        paced.wait_for_change().await;
        tokio::select! {
            () = paced.wait_for_change() => panic!("the last change was reported"),
            () = pause_async(pace * 2) => {}
        }
    }
}
