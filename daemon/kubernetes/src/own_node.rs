//! What a cluster says of the node that this daemon runs on.
//!
//! Invariant: these are the cluster's words alone; which of the host's addresses count is decided elsewhere.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::oneshot;

/// What a cluster says of the node, or what is assumed until it says something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDescription {
    pub zone: Option<Arc<str>>,
    /// The node's addresses, at most one of each family. Until the cluster names them, they are those at which
    /// NodePorts are answered.
    pub addresses: Vec<IpAddr>,
    /// Whether the node is to be deleted.
    pub is_leaving: bool,
}

/// What the source says of the node.
#[derive(Debug)]
pub struct NodeReport {
    /// What the cluster says; none if it may not be asked. Then the last word on the node holds, but for its addresses.
    pub node: Option<NodeDescription>,
    /// Answered when the engine's queue has it.
    pub applied: oneshot::Sender<()>,
}
