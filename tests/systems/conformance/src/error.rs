//! What can go wrong between an order for a cluster and its answers.
//!
//! Invariant: each failure says what was attempted, on what, and what to do where that is not plain.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why there is no cluster, or why it did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Programs, images or the root of the machines were never built.
    #[error("there is no {}; build it: scripts/conformance.sh build", path.display())]
    NotBuilt {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is no holdfast to be tested.
    #[error("there is no holdfast in {}; build it: cargo build --release --locked -p holdfast", target.display())]
    NoHoldfast {
        /// The folder in which `release` and `debug` were looked into.
        target: PathBuf,
    },
    /// More nodes than there are addresses for, or none.
    #[error("{asked} nodes; a cluster has 1 to {}", crate::topology::NODES_MAX)]
    Nodes {
        /// How many were asked for.
        asked: u8,
    },
    /// A machine that this cluster does not have.
    #[error("the cluster has no machine {0}; there are cp, n1 and on, and out")]
    NoMachine(String),
    /// A machine that was stopped, or has ended by itself.
    #[error("{machine} is not running; its log is {}", log.display())]
    NotRunning {
        machine: &'static str,
        /// What its first process wrote.
        log: PathBuf,
    },
    /// A program could not be started at all.
    #[error("start `{program}`; is it installed? scripts/setup conformance brings what is needed")]
    Start {
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program that ended with a failure.
    #[error("`{command}` ended with {status}: {said}")]
    Failed {
        command: String,
        status: std::process::ExitStatus,
        /// The end of what it wrote.
        said: String,
    },
    /// A file of the machines or of the results.
    #[error("{attempt} {}", path.display())]
    File {
        attempt: &'static str,
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A key or a certificate.
    #[error("make the certificate of {whose}")]
    Certificate {
        whose: String,
        /// What the library said.
        source: rcgen::Error,
    },
    /// Something did not come about in its time.
    #[error("no {awaited} within {limit:?}; logs are in {}{last}", logs.display())]
    Late {
        awaited: String,
        limit: Duration,
        logs: PathBuf,
        /// What the last attempt said.
        last: String,
    },
    /// A text that is not what it should be: a report of the tests, a baseline, the list of images.
    #[error("{from} is not understood: {why}")]
    Malformed { from: String, why: String },
    /// The machine's cgroups are mounted in a way that is not known here.
    #[error("neither /sys/fs/cgroup is cgroup2 nor /sys/fs/cgroup/unified beside v1 hierarchies")]
    NoCgroups,
}

/// Names the file in an error of a file operation.
pub(crate) fn at<'a>(attempt: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ClusterError + 'a {
    move |source| ClusterError::File { attempt, path: path.to_owned(), source }
}

/// Writes a file and the folders above it.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), ClusterError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(at("create", folder))?;
    }
    std::fs::write(path, text).map_err(at("write", path))
}
