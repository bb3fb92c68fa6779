//! The evidence of a diagnosis: every query, and its result.
//!
//! Invariant: plain data, gathered before anything is judged, so that a judgement can be repeated. A skipped or
//! unanswered query never counts as "no". Foreign texts are verbatim; the code that shows them cleans them.

mod cluster;
#[cfg(test)]
mod fixture_lookup;
mod host;
mod received_events;

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ObjectName};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use holdfast_core::words;

use super::focus::Focus;
use crate::explain::{ClosedHealthPort, NewsObstacles, Outcome};
use holdfast_status::record::Record;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::checks::CheckStatuses;
use holdfast_status::views::clients::ClientCounters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::node_ports::NodePortListener;
use holdfast_status::views::proxies::Filter;
use holdfast_status::views::proxies::OtherProxy;
use holdfast_status::views::refusals::DeniedClient;

pub use cluster::*;
pub use host::*;
pub use received_events::ReceivedEvents;

/// The result of one query: to the apiserver, this host, the maps or backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The query does not apply or is switched off. Says why.
    Skipped(&'static str),
    /// This node lacks the right.
    Forbidden(Right),
    /// Why there was no answer.
    Failed(Arc<str>),
    Answered(T),
}

impl<T> Default for Lookup<T> {
    fn default() -> Self {
        Self::Skipped("it was not requested")
    }
}

impl<T> Lookup<T> {
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Skipped(why) => Lookup::Skipped(why),
            Self::Forbidden(right) => Lookup::Forbidden(right),
            Self::Failed(error) => Lookup::Failed(error),
            Self::Answered(answer) => Lookup::Answered(with(answer)),
        }
    }

    pub fn as_ref(&self) -> Lookup<&T> {
        match self {
            Self::Skipped(why) => Lookup::Skipped(why),
            Self::Forbidden(right) => Lookup::Forbidden(right.clone()),
            Self::Failed(error) => Lookup::Failed(Arc::clone(error)),
            Self::Answered(answer) => Lookup::Answered(answer),
        }
    }

    pub const fn answer(&self) -> Option<&T> {
        match self {
            Self::Answered(answer) => Some(answer),
            Self::Skipped(_) | Self::Forbidden(_) | Self::Failed(_) => None,
        }
    }

    pub fn unavailable_reason(&self) -> Option<String> {
        match self {
            Self::Answered(_) => None,
            Self::Skipped(why) => Some((*why).to_owned()),
            Self::Forbidden(right) => Some(format!("this node may not {right}")),
            Self::Failed(error) => Some(error.to_string()),
        }
    }
}

/// A missing RBAC right: the rule to add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Right {
    /// Empty for the core group.
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static str,
    /// `None`: in the whole cluster.
    pub namespace: Option<Arc<str>>,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verbs, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}

/// Everything that a service is judged by.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub name: ObjectName,
    pub scope: DiagnosisScope,
    /// The sources that this diagnosis skipped, although they had something to show.
    pub skipped_sources: Vec<ExternalSource>,
    pub taken: Timestamp,
    /// What this node serves: facts, slices, frontends with verdicts, as one snapshot.
    pub snapshot: Arc<Snapshot>,
    /// All services of that name, one for each source that has it.
    pub views: Vec<Arc<ServiceView>>,
    pub own: DaemonState,
    /// The map entries of this service's frontends.
    pub kernel: Lookup<Vec<MapRow>>,
    /// Number of frontends with map entries that were not read.
    pub kernel_left: usize,
    /// Latest records of this service, oldest first.
    pub history: Vec<Record>,
    pub cluster: Cluster,
    pub host: Host,
    pub probes: Lookup<Vec<Probe>>,
    pub http: Lookup<Vec<HttpProbe>>,
    pub names: Lookup<DnsReplies>,
    /// Traces of the queried client's next connection.
    pub lookups: Lookup<Vec<ClientTrace>>,
    pub flows: Lookup<Flows>,
}

