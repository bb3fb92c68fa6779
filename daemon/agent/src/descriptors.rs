//! How many files this process may have open.
//!
//! Invariant: the limit is never lowered. The unit allows as many files as are needed; a container's runtime gives a
//! soft limit of 1,024, with room above it.

use holdfast_standalone::blocks::RESERVED_FILES;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Everything that can be open together: the health checks of Services and their connections (5,632), kube-proxy's own
/// ports, the admin API, connections to the apiserver, maps and programs; the checks of the configuration's backends
/// (4,096); and three links of each of the 4,096 devices of which programs know. Where fewer may be open, fewer devices
/// of pods get programs.
const FILES_NEEDED: u64 = RESERVED_FILES + 4_096 + 3 * 4_096;

/// Raises the soft limit as far as the hard one lets it, and says in the log where that is too little.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let Some(wanted) = target_limit(soft, hard) else { return };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    let limit = if raised { wanted } else { soft };
    if limit < FILES_NEEDED {
        tracing::warn!(
            limit,
            wanted = FILES_NEEDED,
            "few files may be open at once; set LimitNOFILE= or a ulimit"
        );
    }
}

/// The soft limit to ask for; `None`: it is high enough.
fn target_limit(soft: u64, hard: u64) -> Option<u64> {
    (soft < FILES_NEEDED).then(|| FILES_NEEDED.min(hard).max(soft))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_limit_is_raised_as_far_as_needed_and_allowed_and_never_lowered() {
        assert_eq!(target_limit(1_024, 524_288), Some(FILES_NEEDED));
        assert_eq!(target_limit(1_024, 4_096), Some(4_096));
        assert_eq!(target_limit(1_024, 1_024), Some(1_024));
        assert_eq!(target_limit(FILES_NEEDED, 524_288), None);
        assert_eq!(target_limit(1 << 20, 1 << 20), None);
    }
}
