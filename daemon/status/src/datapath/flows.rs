//! Clients and their backends from the flow table, and the results of that table's sweep.
//!
//! Invariant: plain data; each value is a copy of a record at one moment.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::Transport;
use holdfast_core::op::PortIndex;
use holdfast_core::words;

use super::backend_refusals::{BackendAnswers, BackendRefusals};

/// TCP flags and ICMP errors seen from one side of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenFlags {
    /// It sent a SYN or a SYN-ACK.
    pub syn: bool,
    /// It closed its half of the connection.
    pub fin: bool,
    /// It reset the connection.
    pub rst: bool,
    /// With UDP: the backend reported its port closed, and has not replied since.
    pub port_unreachable: bool,
}

words! {
    /// The direction of a client's encapsulated packets between two nodes.
    pub enum EncapDirection {
        /// To the backend's node, which replies to the client directly.
        ToNode = "to-node",
        /// From the node where the client arrived.
        FromNode = "from-node",
    }
}

words! {
    /// The state of a flow.
    #[derive(PartialOrd, Ord)]
    pub enum Stage {
        /// Only the client has sent so far.
        Opening = "opening",
        /// Both sides have sent.
        Open = "open",
        /// One side of a connection has sent a FIN.
        HalfClosed = "half-closed",
        /// Both sides of a connection have sent a FIN.
        Closed = "closed",
        /// One side has reset the connection.
        Reset = "reset",
    }
}

/// A client, the frontend that it dialled, and its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The source address and port of the client's packets.
    pub client: SocketAddr,
    /// What the client dialled.
    pub frontend: SocketAddr,
    /// The selected backend.
    pub backend: SocketAddr,
    /// The source address that the backend sees after SNAT; `None`: it sees the client's.
    pub nat: Option<SocketAddr>,
    /// The client's port in this node's own stack: the client's own, or one that avoids a collision there.
    pub through_port: u16,
    /// Whether its packets take the fast path, if their devices allow that.
    pub fast_path: bool,
    /// The direction of the client's encapsulated packets between two nodes; `None`: they are not encapsulated.
    pub encap: Option<EncapDirection>,
    /// The protocol that client and backend speak.
    pub transport: Transport,
    pub stage: Stage,
    /// What the programs saw the client send.
    pub client_seen: SeenFlags,
    /// What the programs saw the backend send.
    pub backend_seen: SeenFlags,
    /// The port behind the frontend when the flow began.
    pub port: PortIndex,
    /// Time since its last packet, to the second.
    pub idle: Duration,
    pub age: Duration,
    /// How long it may idle before it expires.
    pub lifetime: Duration,
}

/// An address with any port, or with one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFilter {
    /// Never an IPv4-mapped IPv6 one.
    pub address: IpAddr,
    /// The port to match; `None`: any.
    pub port: Option<u16>,
}

/// The flows to look for. `None` is no restriction; everything else is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The source address and port of the client's packets.
    pub client: Option<AddressFilter>,
    /// The address and port that the client dialled.
    pub frontend: Option<AddressFilter>,
    /// The selected backend.
    pub backend: Option<AddressFilter>,
    pub stage: Option<Stage>,
    /// Only flows with a backend that reported its port closed and has not replied since.
    pub refused: bool,
}

/// The flow table at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    pub tally: Tally,
    /// The newest matching flows, the newest first.
    pub matches: Vec<Flow>,
    pub omitted: u64,
}

/// Flows, counted by transport, stage and family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    // By transport and stage, both in their order.
    stages: [[u64; Stage::ALL.len()]; Transport::ALL.len()],
    /// Flows of IPv4 and of IPv6.
    pub families: [u64; 2],
    /// Flows for which the backend sees a port of this node instead of the client's.
    pub nat: u64,
    /// Expired flows that the sweep has not deleted yet. No other count includes them.
    pub expired: u64,
}

impl Tally {
    /// Counts one more flow of this transport and stage.
    pub fn record_flow(&mut self, transport: Transport, stage: Stage) {
        let mut transports = Transport::ALL.iter().zip(&mut self.stages);
        let Some((_, stages)) = transports.find(|(it, _)| **it == transport) else { return };
        if let Some((_, count)) = Stage::ALL.iter().zip(stages).find(|(it, _)| **it == stage) {
            *count += 1;
        }
    }

    /// How many flows there are of each transport and stage.
    pub fn stages(&self) -> impl Iterator<Item = (Transport, Stage, u64)> {
        let by_stage = |(transport, counts): (Transport, &[u64; Stage::ALL.len()])| {
            Stage::ALL.into_iter().zip(*counts).map(move |(stage, count)| (transport, stage, count))
        };
        Transport::ALL.into_iter().zip(&self.stages).flat_map(by_stage)
    }

    /// How many flows there are in which a client or backend may still send data.
    pub fn in_use(&self) -> u64 {
        let is_closed = |stage| matches!(stage, Stage::Closed | Stage::Reset);
        self.stages().filter(|(_, stage, _)| !is_closed(*stage)).map(|(_, _, count)| count).sum()
    }

    /// How many flows have not expired.
    pub fn live(&self) -> u64 {
        self.stages.iter().flatten().sum()
    }
}

/// The result of checking a sample of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSample {
    /// Flows that were checked.
    pub checked: u32,
    /// Flows with a missing entry, so that some of their packets are not translated.
    pub wrong: Vec<Flow>,
    /// UDP flows with a backend that serves no more.
    pub without_backend: u32,
    /// Where the next sample may begin.
    pub next: u32,
}

/// Totals of the sweep since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSweepProgress {
    /// How often the sweep covered the whole table.
    pub passes: u64,
    /// Flows that it deleted.
    pub ended: u64,
    /// Flows among these that another process had begun to delete.
    pub taken_over: u64,
    /// Ports that SNAT may not use for one backend, because another proxy has a connection there.
    pub reserved_ports: usize,
    /// The size of this node's SNAT port range for backends of other nodes.
    pub snat_ports: u32,
    /// The backend with the fewest SNAT ports left, by the last pass; `None`: no client has one.
    pub fullest: Option<BackendPortUsage>,
    /// Which backends have refused clients from outside.
    pub backend_refusals: BackendRefusals,
    /// Which backends have answered no client from outside, by the last pass.
    pub silent_backends: BackendRefusals,
    /// Answers of backends that had failed clients, from outside or of this node, by the last pass.
    pub answers: BackendAnswers,
    /// The last packets of clients from outside that such a backend has not answered.
    pub unanswered: BackendAnswers,
    /// Why some expired flows stay; `None`: the last pass met no error.
    pub failure: Option<String>,
    /// Why the ports of other proxies are unknown; `None`: they are known.
    pub reserved_ports_failure: Option<String>,
}

/// A port of a backend, and how many SNAT ports flows use there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPortUsage {
    pub backend: SocketAddr,
    /// The source address that the backend sees after SNAT.
    pub nat: IpAddr,
    pub transport: Transport,
    pub used_ports: u32,
}
