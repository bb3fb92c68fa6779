//! Clients that programs rejected.
//!
//! Invariant: plain data; a refusal names its frontend, and a reader finds the service in the snapshot.

use core::time::Duration;
use std::net::SocketAddr;

use holdfast_core::keys::FrontendKey;
use holdfast_core::op::{PortIndex, QuotaId};
use holdfast_core::words;

/// How a program rejected a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The client got an error: ECONNREFUSED.
    Refused,
    /// The client got no reply, as if its packet were lost.
    Dropped,
}

words! {
    pub enum Cause {
        /// The list of backends for this client was empty; the reason of the frontend says more.
        NoBackend = "no-backend",
        /// The client's address is in none of the service's loadBalancerSourceRanges.
        Source = "source",
        /// The flow table was full: raise `flows` under `[packets]`.
        Flows = "flows",
        /// No SNAT port was left for a backend on another node: widen `snat_ports` under `[packets]`.
        Ports = "ports",
        /// This node had no address of that family for SNAT to a backend on another node: `holdfast datapath` lists the
        /// devices with their addresses.
        Address = "address",
        /// The client dialled a cluster IP of a service that has no such port.
        NoSuchPort = "no-such-port",
    }
}

impl Cause {
    /// Whether this node lacks something, so that no rule of anybody kept the client out.
    pub const fn is_shortage(self) -> bool {
        matches!(self, Self::Flows | Self::Ports | Self::Address)
    }

    /// Why the client was rejected, as a clause.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NoBackend => "there was no backend",
            Self::Source => "not in loadBalancerSourceRanges",
            Self::Flows => "the flow table was full",
            Self::Ports => "no SNAT port was free",
            Self::Address => "this node has no address for SNAT",
            Self::NoSuchPort => "the service has no such port",
        }
    }
}

/// Where a client's packet came from, and the device where it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub source: SocketAddr,
    pub device: u32,
}

/// One connect, datagram or first packet that a program rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When the client was rejected, on the clock that began with the machine.
    pub at: Duration,
    /// How the client's packet arrived; all fields about the process are then empty. `None`: the client is a process of
    /// this node, rejected at its socket.
    pub arrival: Option<Arrival>,
    /// The client's process id on the host.
    pub process: u32,
    /// The client's thread id on the host.
    pub thread: u32,
    /// The name of the thread, 15 bytes at most.
    pub comm: String,
    /// The id of the client's cgroup.
    pub cgroup: u64,
    /// The cookie of the client's network namespace.
    pub netns: u64,
    pub frontend: FrontendKey,
    pub port: PortIndex,
    /// The quota of the frontend's namespace; the default where the service has no such port.
    pub quota: QuotaId,
    /// Whether the client got an error or no reply.
    pub denial: Denial,
    pub cause: Cause,
}
