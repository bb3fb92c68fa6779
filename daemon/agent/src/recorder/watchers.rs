//! The watchers of `/watch`, each with a queue of records.
//!
//! Invariant: each watcher has its own queue with only the records that it asked for, bounded in records and in
//! bytes. So no service's churn evicts a watcher of another service, and the recorder never waits for a watcher: one
//! that falls behind its queue gets the queued records, and then `Late`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::keys::ObjectName;
use tokio::sync::mpsc;

use super::ring::Line;

/// How many records a watcher may be behind. At 1,000 changes per second it has a second to read them.
const BACKLOG_MAX: usize = 1_024;

/// How many bytes a watcher may be behind: those of some 400 ordinary records. All watchers of both listeners
/// together keep at most 56 MiB that the rings have dropped.
const BACKLOG_BYTES_MAX: usize = 512 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A record, in the order of their numbers.
    Line(Arc<Line>),
    /// The end of this watch: the watcher did not read its records in time.
    Late,
    /// The end of all watches: the daemon stops.
    End,
}

#[derive(Debug)]
pub struct Watch {
    lines: mpsc::Receiver<Arc<Line>>,
    backlog: Arc<Backlog>,
}

/// The state of a watcher's queue that watcher and recorder share.
#[derive(Debug, Default)]
struct Backlog {
    bytes: AtomicUsize,
    is_late: AtomicBool,
}

#[derive(Debug)]
struct WatcherQueue {
    service: Option<ObjectName>,
    lines: mpsc::Sender<Arc<Line>>,
    backlog: Arc<Backlog>,
}

#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<Vec<WatcherQueue>>);

impl Watch {
    /// The next record, or why there is none. Dropping the call loses nothing.
    pub async fn next(&mut self) -> WatchEvent {
        match self.lines.recv().await {
            Some(line) => {
                self.backlog.bytes.fetch_sub(line.json.len(), Ordering::Relaxed);
                WatchEvent::Line(line)
            }
            None if self.backlog.is_late.load(Ordering::Acquire) => WatchEvent::Late,
            None => WatchEvent::End,
        }
    }
}

impl WatcherQueue {
    /// Whether the watcher asked for this line; it always gets gaps, which may stand for records of any service.
    fn applies_to(&self, line: &Line) -> bool {
        self.service.is_none() || line.service.is_none() || line.service == self.service
    }

    /// Queues a line; returns whether the watcher stays.
    fn enqueue(&self, line: &Arc<Line>) -> bool {
        let bytes = line.json.len();
        // Count before the watcher can read it, so that the count never goes below zero.
        let behind = self.backlog.bytes.fetch_add(bytes, Ordering::Relaxed);
        // One record may exceed the limit: a watcher that has read all others gets it.
        let fits = behind == 0 || behind.saturating_add(bytes) <= BACKLOG_BYTES_MAX;
        let is_told = fits && self.lines.try_send(Arc::clone(line)).is_ok();
        if !is_told {
            self.backlog.is_late.store(true, Ordering::Release);
        }
        is_told
    }
}

impl Watchers {
    /// Adds a watcher of this service's records, or of all.
    pub(super) fn add_watcher(&self, service: Option<ObjectName>) -> Watch {
        let (sender, lines) = mpsc::channel(BACKLOG_MAX);
        let behind = Arc::<Backlog>::default();
        self.lock_live().push(WatcherQueue { service, lines: sender, backlog: Arc::clone(&behind) });
        Watch { lines, backlog: behind }
    }

    pub(super) fn count(&self) -> usize {
        self.lock_live().len()
    }

    /// Sends a line to all watchers that asked for it, and removes those that are late.
    pub(super) fn notify(&self, line: &Arc<Line>) {
        self.lock_live().retain(|seat| !seat.applies_to(line) || seat.enqueue(line));
    }

    pub(super) fn close(&self) {
        self.lock_live().clear();
    }

    /// The queues of watchers that still exist.
    fn lock_live(&self) -> MutexGuard<'_, Vec<WatcherQueue>> {
        // A panic elsewhere leaves whole queues behind.
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seats.retain(|seat| !seat.lines.is_closed());
        seats
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// A line of this service, with this many bytes or a few more.
    fn line(service: &str, bytes: usize) -> Arc<Line> {
        let json = format!(
            r#"{{"seq":1,"time":"2026-01-08T11:11:55.000Z","monotonic_us":0,"boot_id":"{}","kind":"change","service":"{service}","rule":"x"}}"#,
            "b".repeat(bytes)
        );
        Arc::new(Line::parse(&json).unwrap())
    }

    fn seated(watchers: &Watchers, service: &str) -> Watch {
        watchers.add_watcher(
            service.split_once('/').map(|(namespace, name)| ObjectName::new(namespace, name).unwrap()),
        )
    }

    /// The number of queued lines, and the event after them.
    fn all(watch: &mut Watch) -> (usize, Option<WatchEvent>) {
        let mut lines = 0;
        loop {
            match watch.next().now_or_never() {
                Some(WatchEvent::Line(_)) => lines += 1,
                other => return (lines, other),
            }
        }
    }

    #[test]
    fn another_services_churn_costs_a_watcher_nothing() {
        let watchers = Watchers::default();
        let mut quiet = seated(&watchers, "prod/web");
        let mut noisy = seated(&watchers, "tenant/churn");
        watchers.notify(&line("prod/web", 0));
        (0..100_000).for_each(|_| watchers.notify(&line("tenant/churn", 0)));
        watchers.notify(&line("prod/web", 0));
        assert_eq!(all(&mut quiet), (2, None));
        assert_eq!(all(&mut noisy), (BACKLOG_MAX, Some(WatchEvent::Late)));
        assert_eq!(watchers.count(), 1, "the late watcher was removed");
    }

    #[test]
    fn a_queue_is_bounded_in_bytes_and_takes_more_as_it_is_read() {
        let watchers = Watchers::default();
        let mut reads = seated(&watchers, "");
        let mut sleeps = seated(&watchers, "");
        let large = line("prod/web", BACKLOG_BYTES_MAX / 8);
        for _ in 0..20 {
            watchers.notify(&large);
            assert_eq!(all(&mut reads), (1, None));
        }
        assert_eq!(all(&mut sleeps), (7, Some(WatchEvent::Late)));
        watchers.notify(&line("prod/web", 2 * BACKLOG_BYTES_MAX));
        assert_eq!(all(&mut reads), (1, None), "an idle watcher gets a record of any size");
    }

    #[test]
    fn a_gone_watcher_is_not_counted_and_the_end_comes_last() {
        let watchers = Watchers::default();
        let mut stays = seated(&watchers, "");
        drop(seated(&watchers, ""));
        assert_eq!(watchers.count(), 1);
        watchers.notify(&line("prod/web", 0));
        watchers.close();
        assert_eq!(all(&mut stays), (1, Some(WatchEvent::End)));
    }
}
