//! What a diagnosis is made of: everything that was asked, and what came of it.
//!
//! Invariant: plain data, gathered before anything is judged, so that a judgement can be repeated. What was not asked,
//! or not answered, is never taken for "no". Texts are as others wrote them; the code that shows them cleans them.

mod cluster;
mod host;
#[cfg(test)]
mod written;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ObjectName};
use holdfast_core::snapshot::{ServiceView, Snapshot};

use super::focus::Focus;
use crate::apiserver::View as ApiserverView;
use crate::datapath::{Cause, DatapathView};
use crate::proxies::OtherProxy;
use crate::proxies::filters::Filter;
use crate::recorder::Record;
use crate::why::Outcome;

pub(crate) use cluster::*;
pub(crate) use host::*;

/// What came of one question: to the apiserver, this host, the maps or backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked<T> {
    /// The question was not asked: it does not apply, or is switched off. Says why.
    Not(&'static str),
    /// The apiserver does not let this node read it.
    Forbidden(Right),
    /// No answer, in words.
    Failed(Arc<str>),
    Answered(T),
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Self::Not("it was not asked for")
    }
}

impl<T> Asked<T> {
    /// The same, with its answer converted.
    pub(crate) fn map<U>(self, with: impl FnOnce(T) -> U) -> Asked<U> {
        match self {
            Self::Not(why) => Asked::Not(why),
            Self::Forbidden(right) => Asked::Forbidden(right),
            Self::Failed(error) => Asked::Failed(error),
            Self::Answered(answer) => Asked::Answered(with(answer)),
        }
    }

    /// The same, with a reference to its answer.
    pub(crate) fn as_ref(&self) -> Asked<&T> {
        match self {
            Self::Not(why) => Asked::Not(why),
            Self::Forbidden(right) => Asked::Forbidden(right.clone()),
            Self::Failed(error) => Asked::Failed(Arc::clone(error)),
            Self::Answered(answer) => Asked::Answered(answer),
        }
    }

    /// The answer, if there is one.
    pub(crate) const fn answer(&self) -> Option<&T> {
        match self {
            Self::Answered(answer) => Some(answer),
            Self::Not(_) | Self::Forbidden(_) | Self::Failed(_) => None,
        }
    }

    /// Why there is none, in words.
    pub(crate) fn why_not(&self) -> Option<String> {
        match self {
            Self::Answered(_) => None,
            Self::Not(why) => Some((*why).to_owned()),
            Self::Forbidden(right) => Some(format!("this node may not {right}")),
            Self::Failed(error) => Some(error.to_string()),
        }
    }
}

/// A right of RBAC that is missing: the rule to add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Right {
    /// Empty for the core group.
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static str,
    /// None: of the whole cluster.
    pub(crate) namespace: Option<Arc<str>>,
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
pub(crate) struct Material {
    pub(crate) name: ObjectName,
    pub(crate) narrowed: Narrowed,
    /// When it was gathered.
    pub(crate) taken: Timestamp,
    /// What this node serves: facts, slices, frontends with verdicts, as one snapshot.
    pub(crate) snapshot: Arc<Snapshot>,
    /// All services of that name, one for each source that has it.
    pub(crate) views: Vec<Arc<ServiceView>>,
    pub(crate) own: Own,
    /// What the maps hold for the frontends of this service.
    pub(crate) kernel: Asked<Vec<MapRow>>,
    /// Of how many more frontends the maps were not asked.
    pub(crate) kernel_left: usize,
    /// Latest records of this service, oldest first.
    pub(crate) history: Vec<Record>,
    pub(crate) cluster: Cluster,
    pub(crate) host: Host,
    pub(crate) probes: Asked<Vec<Probe>>,
    /// What backends answered by HTTP.
    pub(crate) http: Asked<Vec<HttpProbe>>,
    /// What name servers said.
    pub(crate) names: Asked<Names>,
    /// What the client of the question would meet now.
    pub(crate) lookups: Asked<Vec<Lookup>>,
    /// The connections of clients outside, with their backends.
    pub(crate) flows: Asked<Flows>,
}

