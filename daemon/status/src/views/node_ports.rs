//! Processes that listen at node ports of Services.
//!
//! Invariant: plain data. The name of a process comes from a tenant.

use holdfast_core::facts::Listener;
use holdfast_core::keys::ObjectName;

/// A process of this node, not this daemon, at a Service's node port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortListener {
    pub service: ObjectName,
    pub listener: Listener,
    /// The process, and its id on the host; `None`: the daemon may not see it.
    pub process: Option<(String, u32)>,
}
