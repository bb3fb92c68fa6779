//! What a section of `HAProxy`'s file says, as far as a block can say it.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;

use super::super::imported_service::ImportedCheck;

/// What a section is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SectionKind {
    #[default]
    Defaults,
    Listen,
    Frontend,
    Backend,
}

/// A server of a section.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) weight: u32,
    /// How it is checked, if it is.
    pub(super) check: Option<ImportedCheck>,
}

/// What a section says, as far as a block can say it.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    pub(super) kind: SectionKind,
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) is_http: bool,
    pub(super) binds: Vec<SocketAddr>,
    pub(super) servers: Vec<Server>,
    /// What servers have that say nothing else.
    pub(super) default_check: ImportedCheck,
    pub(super) default_backend: Option<String>,
    pub(super) affinity: Option<Duration>,
    /// How much of a client's address counts for that, where the file says it.
    pub(super) prefixes: Option<Prefixes>,
    pub(super) balances_by_source: bool,
    pub(super) check_path: Option<String>,
    /// The statuses that are good, where the file names them.
    pub(super) check_statuses: Option<String>,
    pub(super) check_timeout: Option<Duration>,
}