/// What the question narrows the diagnosis to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Narrowed {
    /// The client that does not reach the service.
    pub(crate) client: Option<IpAddr>,
    pub(crate) focus: Focus,
    /// How far back a change counts as recent.
    pub(crate) since_seconds: i64,
}

impl Default for Narrowed {
    fn default() -> Self {
        Self { client: None, focus: Focus::default(), since_seconds: 3_600 }
    }
}

/// What was asked of name servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Names {
    /// Backends behind port 53 by UDP, and what each said to a name that every cluster has.
    pub(crate) servers: Vec<(SocketAddr, Named)>,
    /// The backend of the cluster's DNS that was asked for the Service's name, and what it said.
    pub(crate) own: Option<(SocketAddr, Named)>,
    /// What it said of a name that every cluster has.
    pub(crate) everywhere: Option<Named>,
}

/// What a name server said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub(crate) enum Named {
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
pub(crate) struct Lookup {
    pub(crate) frontend: SocketAddr,
    pub(crate) outcome: Outcome,
    /// The backends that may get it.
    pub(crate) backends: Vec<String>,
    /// All of it, worded.
    pub(crate) sentence: String,
}

/// Connections of clients outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Flows {
    pub(crate) list: Vec<FlowSeen>,
    /// How many more there are.
    pub(crate) more: u64,
    /// How many more frontends were not looked at.
    pub(crate) frontends_left: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct FlowSeen {
    pub(crate) client: SocketAddr,
    pub(crate) backend: SocketAddr,
    /// A conversation goes on where it began; a connection ends by itself when its backend has gone.
    #[cfg_attr(test, serde(default))]
    pub(crate) is_udp: bool,
    /// The backend told that its port is closed, and has not answered since.
    #[cfg_attr(test, serde(default))]
    pub(crate) is_refused: bool,
}

/// One frontend, compared with its entry in the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapRow {
    pub(crate) frontend: FrontendKey,
    /// What is other than the table wants, in words; none: equal. An error of reading is one too.
    pub(crate) difference: Option<String>,
}

/// How this daemon is.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Why it is not ready.
    pub(crate) unready: Option<String>,
    /// For how long the engine has not moved, if too long.
    pub(crate) stalled: Option<Duration>,
    pub(crate) watches: Vec<WatchSeen>,
    /// None where no apiserver is used.
    pub(crate) apiserver: Option<Arc<ApiserverView>>,
    pub(crate) datapath: Arc<DatapathView>,
    pub(crate) proxies: Arc<[OtherProxy]>,
    pub(crate) filters: Arc<[Filter]>,
    /// Clients outside that programs told of, the one that tried last comes last.
    pub(crate) dropped: Vec<Dropped>,
}

/// A client outside that was dropped, once or again and again.
#[derive(Clone, Debug)]
pub(crate) struct Dropped {
    /// What it dialled: for a node port the address of the node.
    pub(crate) frontend: FrontendKey,
    pub(crate) cause: Cause,
    pub(crate) times: u64,
    pub(crate) last: Timestamp,
}

/// How one watch of the apiserver is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchSeen {
    /// `services`, `endpointslices`, `nodes`: the resource as the metrics name it.
    pub(crate) what: String,
    /// As `/apiserver` shows it.
    pub(crate) state: String,
    /// How long ago the last byte of a list or a watch came; none: never.
    pub(crate) silent: Option<Duration>,
    /// Why it does not watch now.
    pub(crate) error: Option<String>,
}

/// One connection that was tried: from an exempt socket to a backend, from an ordinary one to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) to: SocketAddr,
    pub(crate) of: ProbeOf,
    pub(crate) outcome: ProbeOutcome,
    pub(crate) took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOf {
    Frontend,
    Backend {
        /// Whether its endpoint is on this node.
        local: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
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
pub(crate) struct HttpProbe {
    pub(crate) to: SocketAddr,
    pub(crate) answer: HttpAnswer,
    pub(crate) took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HttpAnswer {
    Status(u16),
    /// Nothing came in time.
    Silent,
    /// It broke off, or is no HTTP.
    Failed(String),
}
