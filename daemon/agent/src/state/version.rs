//! Which versions of the file's format there are.
//!
//! Invariant: a file of any version from the oldest one named here on is read.

/// The version that is written.
pub(super) const VERSION: u32 = 9;

/// The oldest version that is read, at least two before the one that is written. When a form changes, the former one
/// stays beside it, as `codec::Head3` does, and a file of the former version stays for the tests.
pub(super) const VERSION_MIN: u32 = 3;

/// The first version in which records have marks and checksums of their own.
pub(super) const HAS_FRAMES: u32 = 6;
