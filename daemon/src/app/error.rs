//! Why the daemon does not start, and with which exit code.

use crate::admin::AdminError;
use crate::config::{ConfigErrors, NoNodeName};
use crate::sources::config::InvalidService;
use crate::sources::manifests::FolderError;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The file cannot be read or says something illegal.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The folder of manifests is not there.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A `[[service]]` block that the rules cannot take.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Services(Vec<InvalidService>),
    /// No name for this node.
    #[error("{0}; set `name` under [node]")]
    Node(#[from] NoNodeName),
    /// This version has memory maps only.
    #[error(
        "this version has no kernel datapath yet; set `kind = \"memory\"` under [datapath] to see the table"
    )]
    NoKernel,
    /// This version does not talk to an apiserver.
    #[error(
        "this version does not watch an apiserver yet; remove `enabled` under [kubernetes], or set it to false"
    )]
    NoKubernetes,
    /// The admin API cannot listen.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The maps cannot be read.
    #[error(transparent)]
    Maps(#[from] holdfast_datapath::MapError),
    /// The system gave no thread, timer or signal.
    #[error("cannot start: {0}")]
    Runtime(#[source] std::io::Error),
}

impl AppError {
    /// 78 for what only an edit of the configuration can heal, 1 for the rest.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Folder(_)
            | Self::Services(_)
            | Self::Node(_)
            | Self::NoKernel
            | Self::NoKubernetes => ConfigErrors::EXIT_CODE,
            Self::Admin(_) | Self::Maps(_) | Self::Runtime(_) => 1,
        }
    }
}
