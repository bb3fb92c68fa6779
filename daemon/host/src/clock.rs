//! The wall clock, the clock since boot, and sleep until a time.
//!
//! Invariant: a time before 1970 counts as 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_status::rfc3339::Millis;
use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Converts a time to milliseconds.
pub fn millis(time: SystemTime) -> Millis {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The current time in milliseconds.
pub fn now() -> Millis {
    millis(SystemTime::now())
}

/// The time since boot, by the clock of the programs and the journal, which stops while the machine sleeps.
pub fn since_boot() -> Duration {
    // The kernel always has this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// Sleeps until this time, or for ever if there is none.
pub async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
