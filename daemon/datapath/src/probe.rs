//! What this kernel can do, found by loading and never by its version.

use crate::devices::has_tcx;
use crate::error::StartError;
use crate::load;

/// What newer kernels offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// A program says which errno its refusal has (Linux 5.18). Without it a refused client is led to a closed port.
    pub set_retval: bool,
    /// Programs of devices have links (Linux 6.6). Without them they are filters.
    pub tcx: bool,
}

impl Features {
    /// Every feature that is switchable, listed once.
    pub(crate) const ALL: Self = Self { set_retval: true, tcx: true };

    /// What the kernel floor has.
    pub(crate) const FLOOR: Self = Self { set_retval: false, tcx: false };

    /// Finds out what the kernel at hand has.
    pub(crate) fn probe() -> Result<Self, StartError> {
        let loaded = if load::loads_with(Self::ALL)? { Self::ALL } else { Self::FLOOR };
        // A process that may not ask is told so when the programs are loaded; sockets are served all the same.
        Ok(Self { tcx: has_tcx().unwrap_or(false), ..loaded })
    }
}
