//! What newer kernels offer and the programs make use of.
//!
//! Invariant: a feature is found by loading, never by the kernel's version; the oldest kernel that is supported has
//! none.

/// What newer kernels offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// A program says which errno its refusal has (Linux 5.18). Without it a refused client is led to a closed port.
    pub set_retval: bool,
    /// Programs of devices have links (Linux 6.6). Without them they are filters.
    pub tcx: bool,
    /// A program that asks for a route learns whether a packet is too long for it (Linux 5.12). Without that no packet
    /// passes by the stack.
    pub lengths: bool,
}

impl Features {
    /// Every feature that is switchable, listed once.
    pub(crate) const ALL: Self = Self { set_retval: true, tcx: true, lengths: true };

    /// What the kernel floor has.
    pub(crate) const FLOOR: Self = Self { set_retval: false, tcx: false, lengths: false };
}
