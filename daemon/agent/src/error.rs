//! Why the daemon does not start or ends by itself, and its exit code.

use holdfast_datapath::{SelfTestError, StartError, TakeOverError};

use holdfast_config::{ConfigErrors, HostNameError};
use holdfast_kubernetes::apiserver::SetupError;
use holdfast_standalone::blocks::InvalidService;

/// The exit code if a retry may succeed: `EX_TEMPFAIL` of sysexits(3).
const TRY_AGAIN: u8 = 75;

/// The exit code for a host that cannot run the daemon as it is.
const HOST_LACKS: u8 = 69;

/// Why the daemon does not start or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The configuration file cannot be read or is invalid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The rules refuse a `[[service]]` block.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Services(Vec<InvalidService>),
    #[error("{0}")]
    NeedsRestart(String),
    #[error("{0}; set `name` under [node]")]
    Node(#[from] HostNameError),
    #[error(transparent)]
    Datapath(#[from] StartError),
    #[error("the datapath failed its self-test: {0}")]
    SelfTest(#[from] SelfTestError),
    /// The configuration has no usable access to the apiserver.
    #[error(transparent)]
    Access(#[from] SetupError),
    #[error("the datapath did not take over; the former one stays: {0}")]
    TakeOver(#[from] TakeOverError),
    /// The admin API cannot start, for this reason.
    #[error("{0}")]
    Admin(String),
    #[error(transparent)]
    State(#[from] crate::state::StateInUse),
    /// The host's name changed, and the daemon still uses the old one.
    #[error(transparent)]
    Renamed(#[from] crate::hostname_watch::HostnameChange),
    #[error(transparent)]
    Maps(#[from] holdfast_core::maps::MapError),
    /// Without the addresses of this host NodePorts would be removed.
    #[error("this host's addresses cannot be listed: {0}")]
    Addresses(#[source] std::io::Error),
    /// The system provided no thread, timer or signal.
    #[error("cannot start: {0}")]
    Runtime(#[source] std::io::Error),
}

impl AppError {
    /// 78 if our own configuration needs an edit, 69 (`EX_UNAVAILABLE`) if this host lacks something: neither heals
    /// by itself. 75 if something is not available yet or short for a moment, 1 for everything else that a retry may
    /// fix.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(errors) if errors.is_transient => TRY_AGAIN,
            Self::Config(_) | Self::Services(_) | Self::NeedsRestart(_) | Self::Node(_) | Self::Access(_) => {
                ConfigErrors::EXIT_CODE
            }
            // File systems may be mounted late in a boot, and a killed daemon keeps its locks until the kernel has
            // ended it.
            Self::Datapath(
                StartError::NoCgroup
                | StartError::Cgroup { .. }
                | StartError::NoBpffs { .. }
                | StartError::Locked { .. }
                | StartError::ShortOfResources(_),
            )
            | Self::State(_)
            | Self::Renamed(_) => TRY_AGAIN,
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
            | Self::Addresses(_)
            | Self::Runtime(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of_start(error: StartError) -> u8 {
        AppError::from(error).exit_code()
    }

    #[test]
    fn a_transient_start_failure_is_retried() {
        let short = std::io::Error::from_raw_os_error(nix::libc::ENOMEM);
        assert_eq!(code_of_start(StartError::ShortOfResources(short.into())), TRY_AGAIN);
        let refused = std::io::Error::from_raw_os_error(nix::libc::EINVAL);
        assert_eq!(code_of_start(StartError::Load(refused.into())), HOST_LACKS);
    }

    #[test]
    fn a_transient_configuration_error_is_retried() {
        let code = |passes| {
            let refused =
                ConfigErrors { errors: Vec::new(), warnings: Vec::new(), omitted: 0, is_transient: passes };
            AppError::from(refused).exit_code()
        };
        assert_eq!(code(true), TRY_AGAIN);
        assert_eq!(code(false), ConfigErrors::EXIT_CODE);
    }
}
