//! Raises the limit of open files.
//!
//! Invariant: the limit is never lowered. The unit allows enough files; container runtimes set a soft limit of 1,024
//! below a higher hard one. An operator is warned where a node of a usual size could miss something.

use holdfast_standalone::blocks::RESERVED_FILES;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// All files that can be open together: health checks of Services and their connections (5,632), kube-proxy's own
/// ports, the admin API, connections to the apiserver, maps and programs; checks of the configuration's backends
/// (4,096); and three links for each of the 4,096 devices with programs. A lower limit means fewer pod devices with
/// programs.
const FILES_NEEDED: u64 = RESERVED_FILES + 4_096 + 3 * 4_096;

/// Enough for all health checks of the configuration, and for the devices of 2,000 pods. Below it, fewer health checks
/// run at a time.
const FILES_ENOUGH: u64 = RESERVED_FILES + 4_096;

/// Raises the soft limit as far as the hard one allows, and logs if that is too little.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let Some(wanted) = target_limit(soft, hard) else { return };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    let limit = if raised { wanted } else { soft };
    if limit < FILES_ENOUGH {
        tracing::warn!(
            limit,
            wanted = FILES_NEEDED,
            "the limit of open files is low: fewer health checks run at a time, and fewer devices of pods get \
             programs; raise LimitNOFILE= or the ulimit"
        );
    }
}

/// The soft limit to request; `None` if it is high enough.
fn target_limit(soft: u64, hard: u64) -> Option<u64> {
    (soft < FILES_NEEDED).then(|| FILES_NEEDED.min(hard).max(soft))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_within_the_hard_one_and_never_lowered() {
        assert_eq!(target_limit(1_024, 524_288), Some(FILES_NEEDED));
        assert_eq!(target_limit(1_024, 4_096), Some(4_096));
        assert_eq!(target_limit(1_024, 1_024), Some(1_024));
        assert_eq!(target_limit(FILES_NEEDED, 524_288), None);
        assert_eq!(target_limit(1 << 20, 1 << 20), None);
    }
}
