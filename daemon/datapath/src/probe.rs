//! What this kernel can do, found by loading and never by its version.
//!
//! Invariant: a kernel counts as one that lacks something only where it says so. Where it had no memory or file for the
//! answer the start fails, and is made again: what is taken for an old kernel is so until the daemon ends.

use std::io;

use holdfast_status::datapath::Features;

use crate::devices::{has_tcx, knows_lengths};
use crate::error::StartError;
use crate::load;

/// Finds out what the kernel at hand has.
pub(crate) fn features() -> Result<Features, StartError> {
    let loaded = if load::loads_with(Features::ALL)? { Features::ALL } else { Features::FLOOR };
    Ok(Features { tcx: told(has_tcx())?, lengths: told(knows_lengths())?, ..loaded })
}

/// A process that may not ask is told so when the programs are loaded; sockets are served all the same.
fn told(answer: io::Result<bool>) -> Result<bool, StartError> {
    match answer.map_err(|error| StartError::loading(error.into())) {
        Err(StartError::Short(error)) => Err(StartError::Short(error)),
        answer => Ok(answer.unwrap_or(false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_without_memory_or_files_makes_no_old_kernel() {
        let asked = |errno| told(Err(io::Error::from_raw_os_error(errno)));
        assert!(matches!(asked(libc::ENOMEM), Err(StartError::Short(_))));
        assert!(matches!(asked(libc::ENFILE), Err(StartError::Short(_))));
        assert!(!asked(libc::EPERM).unwrap());
        assert!(!asked(libc::EINVAL).unwrap());
    }
}
