//! The latest clients that were not served.
//!
//! Invariant: the writer waits for a reader no longer than it takes to copy a bounded list of pointers. What fell out of
//! the list is still counted. Deliberately absent: keeping it over a restart.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::facts::Timestamp;
use holdfast_datapath::{Denial, Refusal, Refusals};
use nix::time::{ClockId, clock_gettime};

use super::lines::Lines;
use super::pace::Pace;

/// What a person reads through, and 200 KiB. An hour of one client that tries every four seconds.
const KEPT_MAX: usize = 1_000;

/// A client that was not served, with the time as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// When.
    pub at: Timestamp,
    /// Who, and what it dialled.
    pub refusal: Refusal,
}

/// What readers get.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The latest ones, oldest first.
    pub latest: Vec<Arc<Denied>>,
    /// Those that met ECONNREFUSED, since the start.
    pub refused: u64,
    /// Those that were dropped, since the start.
    pub dropped: u64,
    /// Why no more are read.
    pub failure: Option<String>,
}

#[derive(Debug, Default)]
struct Kept {
    latest: VecDeque<Arc<Denied>>,
    refused: u64,
    dropped: u64,
    failure: Option<String>,
}

/// The latest clients that were not served.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<Kept>);

impl RefusalLog {
    /// Nobody is ever turned away where no traffic is touched.
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// Reads the programs' ring buffer on a thread of its own until `stop` turns true.
    pub fn start(refusals: Refusals, stop: Arc<AtomicBool>) -> io::Result<Arc<Self>> {
        let log = Self::none();
        let own = Arc::clone(&log);
        std::thread::Builder::new()
            .name("refusals".to_owned())
            .spawn(move || own.listen(&refusals, &stop))?;
        Ok(log)
    }

    /// What is known now.
    pub fn told(&self) -> Told {
        let kept = self.kept();
        Told {
            latest: kept.latest.iter().cloned().collect(),
            refused: kept.refused,
            dropped: kept.dropped,
            failure: kept.failure.clone(),
        }
    }

    /// How many were refused and dropped since the start.
    pub fn totals(&self) -> [(Denial, u64); 2] {
        let kept = self.kept();
        [(Denial::Refused, kept.refused), (Denial::Dropped, kept.dropped)]
    }

    pub(crate) fn keep(&self, denied: Denied) {
        let denied = Arc::new(denied);
        let mut kept = self.kept();
        match denied.refusal.denial {
            Denial::Refused => kept.refused += 1,
            Denial::Dropped => kept.dropped += 1,
        }
        if kept.latest.len() >= KEPT_MAX {
            kept.latest.pop_front();
        }
        kept.latest.push_back(denied);
    }

    fn listen(&self, refusals: &Refusals, stop: &AtomicBool) {
        let (mut lines, mut pace) = (Lines::default(), Pace::default());
        let listened = refusals.listen(stop, |refusal| {
            let now = since_boot();
            if let Some(count) = lines.due(refusal.frontend, refusal.at) {
                write_line(&refusal, count);
            }
            self.keep(Denied { at: wall_time(now.saturating_sub(refusal.at)), refusal });
            if let Some(pause) = pace.pause(now) {
                std::thread::sleep(pause);
            }
        });
        if let Err(error) = listened {
            tracing::error!(%error, "refusals are no longer read; they go on being refused");
            self.kept().failure = Some(format!("{error:#}"));
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Each change is one assignment, so what a panic left is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one spelling in tables, JSON, log and metrics.
pub(crate) const fn spelled(denial: Denial) -> &'static str {
    match denial {
        Denial::Refused => "refused",
        Denial::Dropped => "dropped",
    }
}

fn write_line(refusal: &Refusal, count: u64) {
    tracing::info!(
        frontend = %refusal.frontend,
        denial = spelled(refusal.denial),
        pid = refusal.process,
        comm = %refusal.comm.escape_debug(),
        count,
        "a client was not served"
    );
}

/// The programs' clock, which stands still while the machine sleeps.
fn since_boot() -> Duration {
    // The kernel always has this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// The wall clock so long ago. What a former daemon did not read is older than this one.
fn wall_time(ago: Duration) -> Timestamp {
    let then = SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH);
    let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use holdfast_core::keys::{FrontendKey, Transport};
    use holdfast_core::op::PortIndex;

    use super::*;

    fn denied(process: u32, denial: Denial) -> Denied {
        let frontend =
            FrontendKey { address: [10, 96, 0, 10].into(), port: NonZeroU16::MIN, transport: Transport::Tcp };
        let refusal = Refusal {
            at: Duration::from_secs(5),
            process,
            thread: process,
            comm: "curl".to_owned(),
            cgroup: 1,
            netns: 1,
            frontend,
            port: PortIndex(0),
            denial,
        };
        Denied { at: Timestamp(5), refusal }
    }

    #[test]
    fn the_latest_are_kept_and_all_are_counted() {
        let log = RefusalLog::none();
        for process in 0..1_500 {
            log.keep(denied(process, if process % 3 == 0 { Denial::Dropped } else { Denial::Refused }));
        }
        let told = log.told();
        assert_eq!((told.refused, told.dropped), (1_000, 500));
        assert_eq!(log.totals(), [(Denial::Refused, 1_000), (Denial::Dropped, 500)]);
        let kept: Vec<u32> = told.latest.iter().map(|denied| denied.refusal.process).collect();
        assert_eq!(kept, (500..1_500).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_reader_holds_does_not_change() {
        let log = RefusalLog::none();
        log.keep(denied(1, Denial::Refused));
        let told = log.told();
        log.keep(denied(2, Denial::Refused));
        assert_eq!((told.latest.len(), log.told().latest.len()), (1, 2));
    }

    #[test]
    fn times_since_boot_become_wall_time() {
        let seconds = |ago| wall_time(Duration::from_secs(ago)).0;
        let (now, before) = (seconds(0), seconds(3_600));
        assert!((3_599..=3_601).contains(&(now - before)), "{now} {before}");
        assert!(since_boot() > Duration::ZERO);
        assert_eq!(wall_time(Duration::MAX), Timestamp(0));
    }
}
