//! How long a unit test waits for something that has to happen.
//!
//! Invariant: no test has a tighter limit on wall-clock time, except to show that a wait longer than its limit did not
//! happen.

use std::time::Duration;

/// Means only "not for ever": ten times what the slowest wait needs on an idle machine (ten seconds), because unit
/// tests run beside others that may use all processors. It is below the unit tests' limit in `tests/parts.toml`.
pub(crate) const NOT_FOR_EVER: Duration = Duration::from_secs(100);
