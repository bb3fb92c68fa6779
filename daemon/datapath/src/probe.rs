//! Finds the kernel's features by loading programs, never by its version.
//!
//! Invariant: a kernel counts as lacking a feature only if it says so. If memory or files are short, the start fails
//! and is retried: a feature found missing stays off until the daemon ends.

use std::io;

use holdfast_status::datapath::Features;

use crate::devices::{has_check_mtu, has_tcx};
use crate::error::StartError;
use crate::load;

pub(crate) fn probe_features() -> Result<Features, StartError> {
    let loaded = if load::can_load(Features::ALL)? { Features::ALL } else { Features::FLOOR };
    Ok(Features { tcx: resolve_probe(has_tcx())?, lengths: resolve_probe(has_check_mtu())?, ..loaded })
}

/// A missing privilege is reported when the programs load; sockets are served without these features.
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
    fn a_shortage_of_memory_or_files_is_not_a_missing_feature() {
        let probe = |errno| resolve_probe(Err(io::Error::from_raw_os_error(errno)));
        assert!(matches!(probe(libc::ENOMEM), Err(StartError::ShortOfResources(_))));
        assert!(matches!(probe(libc::ENFILE), Err(StartError::ShortOfResources(_))));
        assert!(!probe(libc::EPERM).unwrap());
        assert!(!probe(libc::EINVAL).unwrap());
    }
}
