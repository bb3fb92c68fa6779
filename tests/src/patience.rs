//! How long a test waits for what has to come.
//!
//! Invariant: no time that passes on a wall's clock is judged by anything tighter than this. A test whose subject is a
//! time has virtual time, or shows that something did not come before its time.

use std::time::Duration;

/// Says "not for ever", and nothing else: ten times what the slowest wait needs on a machine that rests (ten seconds),
/// because tests run beside others, which may have all processors. It is below the limits in `tests/parts.toml`, so
/// that a test still says itself what it waited for.
pub const NOT_FOR_EVER: Duration = Duration::from_secs(100);
