//! Why the daemon does not start, and with which exit code.

use holdfast_datapath::{SelfTestError, StartError, TakeOverError};

use crate::admin::AdminError;
use crate::apiserver::SetupError;
use crate::config::{ConfigErrors, NoNodeName};
use crate::sources::config::InvalidService;

/// The exit code where another try will do: `EX_TEMPFAIL` of sysexits(3).
const TRY_AGAIN: u8 = 75;

/// The exit code for a host that cannot run the daemon as it is.
const HOST_LACKS: u8 = 69;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The file cannot be read or says something illegal.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// A `[[service]]` block that the rules cannot take.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Services(Vec<InvalidService>),
    /// No name for this node.
    #[error("{0}; set `name` under [node]")]
    Node(#[from] NoNodeName),
    /// The kernel's datapath did not start.
    #[error(transparent)]
    Datapath(#[from] StartError),
    /// The datapath started, and does not do what it must.
    #[error("the datapath failed its self-test: {0}")]
    SelfTest(#[from] SelfTestError),
    /// The configuration gives no way to the apiserver.
    #[error(transparent)]
    Access(#[from] SetupError),
    /// The datapath did not take the place of the former one, which stays.
    #[error("the datapath did not take over, and the one before it stays: {0}")]
    TakeOver(#[from] TakeOverError),
    /// The admin API cannot listen.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Another daemon uses the folder of what survives a restart.
    #[error(transparent)]
    State(#[from] crate::state::Taken),
    /// The maps cannot be read.
    #[error(transparent)]
    Maps(#[from] holdfast_core::maps::MapError),
    /// The system gave no thread, timer or signal.
    #[error("cannot start: {0}")]
    Runtime(#[source] std::io::Error),
}

impl AppError {
    /// What cannot heal by itself: 78 where our own configuration has to be edited, 69 (`EX_UNAVAILABLE`) where this
    /// host lacks something. 75 for what is not there yet or not free yet, 1 for what else another try may get over.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Services(_) | Self::Node(_) | Self::Access(_) => ConfigErrors::EXIT_CODE,
            // File systems are mounted late in a boot, and a daemon that is killed lets go when the kernel has buried
            // it.
            Self::Datapath(
                StartError::NoCgroup
                | StartError::Cgroup { .. }
                | StartError::NoBpffs { .. }
                | StartError::Locked { .. },
            )
            | Self::State(_) => TRY_AGAIN,
            Self::Datapath(
                StartError::NotPermitted(_)
                | StartError::Load(_)
                | StartError::NoFolder { .. }
                | StartError::ForeignPin { .. }
                | StartError::ReadOnly { .. },
            ) => HOST_LACKS,
            Self::Datapath(_)
            | Self::SelfTest(_)
            | Self::TakeOver(_)
            | Self::Admin(_)
            | Self::Maps(_)
            | Self::Runtime(_) => 1,
        }
    }
}
