//! Which formats of the file there are.
//!
//! Invariant: what one version wrote, the next ones read, down to the oldest that is named here.

/// The version of the records that are written.
pub(super) const VERSION: u32 = 6;

/// The oldest that are read: at least those of the two versions before. When a form changes, the former one stays
/// beside it, as `codec::Head3` does, and a file of it stays for the tests.
pub(super) const VERSION_MIN: u32 = 3;

/// The first in which records have marks and checksums of their own.
pub(super) const HAS_FRAMES: u32 = 6;
