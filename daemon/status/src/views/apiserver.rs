//! The state of the connections to the apiserver.
//!
//! Invariant: it is a copy, so a reader holds up no request. It has no secret; a credential is shown by kind, file and
//! age.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::words;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiserverView {
    /// By tier, and within a tier in the configured order.
    pub endpoints: Vec<EndpointView>,
    /// The configured ones first, then kubelet's.
    pub credentials: Vec<CredentialsView>,
    /// The cluster, once an apiserver has identified it.
    pub cluster: Option<ClusterId>,
    /// Why an apiserver may not tell which cluster it belongs to.
    pub unverified_reason: Option<Arc<str>>,
    /// Why the learned addresses cannot be stored for a restart.
    pub memory_problem: Option<String>,
    /// How often a request moved on to another endpoint.
    pub failovers: u64,
    /// The virtual address, if there is one.
    pub vip: Option<VipView>,
}

/// Whether this node reaches an apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage<'v> {
    /// A connection to this endpoint is open.
    InUse(&'v EndpointView),
    /// This endpoint answered last, and no connection is open at this moment: each watch ends now and then.
    Idle(&'v EndpointView),
    /// No endpoint has been tried yet.
    Untried,
    /// No endpoint answers.
    Unreachable,
}

impl ApiserverView {
    /// Whether this node reaches an apiserver. `Unreachable` only where each attempt has failed.
    pub fn usage(&self) -> Usage<'_> {
        let find = |matches: &dyn Fn(&EndpointView) -> bool| {
            let meant = || self.endpoints.iter().filter(|it| matches(it));
            meant().find(|it| it.preferred).or_else(|| meant().next())
        };
        let has_answered = |it: &EndpointView| {
            matches!(
                it.state,
                ApiserverState::Healthy | ApiserverState::Recovering | ApiserverState::Throttled
            )
        };
        let is_untried = |it: &EndpointView| it.state == ApiserverState::Unknown && it.last_error.is_none();
        if let Some(used) = find(&|it| it.active) {
            return Usage::InUse(used);
        }
        match find(&has_answered) {
            Some(idle) => Usage::Idle(idle),
            None if self.endpoints.iter().all(is_untried) => Usage::Untried,
            None => Usage::Unreachable,
        }
    }
}

/// The address at which others on this node reach an apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipView {
    pub address: SocketAddr,
    /// The endpoint behind it; `None` until an endpoint has ever answered.
    pub leads_to: Option<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// The address of the apiserver, with its port.
    pub address: SocketAddr,
    pub tier: Tier,
    /// The result of the last attempts.
    pub state: ApiserverState,
    pub since: Timestamp,
    pub active: bool,
    /// Whether the next request goes to this endpoint first.
    pub preferred: bool,
    pub connections: usize,
    /// The last error, and when it occurred.
    pub last_error: Option<(String, Timestamp)>,
    /// When the cluster last listed it.
    pub last_named: Option<Timestamp>,
    /// More about a learned address.
    pub learned: Option<LearnedView>,
}

/// The origin of a learned address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedView {
    /// When the cluster first listed the address; `None` if an older version of the daemon learned it.
    pub since: Option<Timestamp>,
    /// The slice that listed it last.
    pub slice: Option<Arc<str>>,
    /// Whether the cluster lists the address now.
    pub state: LearnedState,
}

/// One set of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialsView {
    /// The tier of the endpoints that they are for.
    pub tier: Tier,
    /// Their kind, such as `token`.
    pub kind: &'static str,
    /// Their files, and when each was last written.
    pub files: Vec<(PathBuf, Option<Timestamp>)>,
    pub expires: Option<Timestamp>,
    /// Why the last read failed, and since when.
    pub problem: Option<(String, Timestamp)>,
}

words! {
    /// The origin of an apiserver's address; an earlier tier goes first.
    #[derive(PartialOrd, Ord)]
    pub enum Tier {
        /// `[apiserver]`: `endpoints`, or else the kubeconfig's server.
        Configured = "configured",
        /// Kubelet's own kubeconfig.
        Kubelet = "kubelet",
        /// Backends that `default/kubernetes` has or had.
        Learned = "learned",
    }
}

impl Tier {
    /// Which tier named an address, as a clause of a sentence.
    pub const fn describe_source(self) -> &'static str {
        match self {
            Self::Configured => "named by the configuration or its kubeconfig",
            Self::Kubelet => "named by kubelet's kubeconfig",
            Self::Learned => "named by the cluster",
        }
    }
}

words! {
    pub enum ApiserverState {
        /// It was never tried.
        Unknown = "unknown",
        Healthy = "healthy",
        /// It failed, and has served once since.
        Recovering = "recovering",
        Failed = "failed",
        /// It is up, and asked clients to back off.
        Throttled = "throttled",
    }
}

words! {
    /// Whether the cluster lists a learned address.
    #[derive(Default, PartialOrd, Ord, Deserialize, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum LearnedState {
        /// The cluster lists it now.
        Listed = "now",
        /// It was among the last addresses of its family that the cluster listed. The cluster lists none of that family
        /// now: the list is held as `control`.
        Held = "held",
        /// The cluster listed it once.
        #[default]
        Past = "past",
    }
}

/// The longest uid: a UUID has 36 bytes, but no rule requires a UUID.
const UID_BYTES_MAX: usize = 128;

/// The uid of a cluster's `kube-system`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId(Arc<str>);

impl ClusterId {
    pub fn new(uid: &str) -> Option<Self> {
        let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let legal = !uid.is_empty() && uid.len() <= UID_BYTES_MAX && uid.bytes().all(legal);
        legal.then(|| Self(uid.into()))
    }

    /// The uid as Kubernetes writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(state: ApiserverState, active: bool, last_error: Option<&str>) -> EndpointView {
        EndpointView {
            address: SocketAddr::from(([192, 0, 2, 1], 6443)),
            tier: Tier::Configured,
            state,
            since: Timestamp(0),
            active,
            preferred: false,
            connections: usize::from(active),
            last_error: last_error.map(|error| (error.to_owned(), Timestamp(0))),
            last_named: None,
            learned: None,
        }
    }

    #[track_caller]
    fn check(rule: &str, endpoints: Vec<EndpointView>, expected: &str) {
        let view = ApiserverView { endpoints, ..ApiserverView::default() };
        let found = match view.usage() {
            Usage::InUse(_) => "in use",
            Usage::Idle(_) => "idle",
            Usage::Untried => "untried",
            Usage::Unreachable => "away",
        };
        assert_eq!(found, expected, "{rule}");
    }

    #[test]
    fn unreachable_only_where_each_attempt_failed() {
        let failed = || endpoint(ApiserverState::Failed, false, Some("refused"));
        let unknown = || endpoint(ApiserverState::Unknown, false, None);
        check("none is known", vec![], "untried");
        check("none was asked", vec![unknown(), unknown()], "untried");
        check("the first list comes", vec![endpoint(ApiserverState::Unknown, true, None)], "in use");
        check("between two watches", vec![failed(), endpoint(ApiserverState::Healthy, false, None)], "idle");
        check("it asked for patience", vec![endpoint(ApiserverState::Throttled, false, Some("429"))], "idle");
        check("one failed and one was not asked", vec![failed(), unknown()], "away");
        check("all failed", vec![failed(), failed()], "away");
        check(
            "nothing to show to any",
            vec![endpoint(ApiserverState::Unknown, false, Some("no token"))],
            "away",
        );
    }
}
