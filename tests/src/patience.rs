//! How long a test waits for what has to come.
//!
//! Invariant: what only has to come is waited for by this alone. A tighter bound is the time of what must not have been
//! waited for, or says itself how many times what is needed it is.

use std::time::Duration;

/// Says "not for ever", and nothing else: ten times what the slowest wait needs on a machine that rests (ten seconds),
/// because tests run beside others, which may have all processors. It is below the limits in `tests/parts.toml`, so
/// that a test still says itself what it waited for.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(100);