words! {
    /// A source outside the daemon, as people read it.
    pub enum ExternalSource {
        Apiserver = "what the apiserver says now",
        Host = "this host",
        Connections = "connections from this host",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiagnosisScope {
    /// The client that does not reach the service.
    pub client: Option<IpAddr>,
    pub focus: Focus,
    /// How far back a change counts as recent.
    pub since_seconds: i64,
}

impl Default for DiagnosisScope {
    fn default() -> Self {
        Self { client: None, focus: Focus::default(), since_seconds: 3_600 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct DnsReplies {
    /// Backends behind UDP port 53, each with its reply to a name that every cluster has.
    pub servers: Vec<(SocketAddr, DnsReply)>,
    /// The queried backend of the cluster's DNS, with its reply to the Service's name.
    pub own: Option<(SocketAddr, DnsReply)>,
    /// The same backend's reply to a name that every cluster has.
    pub everywhere: Option<DnsReply>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum DnsReply {
    Answer {
        #[cfg_attr(test, serde(default))]
        addresses: Vec<IpAddr>,
        /// NXDOMAIN: the name does not exist.
        #[cfg_attr(test, serde(default))]
        is_unknown: bool,
        /// 0: no error.
        #[cfg_attr(test, serde(default))]
        code: u8,
        /// The addresses do not fit into a datagram.
        #[cfg_attr(test, serde(default))]
        is_cut: bool,
    },
    /// The port is closed.
    Refused,
    /// Nothing came in time.
    Silent,
    Failed(String),
}

/// What a client's first packet meets at a frontend, by the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTrace {
    pub frontend: SocketAddr,
    pub outcome: Outcome,
    /// The backends that may get the packet.
    pub backends: Vec<String>,
    pub sentence: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Flows {
    pub list: Vec<ObservedFlow>,
    /// Number of connections with backends of the service that are not in the list.
    pub more_with_backends: u64,
    /// Number of other connections that were not read.
    pub more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct ObservedFlow {
    pub client: SocketAddr,
    pub backend: SocketAddr,
    /// Whether this is a UDP conversation. It gets another backend once its own has left; a TCP connection ends with
    /// its backend.
    #[cfg_attr(test, serde(default))]
    pub is_udp: bool,
    /// The backend reported its port closed, and has not replied since.
    #[cfg_attr(test, serde(default))]
    pub is_refused: bool,
}

/// One frontend, compared with its entry in the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRow {
    pub frontend: FrontendKey,
    /// The difference from what the table wants. `None`: there is none.
    pub difference: Option<String>,
}

#[derive(Clone, Debug)]
pub struct DaemonState {
    /// Why it is not ready.
    pub unready: Option<String>,
    /// How long the engine has been stalled, if too long.
    pub stalled: Option<Duration>,
    pub watches: Vec<WatchStatus>,
    /// `None`: no apiserver is used.
    pub apiserver: Option<Arc<ApiserverView>>,
    pub datapath: Arc<DatapathView>,
    pub counters: ClientCounters,
    pub proxies: Arc<[OtherProxy]>,
    pub filters: Arc<[Filter]>,
    pub announced: Vec<AnnouncedAddress>,
    /// Clients that the programs refused or dropped, in the order of their last attempts.
    pub denied: Vec<Arc<DeniedClient>>,
    /// Results of holdfast's own health checks; empty if none is configured.
    pub checks: CheckStatuses,
    /// What may keep a service from being known here.
    pub obstacles: NewsObstacles,
    /// Health check ports that are not open, for a host that gives no answer about its sockets.
    pub closed_ports: Vec<ClosedHealthPort>,
    /// Other processes at node ports, for the same.
    pub node_port_listeners: Vec<NodePortListener>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchStatus {
    /// `services`, `endpointslices`, `nodes`: the resource as the metrics name it.
    pub what: String,
    /// The state that `/apiserver` shows.
    pub state: String,
    /// Time since the last byte of a list or a watch. `None`: none came.
    pub silent: Option<Duration>,
    /// Why it does not watch now.
    pub error: Option<String>,
    /// Why this node's zone is unknown or may be stale.
    pub zone_problem: Option<String>,
}

/// One test connection: from an exempt socket to a backend, from an ordinary one to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub to: SocketAddr,
    pub kind: ProbeKind,
    pub outcome: ProbeOutcome,
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Frontend,
    Backend {
        /// Whether its endpoint is on this node.
        local: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Connected,
    Refused,
    TimedOut,
    Unreachable(String),
    /// EPERM: a program or a rule forbids it.
    NotPermitted,
    /// The connection is established, but its peer is not the dialled address.
    Elsewhere(SocketAddr),
    NotTried(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    pub to: SocketAddr,
    pub answer: HttpAnswer,
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAnswer {
    Status(u16),
    /// Nothing came in time.
    Silent,
    /// The reply broke off, or is no HTTP.
    Failed(String),
}
