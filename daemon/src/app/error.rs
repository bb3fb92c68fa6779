//! Why the daemon does not start, and with which exit code.

use holdfast_datapath::{SelfTestError, StartError};

use crate::admin::AdminError;
use crate::apiserver::SetupError;
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
    /// The kernel's datapath did not start.
    #[error(transparent)]
    Datapath(#[from] StartError),
    /// It started, and does not do what it must.
    #[error("the datapath failed its self-test: {0}")]
    SelfTest(#[from] SelfTestError),
    /// The configuration gives no way to the apiserver.
    #[error(transparent)]
    Access(#[from] SetupError),
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
            Self::Config(_) | Self::Folder(_) | Self::Services(_) | Self::Node(_) | Self::Access(_) => {
                ConfigErrors::EXIT_CODE
            }
            Self::Datapath(_) | Self::SelfTest(_) | Self::Admin(_) | Self::Maps(_) | Self::Runtime(_) => 1,
        }
    }
}
