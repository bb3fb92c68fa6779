//! What this kernel can do, found by loading and never by its version.

use crate::error::StartError;
use crate::load;

/// What newer kernels offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// A program says which errno its refusal has (Linux 5.18). Without it a refused client is led to a closed port.
    pub set_retval: bool,
}

impl Features {
    /// Every feature that is switchable, listed once.
    pub(crate) const ALL: Self = Self { set_retval: true };

    /// What the kernel floor has.
    pub(crate) const FLOOR: Self = Self { set_retval: false };

    /// Finds out what the kernel at hand has.
    pub(crate) fn probe() -> Result<Self, StartError> {
        Ok(if load::loads_with(Self::ALL)? { Self::ALL } else { Self::FLOOR })
    }
}
