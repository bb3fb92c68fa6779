//! A client that was turned away: where, why, and how often.
//!
//! Invariant: plain data, with times as people read them. A reader finds the names of services in the snapshot.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::words;
use holdfast_datapath::{Denial, Refusal};

/// A client that was not served, once or again and again, with times as people read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The first time.
    pub first: Timestamp,
    /// The latest time.
    pub last: Timestamp,
    /// How many times, both of these included.
    pub count: u64,
    /// The client, and what it dialled; of the last time.
    pub refusal: Refusal,
}

impl Denied {
    /// Whether this is the same process, or the same address outside, that met the same at the same frontend.
    pub fn is_again(&self, refusal: &Refusal) -> bool {
        let address = |it: &Refusal| it.arrival.map(|arrival| arrival.source.ip());
        let same = |it: &Refusal| (it.process, address(it), it.frontend, it.denial, it.cause, it.cgroup);
        same(&self.refusal) == same(refusal)
    }
}

/// The frontends that may have answered, in the order in which the programs look.
pub fn answering(dialled: &FrontendKey) -> [FrontendKey; 2] {
    let address = match Family::of(dialled.address) {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    [*dialled, FrontendKey { address, ..*dialled }]
}

/// Each word by which they are told apart.
pub const DENIALS: [&str; 2] = [spelled(Denial::Refused), spelled(Denial::Dropped)];

/// The one spelling in tables, JSON, log and metrics.
pub const fn spelled(denial: Denial) -> &'static str {
    match denial {
        Denial::Refused => "refused",
        Denial::Dropped => "dropped",
    }
}

words! {
    /// Why a client was turned away.
    pub enum Cause {
        /// The list of backends for this client was empty; the reason of the frontend says more.
        NoBackend = "no-backend",
        /// Its address is in none of the service's loadBalancerSourceRanges.
        Source = "source",
        /// The table of flows was full: raise `flows` under `[packets]`.
        Flows = "flows",
        /// No port was left by which a backend on another node could answer: widen `snat_ports` under `[packets]`.
        Ports = "ports",
        /// This node had no address of that family to which a backend on another node could answer: `holdfast datapath`
        /// lists the devices with theirs.
        Address = "address",
        /// It is a cluster IP of a service that has no such port.
        NoSuchPort = "no-such-port",
    }
}

impl From<holdfast_datapath::Cause> for Cause {
    fn from(cause: holdfast_datapath::Cause) -> Self {
        match cause {
            holdfast_datapath::Cause::NoBackend => Self::NoBackend,
            holdfast_datapath::Cause::Source => Self::Source,
            holdfast_datapath::Cause::Flows => Self::Flows,
            holdfast_datapath::Cause::Ports => Self::Ports,
            holdfast_datapath::Cause::Address => Self::Address,
            holdfast_datapath::Cause::NoSuchPort => Self::NoSuchPort,
        }
    }
}
