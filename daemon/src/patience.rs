//! How long a unit waits for what has to come.
//!
//! Invariant: no time that passes on a wall's clock is judged by anything tighter than this, unless it is less than the
//! time of what must not have been waited for.

use std::time::Duration;

/// Says "not for ever", and nothing else: ten times what the slowest wait needs on a machine that rests (ten seconds),
/// because units run beside others, which may have all processors. It is below their limit in `tests/parts.toml`.
pub(crate) const NOT_FOR_EVER: Duration = Duration::from_secs(100);
