//! How long a test waits for an event that must come.
//!
//! Invariant: only this bounds such waits. A tighter bound is the time by which something must not have happened, or
//! says itself how many times the needed time it is.

use std::time::Duration;

/// A generous limit that only prevents endless waits: ten times the slowest wait on an idle machine (ten seconds),
/// because other tests may take all processors. It is below the limits in `tests/parts.toml`, so that a test itself
/// reports what it waited for.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(100);
