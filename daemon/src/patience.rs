//! How long a unit waits for what has to come.
//!
//! Invariant: no test judges wall-clock time by anything tighter than this, unless a wait that must not happen would
//! take longer than the test allows.

use std::time::Duration;

/// Says "not for ever", and nothing else: ten times what the slowest wait needs on a machine that rests (ten seconds),
/// because units run beside others, which may have all processors. It is below their limit in `tests/parts.toml`.
pub(crate) const NOT_FOR_EVER: Duration = Duration::from_secs(100);
