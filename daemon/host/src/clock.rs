//! The wall clock, as times are shown.
//!
//! Invariant: a time before 1970 counts as 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_status::rfc3339::Millis;

/// Milliseconds of this time.
pub fn millis(time: SystemTime) -> Millis {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Milliseconds of now.
pub fn now() -> Millis {
    millis(SystemTime::now())
}
