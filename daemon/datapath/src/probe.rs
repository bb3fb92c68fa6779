//! What this kernel can do, found by loading and never by its version.
//!
//! Invariant: a kernel counts as one that lacks something only where it says so. Where it had no memory or file for the
//! answer the start fails, and is made again: what is taken for an old kernel is so until the daemon ends.

use std::io;

use holdfast_status::datapath::Features;

use crate::devices::{has_check_mtu, has_tcx};
use crate::error::StartError;
use crate::load;

/// Finds out what the kernel at hand has.
pub(crate) fn probe_features() -> Result<Features, StartError> {
    let loaded = if load::can_load(Features::ALL)? { Features::ALL } else { Features::FLOOR };
    Ok(Features { tcx: resolve_probe(has_tcx())?, lengths: resolve_probe(has_check_mtu())?, ..loaded })
}

/// A process that may not ask is told so when the programs are loaded; sockets are served all the same.
fn resolve_probe(answer: io::Result<bool>) -> Result<bool, StartError> {
    match answer.map_err(|error| StartError::from_load(error.into())) {
        Err(StartError::ShortOfResources(error)) => Err(StartError::ShortOfResources(error)),
        answer => Ok(answer.unwrap_or(false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_without_memory_or_files_makes_no_old_kernel() {
        let asked = |errno| resolve_probe(Err(io::Error::from_raw_os_error(errno)));
        assert!(matches!(asked(libc::ENOMEM), Err(StartError::ShortOfResources(_))));
        assert!(matches!(asked(libc::ENFILE), Err(StartError::ShortOfResources(_))));
        assert!(!asked(libc::EPERM).unwrap());
        assert!(!asked(libc::EINVAL).unwrap());
    }
}
