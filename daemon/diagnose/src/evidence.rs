//! What a diagnosis is made of: everything that was asked, and what came of it.
//!
//! Invariant: plain data, gathered before anything is judged, so that a judgement can be repeated. What was not asked,
//! or not answered, is never taken for "no". Texts are as others wrote them; the code that shows them cleans them.

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
use crate::explain::Outcome;
use holdfast_status::record::Record;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::checks::CheckStatuses;
use holdfast_status::views::clients::ClientCounters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::proxies::Filter;
use holdfast_status::views::proxies::OtherProxy;
use holdfast_status::views::refusals::DeniedClient;

pub use cluster::*;
pub use host::*;
pub use received_events::ReceivedEvents;

/// What came of one question: to the apiserver, this host, the maps or backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The question was not asked: it does not apply, or is switched off. Says why.
    Skipped(&'static str),
    /// The apiserver does not let this node read it.
    Forbidden(Right),
    /// Why there was no answer, in words.
    Failed(Arc<str>),
    Answered(T),
}

impl<T> Default for Lookup<T> {
    fn default() -> Self {
        Self::Skipped("it was not asked for")
    }
}

impl<T> Lookup<T> {
    /// The same, with its answer converted.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Skipped(why) => Lookup::Skipped(why),
            Self::Forbidden(right) => Lookup::Forbidden(right),
            Self::Failed(error) => Lookup::Failed(error),
            Self::Answered(answer) => Lookup::Answered(with(answer)),
        }
    }

    /// The same, with a reference to its answer.
    pub fn as_ref(&self) -> Lookup<&T> {
        match self {
            Self::Skipped(why) => Lookup::Skipped(why),
            Self::Forbidden(right) => Lookup::Forbidden(right.clone()),
            Self::Failed(error) => Lookup::Failed(Arc::clone(error)),
            Self::Answered(answer) => Lookup::Answered(answer),
        }
    }

    /// The answer, if there is one.
    pub const fn answer(&self) -> Option<&T> {
        match self {
            Self::Answered(answer) => Some(answer),
            Self::Skipped(_) | Self::Forbidden(_) | Self::Failed(_) => None,
        }
    }

    /// Why there is no answer, in words.
    pub fn unavailable_reason(&self) -> Option<String> {
        match self {
            Self::Answered(_) => None,
            Self::Skipped(why) => Some((*why).to_owned()),
            Self::Forbidden(right) => Some(format!("this node may not {right}")),
            Self::Failed(error) => Some(error.to_string()),
        }
    }
}

/// A right of RBAC that is missing: the rule to add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Right {
    /// Empty for the core group.
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static str,
    /// None: of the whole cluster.
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
    /// The places that this diagnosis left out, although there was something to look at.
    pub skipped_sources: Vec<ExternalSource>,
    /// When it was gathered.
    pub taken: Timestamp,
    /// What this node serves: facts, slices, frontends with verdicts, as one snapshot.
    pub snapshot: Arc<Snapshot>,
    /// All services of that name, one for each source that has it.
    pub views: Vec<Arc<ServiceView>>,
    pub own: DaemonState,
    /// What the maps hold for the frontends of this service.
    pub kernel: Lookup<Vec<MapRow>>,
    /// Of how many more frontends the maps were not asked.
    pub kernel_left: usize,
    /// Latest records of this service, oldest first.
    pub history: Vec<Record>,
    pub cluster: Cluster,
    pub host: Host,
    pub probes: Lookup<Vec<Probe>>,
    /// What backends answered by HTTP.
    pub http: Lookup<Vec<HttpProbe>>,
    /// What name servers said.
    pub names: Lookup<DnsReplies>,
    /// What the client of the question would meet now.
    pub lookups: Lookup<Vec<ClientTrace>>,
    /// The connections of clients outside, with their backends.
    pub flows: Lookup<Flows>,
}

words! {
    /// A place outside the daemon at which a diagnosis looks, as people read it.
    pub enum ExternalSource {
        Apiserver = "what the apiserver says now",
        Host = "this host",
        Connections = "connections from this host",
    }
}

