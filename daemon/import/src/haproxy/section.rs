//! The settings of a section of `HAProxy`'s file that a block supports.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;

use super::super::imported_service::ImportedCheck;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SectionKind {
    #[default]
    Defaults,
    Listen,
    Frontend,
    Backend,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) weight: u32,
    pub(super) check: Option<ImportedCheck>,
}

/// The settings of a section that a block supports.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    pub(super) kind: SectionKind,
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) is_http: bool,
    pub(super) binds: Vec<SocketAddr>,
    pub(super) servers: Vec<Server>,
    /// The default check of its servers.
    pub(super) default_check: ImportedCheck,
    pub(super) default_backend: Option<String>,
    pub(super) affinity: Option<Duration>,
    /// The prefixes that count for affinity, if the file has them.
    pub(super) prefixes: Option<Prefixes>,
    pub(super) balances_by_source: bool,
    pub(super) check_path: Option<String>,
    /// The good statuses, if the file has them.
    pub(super) check_statuses: Option<String>,
    pub(super) check_timeout: Option<Duration>,
}
