//! How packets are translated at one moment.
//!
//! Invariant: plain data.

use holdfast_core::keys::Transport;
use holdfast_core::source_ranges::SourceRange;
use holdfast_core::words;

use super::devices::{DeviceStatus, HookKind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketStatus {
    /// The capacity of the flow table; 0: packets are not translated.
    pub flows: u32,
    /// How the programs are attached; `None`: packets are not translated.
    pub hooks: Option<HookKind>,
    /// The configured capacity of the flow table; it grows to that size without an interruption for clients.
    pub flows_wanted: u32,
    /// Why the table cannot get that size. The next start tries again, or a change of the size.
    pub flows_failure: Option<String>,
    /// The flows that a shrinking table evicted since the daemon started.
    pub flows_evicted: EvictedFlows,
    /// Why packets are not translated, or not at all devices, or by outdated programs.
    pub failure: Option<String>,
    /// Whether programs at devices follow no change: they read tables from before those grew, or belong to a former
    /// daemon because this daemon's programs cannot replace them.
    pub behind: bool,
    /// How often the daemon reattached a program that someone else had detached.
    pub repaired: u64,
    pub devices: Vec<DeviceStatus>,
    /// The switches of the programs, as far as this kernel supports them.
    pub switches: PacketSwitches,
}

/// The switches that packet programs get when they are loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketSwitches {
    /// The mark on packets that are forwarded for a service, so that a firewall can accept them; 0: none.
    pub forward_mark: u32,
    /// The transports with packets that go encapsulated to the nodes of their backends.
    pub dsr_transports: DsrTransports,
    /// Networks that contain only nodes, the first sixteen of each family. Encapsulated packets are accepted from these
    /// alone; without any, no packet is encapsulated.
    pub dsr_from: Vec<SourceRange>,
}

words! {
    /// The transports with packets that go encapsulated to the nodes of their backends.
    #[derive(Default)]
    pub enum DsrTransports {
        /// None: backends of other nodes reply to this node.
        #[default]
        Off = "off",
        /// TCP alone.
        Tcp = "tcp",
        /// TCP and UDP.
        TcpAndUdp = "all",
    }
}

impl DsrTransports {
    /// Whether packets of that transport are encapsulated.
    pub const fn contains(self, transport: Transport) -> bool {
        match transport {
            Transport::Tcp => !matches!(self, Self::Off),
            Transport::Udp => matches!(self, Self::TcpAndUdp),
            Transport::Sctp => false,
        }
    }
}

/// Flows that a smaller table could not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictedFlows {
    /// All evicted flows.
    pub total: u64,
    /// Evicted flows in which a client or backend might still have sent data.
    pub in_use: u64,
}

impl EvictedFlows {
    pub fn add(&mut self, more: Self) {
        self.total = self.total.saturating_add(more.total);
        self.in_use = self.in_use.saturating_add(more.in_use);
    }
}