/// What the question narrows the diagnosis to.
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

/// What was asked of name servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct DnsReplies {
    /// Backends behind port 53 by UDP, and what each said to a name that every cluster has.
    pub servers: Vec<(SocketAddr, DnsReply)>,
    /// The backend of the cluster's DNS that was asked for the Service's name, and what it said.
    pub own: Option<(SocketAddr, DnsReply)>,
    /// What the same backend said of a name that every cluster has.
    pub everywhere: Option<DnsReply>,
}

/// What a name server said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum DnsReply {
    Answer {
        #[cfg_attr(test, serde(default))]
        addresses: Vec<IpAddr>,
        /// NXDOMAIN: there is no such name.
        #[cfg_attr(test, serde(default))]
        is_unknown: bool,
        /// 0: no error.
        #[cfg_attr(test, serde(default))]
        code: u8,
        /// There is more than fits into a datagram.
        #[cfg_attr(test, serde(default))]
        is_cut: bool,
    },
    /// The port is closed.
    Refused,
    /// Nothing came in time.
    Silent,
    Failed(String),
}

/// What the first packet of a client meets at a frontend, by the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTrace {
    pub frontend: SocketAddr,
    pub outcome: Outcome,
    /// The backends that may get the packet.
    pub backends: Vec<String>,
    /// What the packet meets, as a sentence.
    pub sentence: String,
}

/// Connections of clients outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Flows {
    pub list: Vec<ObservedFlow>,
    /// How many more there are.
    pub more: u64,
    /// How many more frontends were not looked at.
    pub frontends_left: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct ObservedFlow {
    pub client: SocketAddr,
    pub backend: SocketAddr,
    /// Whether it is a conversation by UDP, which gets another backend when its own has left; a connection by TCP ends
    /// with its backend.
    #[cfg_attr(test, serde(default))]
    pub is_udp: bool,
    /// The backend told that its port is closed, and has not answered since.
    #[cfg_attr(test, serde(default))]
    pub is_refused: bool,
}

/// One frontend, compared with its entry in the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRow {
    pub frontend: FrontendKey,
    /// How the entry differs from what the table wants, in words; `None`: it does not.
    pub difference: Option<String>,
}

/// How this daemon is.
#[derive(Clone, Debug)]
pub struct DaemonState {
    /// Why it is not ready.
    pub unready: Option<String>,
    /// For how long the engine has not moved, if too long.
    pub stalled: Option<Duration>,
    pub watches: Vec<WatchStatus>,
    /// None where no apiserver is used.
    pub apiserver: Option<Arc<ApiserverView>>,
    pub datapath: Arc<DatapathView>,
    /// The clients of the service's ports.
    pub counters: ClientCounters,
    pub proxies: Arc<[OtherProxy]>,
    pub filters: Arc<[Filter]>,
    /// The addresses that the configuration has announced.
    pub announced: Vec<AnnouncedAddress>,
    /// Clients that programs refused or dropped and told of; the one that tried last comes last.
    pub denied: Vec<Arc<DeniedClient>>,
    /// What holdfast's own health checks found out about the service's backends; empty where none is configured.
    pub checks: CheckStatuses,
}

/// How one watch of the apiserver is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchStatus {
    /// `services`, `endpointslices`, `nodes`: the resource as the metrics name it.
    pub what: String,
    /// As `/apiserver` shows it.
    pub state: String,
    /// How long ago the last byte of a list or a watch came; none: never.
    pub silent: Option<Duration>,
    /// Why it does not watch now.
    pub error: Option<String>,
}

/// One connection that was tried: from an exempt socket to a backend, from an ordinary one to a frontend.
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
    /// The connection stands, but its peer is not the address that was dialled.
    Elsewhere(SocketAddr),
    NotTried(&'static str),
}

/// One request by HTTP.
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
    /// It broke off, or is no HTTP.
    Failed(String),
}
