//! Watches whether the host got another name after the daemon started.
//!
//! Invariant: the daemon keeps a name that the cluster has a Node for, whatever the host's name is by then: kubelet
//! keeps its registered name, too. It restarts under another name only if its own Node does not exist, and only if
//! its end takes nothing from clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_status::views::datapath::DatapathView;
use tokio::sync::watch;

use crate::node;
use holdfast_config::NodeName;
use holdfast_kubernetes::source::{Resource, State, View, Watch};

/// How often the host's name is checked.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// How long a new name must last: one from DHCP may be set twice.
const SETTLE_TIME: Duration = Duration::from_secs(60);

const NO_NAME: &str = "localhost";

/// The host's new name, for which the daemon must restart.
#[derive(Debug, thiserror::Error)]
#[error("this host's name is now {}, and the cluster has no Node {}: the daemon restarts", .new.as_str(), .own.as_str())]
pub struct HostnameChange {
    own: NodeName,
    new: NodeName,
}

/// Returns when the daemon must restart.
pub async fn run(
    own: NodeName,
    watches: View,
    datapath: watch::Receiver<Arc<DatapathView>>,
) -> HostnameChange {
    if own.as_str().split('.').next() == Some(NO_NAME) {
        tracing::warn!(node = own.as_str(), "this host has no name yet; set `name` under [node]");
    }
    let mut other = CandidateName::default();
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let host = node::host_node_name().ok().filter(|_| has_no_node(&watches));
        let Some(new) = other.observe(&own, host, Instant::now()) else { continue };
        if is_pinned(&datapath.borrow()) {
            return HostnameChange { own, new };
        }
    }
}

/// Whether the cluster has no Node of the daemon's name.
fn has_no_node(watches: &View) -> bool {
    let says_so = |it: &Watch| it.state == State::Watching && it.objects == 0;
    watches.current().iter().any(|it| it.what == Resource::Node && says_so(it))
}

/// Whether the programs serve clients without the process.
fn is_pinned(datapath: &DatapathView) -> bool {
    datapath.unpinned_hooks().is_empty()
        && datapath.status().is_none_or(|status| status.detached_hooks.is_empty())
}

#[derive(Debug, Default)]
struct CandidateName(Option<(NodeName, Instant)>);

impl CandidateName {
    /// Takes the host's name, if the cluster has no Node of the daemon's name. Returns the host's name once it has
    /// lasted.
    fn observe(&mut self, own: &NodeName, host: Option<NodeName>, now: Instant) -> Option<NodeName> {
        let host = host.filter(|host| host != own);
        let known = self.0.take().filter(|(name, _)| Some(name) == host.as_ref());
        let host = host?;
        if known.is_none() {
            tracing::warn!(
                node = own.as_str(),
                host = host.as_str(),
                "the cluster has no Node of this daemon's name, and the host has another name now: no endpoint counts as \
                 this node's; the daemon restarts under the new name if it lasts for a minute"
            );
        }
        let (name, since) = self.0.insert(known.unwrap_or((host, now)));
        (now.saturating_duration_since(*since) >= SETTLE_TIME).then(|| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock;

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn a_new_host_name_counts_once_it_has_lasted() {
        let (begun, mut other) = (clock::now(), CandidateName::default());
        let mut look = |second, host: Option<&str>| {
            let now = begun + Duration::from_secs(second);
            other.observe(&name("localhost"), host.map(name), now).map(|name| name.as_str().to_owned())
        };
        assert_eq!(look(0, Some("localhost")), None);
        assert_eq!(look(10, Some("worker-7")), None);
        assert_eq!(look(60, Some("worker-8")), None, "another one");
        assert_eq!(look(110, None), None, "the Node exists after all, or is unknown");
        assert_eq!(look(120, Some("worker-7")), None);
        assert_eq!(look(179, Some("worker-7")), None);
        assert_eq!(look(180, Some("worker-7")).as_deref(), Some("worker-7"));
        assert_eq!(look(190, Some("localhost")), None);
    }

    #[test]
    fn only_a_synced_watch_proves_that_a_node_is_missing() {
        let of =
            |what, state, objects| View::from_watches(vec![Watch { state, objects, ..Watch::new(what) }]);
        assert!(has_no_node(&of(Resource::Node, State::Watching, 0)));
        assert!(!has_no_node(&of(Resource::Node, State::Watching, 1)));
        assert!(!has_no_node(&of(Resource::Node, State::Waiting, 0)), "its Node is unknown");
        assert!(!has_no_node(&of(Resource::Services, State::Watching, 0)));
        assert!(!has_no_node(&View::default()), "there is no cluster");
    }
}
