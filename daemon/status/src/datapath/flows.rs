//! Clients and their backends, as the table of flows has them, and what the sweep of that table found.
//!
//! Invariant: plain data; each value is a copy of what a record said at one moment.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::Transport;
use holdfast_core::op::{PortIndex, QuotaId};
use holdfast_core::words;

/// What one side of a connection was heard to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenFlags {
    /// It asked for a connection, or agreed to one.
    pub syn: bool,
    /// It has ended its half of the connection.
    pub fin: bool,
    /// It broke the connection off.
    pub rst: bool,
    /// With UDP: the backend said that its port is closed, and has not answered since.
    pub port_unreachable: bool,
}

words! {
    /// Which way a client's packets go between two nodes as they came.
    pub enum EncapDirection {
        /// To the node of the backend, which answers past this one.
        ToNode = "to-node",
        /// From the node by which the client came.
        FromNode = "from-node",
    }
}

words! {
    /// How far a flow has come.
    #[derive(PartialOrd, Ord)]
    pub enum Stage {
        /// The client has been heard, and the two have not agreed yet.
        Opening = "opening",
        /// Both have been heard.
        Open = "open",
        /// One side of a connection has said its last.
        HalfClosed = "half-closed",
        /// Both sides of a connection have said their last.
        Closed = "closed",
        /// One side has broken the connection off.
        Reset = "reset",
    }
}

/// A client, what it dialled, and the backend that it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The address and port that the client's packets come from.
    pub client: SocketAddr,
    /// What the client dialled.
    pub frontend: SocketAddr,
    /// The backend that was chosen to answer.
    pub backend: SocketAddr,
    /// The address that the backend sees instead of the client's; `None`: it sees the client's.
    pub nat: Option<SocketAddr>,
    /// The client's port as this node's own stack sees it: the client's own, or another one that keeps it apart from
    /// other connections there.
    pub through_port: u16,
    /// Whether its packets pass by the stack, as long as their devices allow that.
    pub fast_path: bool,
    /// Which way the client's packets go between two nodes as they came; `None`: they do not.
    pub encap: Option<EncapDirection>,
    /// The protocol that client and backend speak.
    pub transport: Transport,
    /// How far it has come.
    pub stage: Stage,
    /// What the client was heard to say.
    pub client_seen: SeenFlags,
    /// What the backend was heard to say.
    pub backend_seen: SeenFlags,
    /// The port behind the frontend, when the flow began.
    pub port: PortIndex,
    /// How long ago its last packet was, to the second.
    pub idle: Duration,
    /// How long ago it began.
    pub age: Duration,
    /// How long it may be idle before it has ended.
    pub lifetime: Duration,
}

/// An address with any port, or with one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFilter {
    /// Never an IPv4 one in the shape of IPv6.
    pub address: IpAddr,
    /// The only one that is meant; `None`: any of them.
    pub port: Option<u16>,
}

/// Which flows are looked for. `None` is no restriction; everything else is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The address and port that the client's packets come from.
    pub client: Option<AddressFilter>,
    /// The address and port that the client dialled.
    pub frontend: Option<AddressFilter>,
    /// The backend that was chosen to answer.
    pub backend: Option<AddressFilter>,
    /// How far it has come.
    pub stage: Option<Stage>,
    /// Only flows for which the backend told that its port is closed, and has not answered since.
    pub refused: bool,
}

/// The table at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    /// All flows, counted.
    pub tally: Tally,
    /// The flows that were looked for, the first ones of the table.
    pub matches: Vec<Flow>,
    /// How many more flows are like those that were looked for.
    pub omitted: u64,
}

/// Flows, by what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    // How many flows there are by transport and stage, both in their order.
    stages: [[u64; Stage::ALL.len()]; Transport::ALL.len()],
    /// Flows of IPv4 and of IPv6.
    pub families: [u64; 2],
    /// Flows for which the backend sees a port of this node instead of the client's.
    pub nat: u64,
    /// Flows that have ended by their age, and are not taken away yet. They are in no other number.
    pub expired: u64,
}

impl Tally {
    /// Counts one more flow of this transport and stage.
    pub fn record_flow(&mut self, transport: Transport, stage: Stage) {
        let mut of = Transport::ALL.iter().zip(&mut self.stages);
        let Some((_, stages)) = of.find(|(it, _)| **it == transport) else { return };
        if let Some((_, count)) = Stage::ALL.iter().zip(stages).find(|(it, _)| **it == stage) {
            *count += 1;
        }
    }

    /// How many flows there are of each transport and stage.
    pub fn stages(&self) -> impl Iterator<Item = (Transport, Stage, u64)> {
        let of = |(transport, counts): (Transport, &[u64; Stage::ALL.len()])| {
            Stage::ALL.into_iter().zip(*counts).map(move |(stage, count)| (transport, stage, count))
        };
        Transport::ALL.into_iter().zip(&self.stages).flat_map(of)
    }

    /// How many flows there are in which client or backend may still send something of meaning.
    pub fn in_use(&self) -> u64 {
        let is_over = |stage| matches!(stage, Stage::Closed | Stage::Reset);
        self.stages().filter(|(_, stage, _)| !is_over(*stage)).map(|(_, _, count)| count).sum()
    }

    /// How many flows have not ended by their age.
    pub fn live(&self) -> u64 {
        self.stages.iter().flatten().sum()
    }
}

/// What a sample of the flows has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSample {
    /// Flows that were looked at.
    pub checked: u32,
    /// Flows that some entry does not lead to, so that some of their packets are not translated.
    pub wrong: Vec<Flow>,
    /// Conversations over UDP with a backend that serves no more.
    pub without_backend: u32,
    /// Where the next sample may begin.
    pub next: u32,
}

/// What the sweep has done since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSweepProgress {
    /// How often the whole table was gone over.
    pub passes: u64,
    /// Flows that were taken away.
    pub ended: u64,
    /// Flows among these that another process had begun to take away and left.
    pub taken_over: u64,
    /// Ports that no client is given at one backend, because a connection of another proxy has them there.
    pub reserved_ports: usize,
    /// How many ports of this node there are, of which each client gets one on its way to a backend of another node.
    pub snat_ports: u32,
    /// The backend at which the fewest of those ports are left, as the last pass has shown it; `None`: no client has
    /// one.
    pub fullest: Option<BackendPortUsage>,
    /// Which backends have refused clients lately.
    pub backend_refusals: BackendRefusals,
    /// Why some flows stay that have ended; `None`: the last pass met no error.
    pub failure: Option<String>,
    /// Why it is not known which ports others have; `None`: it is.
    pub reserved_ports_failure: Option<String>,
}

/// A port of a backend, and the ports of this node that flows have there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPortUsage {
    /// The backend, on another node.
    pub backend: SocketAddr,
    /// The address of this node that the backend sees instead of its clients'.
    pub nat: IpAddr,
    /// The protocol of these flows.
    pub transport: Transport,
    /// How many ports of this node flows have there.
    pub used_ports: u32,
}

/// What a client dialled, and the backend that would not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendRefusal {
    /// The number of the service's namespace.
    pub quota: QuotaId,
    pub frontend: SocketAddr,
    pub transport: Transport,
    pub backend: SocketAddr,
}

/// Refusals, each with the second of its last packet, on the programs' clock.
pub type BackendRefusals = BTreeMap<BackendRefusal, u32>;
