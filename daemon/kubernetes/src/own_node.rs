//! The cluster's description of the node that this daemon runs on.
//!
//! Invariant: this is the cluster's data alone; other modules decide which of the host's addresses count.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::oneshot;

/// The cluster's description of the node, or the defaults until the cluster sends one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDescription {
    pub zone: Option<Arc<str>>,
    /// At most one address of each family. Until the cluster names them: the addresses that serve NodePorts.
    pub addresses: Vec<IpAddr>,
    /// The cluster is about to delete the node.
    pub is_leaving: bool,
}

/// A source's report on the node.
#[derive(Debug)]
pub struct NodeReport {
    /// `None`: the cluster denies the read. The last description then holds, except for its addresses.
    pub node: Option<NodeDescription>,
    /// Completes when the engine has queued the report.
    pub applied: oneshot::Sender<()>,
}
