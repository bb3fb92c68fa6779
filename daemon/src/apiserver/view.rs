//! What access says of itself, as plain data for the admin API.
//!
//! Invariant: it is a copy, so a reader holds up no request. It has no secret; a credential is shown by kind, file and
//! age.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_core::facts::Timestamp;

use super::endpoints::{State, Tier};
use super::identity::ClusterId;
use super::learned::Standing;

/// Access at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// In the operator's order.
    pub endpoints: Vec<EndpointView>,
    /// The configured ones first, then kubelet's.
    pub credentials: Vec<CredentialsView>,
    /// The cluster, once an apiserver has named it.
    pub cluster: Option<ClusterId>,
    /// Why an apiserver may not tell which cluster it belongs to.
    pub unverified: Option<Arc<str>>,
    /// Why what was learned cannot be kept over a restart.
    pub memory_problem: Option<String>,
    /// How often a request went on to another endpoint.
    pub failovers: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// Where it is.
    pub address: SocketAddr,
    /// What named it.
    pub tier: Tier,
    /// What the last attempts say.
    pub state: State,
    pub since: Timestamp,
    /// Whether it has connections.
    pub active: bool,
    /// Whether the next request goes there first.
    pub preferred: bool,
    /// How many connections it has.
    pub connections: usize,
    /// What was last wrong, and when.
    pub last_error: Option<(String, Timestamp)>,
    /// When the cluster last named it.
    pub seen: Option<Timestamp>,
    /// What else is known of it if it is learned.
    pub learned: Option<LearnedView>,
}

/// Where a learned address comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedView {
    /// When the cluster named it first; nothing of one that an older daemon has learned.
    pub since: Option<Timestamp>,
    /// The slice that named it last.
    pub slice: Option<Arc<str>>,
    /// Whether it is named now.
    pub standing: Standing,
}

/// One set of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialsView {
    /// The tier of the endpoints that they are for.
    pub tier: Tier,
    /// What they are, such as `token`.
    pub kind: &'static str,
    /// The files they come from, and when each was last written.
    pub files: Vec<(PathBuf, Option<Timestamp>)>,
    /// Until when they are good.
    pub expires: Option<Timestamp>,
    /// Why they could not be read last time, and since when.
    pub problem: Option<(String, Timestamp)>,
}
