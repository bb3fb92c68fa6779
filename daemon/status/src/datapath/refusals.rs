//! Clients that programs turned away.
//!
//! Invariant: plain data; a refusal names its frontend, and a reader finds the service in the snapshot.

use core::time::Duration;
use std::net::SocketAddr;

use holdfast_core::keys::FrontendKey;
use holdfast_core::op::{PortIndex, QuotaId};
use holdfast_core::words;

/// How a client was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The client was told that nothing serves it: ECONNREFUSED.
    Refused,
    /// The client got no answer, as if its packet were lost.
    Dropped,
}

words! {
    /// Why a client was turned away.
    pub enum Cause {
        /// The list of backends for this client was empty; the reason of the frontend says more.
        NoBackend = "no-backend",
        /// The client's address is in none of the service's loadBalancerSourceRanges.
        Source = "source",
        /// The table of flows was full: raise `flows` under `[packets]`.
        Flows = "flows",
        /// No port was left by which a backend on another node could answer: widen `snat_ports` under `[packets]`.
        Ports = "ports",
        /// This node had no address of that family to which a backend on another node could answer: `holdfast datapath`
        /// lists the devices with theirs.
        Address = "address",
        /// The client dialled a cluster IP of a service that has no such port.
        NoSuchPort = "no-such-port",
    }
}

/// Where a client's packet came from, and by which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub source: SocketAddr,
    /// The number of the device.
    pub device: u32,
}

/// One connect, datagram or first packet that was not let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When the client was turned away, on the clock that began with the machine.
    pub at: Duration,
    /// How the client's packet came; all fields about the process are then empty. `None`: the client is a process of
    /// this node, and was turned away at its socket.
    pub arrival: Option<Arrival>,
    /// The client's process, as the host numbers it.
    pub process: u32,
    /// The client's thread, numbered likewise.
    pub thread: u32,
    /// The name of the thread, 15 bytes at most.
    pub comm: String,
    /// The number of the client's cgroup.
    pub cgroup: u64,
    /// The cookie of the client's network namespace.
    pub netns: u64,
    /// The frontend that the client dialled; for a node port with the address of the node.
    pub frontend: FrontendKey,
    /// The port behind the frontend.
    pub port: PortIndex,
    /// The number of the namespace that has the frontend; the default where the service has no such port.
    pub quota: QuotaId,
    /// Whether the client was told, or left without an answer.
    pub denial: Denial,
    pub cause: Cause,
}
