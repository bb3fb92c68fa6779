//! Errors of clusters.
//!
//! Invariant: each error names the attempt, its subject, and the remedy unless that is obvious.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a cluster could not start, or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Programs, images or the machines' root were not built.
    #[error("there is no {}; build it: scripts/conformance.sh build", path.display())]
    NotBuilt {
        /// Where it was expected.
        path: PathBuf,
    },
    /// No holdfast was built.
    #[error("there is no holdfast in {}; build it: cargo build --release --locked -p holdfast", target.display())]
    NoHoldfast {
        /// The folder whose `release` and `debug` were searched.
        target: PathBuf,
    },
    /// The programs of the pod network were not built.
    #[error("there is no {}; build it: scripts/{supply}.sh", path.display())]
    NoPodNetwork {
        /// Where they were expected.
        path: PathBuf,
        /// The name of the script.
        supply: &'static str,
    },
    /// None, or more nodes than addresses.
    #[error("{asked} nodes; a cluster has 1 to {}", crate::topology::NODES_MAX)]
    Nodes {
        /// The requested number.
        asked: u8,
    },
    /// A pod network that has no second family.
    #[error("the AWS VPC CNI has one family: take IPv4 alone, FAMILY=ipv4")]
    OneFamily,
    /// This cluster lacks the machine.
    #[error("the cluster has no machine {0}; there are cp, n1 and on, and out")]
    NoMachine(String),
    /// A machine was stopped, or has ended by itself.
    #[error("{machine} is not running; its log is {}", log.display())]
    NotRunning {
        machine: &'static str,
        /// The output of its first process.
        log: PathBuf,
    },
    /// A program could not be started.
    #[error("start `{program}`; is it installed? scripts/setup conformance brings what is needed")]
    Start {
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` ended with {status}: {said}")]
    Failed {
        command: String,
        status: std::process::ExitStatus,
        /// The end of its output.
        said: String,
    },
    /// An operation on a file of the machines or of the results failed.
    #[error("{attempt} {}", path.display())]
    File {
        attempt: &'static str,
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A key or a certificate could not be made.
    #[error("make the certificate of {whose}")]
    Certificate {
        whose: String,
        /// The library's error.
        source: rcgen::Error,
    },
    /// An awaited condition did not hold in time.
    #[error("no {awaited} within {limit:?}; logs are in {}{last}", logs.display())]
    Late {
        awaited: String,
        limit: Duration,
        logs: PathBuf,
        /// The last attempt's error.
        last: String,
    },
    /// A malformed text: a report of the tests, a baseline, the list of images.
    #[error("{from} is not understood: {why}")]
    Malformed { from: String, why: String },
    /// The machine's cgroups are mounted in an unsupported way.
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
