//! How packets are translated at one moment.
//!
//! Invariant: plain data.

use holdfast_core::keys::Transport;
use holdfast_core::source_ranges::SourceRange;
use holdfast_core::words;

use super::devices::{DeviceStatus, HookKind};

/// How packets are translated at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketStatus {
    /// How many flows there may be; 0: packets are not translated.
    pub flows: u32,
    /// What the programs hang by; `None`: packets are not translated.
    pub hooks: Option<HookKind>,
    /// How many flows there are to be; the table gets that size while clients go on.
    pub flows_wanted: u32,
    /// Why the table does not get that size; it is tried again only by the next start, or after another size was asked
    /// for.
    pub flows_failure: Option<String>,
    /// The flows that found no room when the table was made smaller, since the daemon started.
    pub flows_evicted: EvictedFlows,
    /// Why packets are not translated, or not at all devices, or by programs that are behind.
    pub failure: Option<String>,
    /// Whether programs at devices follow no change: they read tables of before those grew, or are a former daemon's,
    /// because this daemon's programs cannot take their place.
    pub behind: bool,
    /// How often a program was put back that had been taken away from outside.
    pub repaired: u64,
    /// The devices, by their numbers.
    pub devices: Vec<DeviceStatus>,
    /// What the programs are told, as far as this kernel can do it.
    pub switches: PacketSwitches,
}

/// What programs of packets are told when they are loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketSwitches {
    /// The mark on packets sent on for a service, so that a firewall can accept them; 0: none.
    pub forward_mark: u32,
    /// The transports by which clients' packets go to the nodes of their backends as they came.
    pub dsr_transports: DsrTransports,
    /// Networks in which only nodes live, the first sixteen of each family. Packets that others wrapped are taken from
    /// there and from nowhere else; without any none is wrapped.
    pub dsr_from: Vec<SourceRange>,
}

words! {
    /// The transports by which clients' packets go to the nodes of their backends as they came.
    #[derive(Default)]
    pub enum DsrTransports {
        /// None: backends of other nodes answer to this node.
        #[default]
        Off = "off",
        /// TCP alone.
        Tcp = "tcp",
        /// TCP and UDP.
        TcpAndUdp = "all",
    }
}

impl DsrTransports {
    /// Whether packets of that transport do.
    pub const fn contains(self, transport: Transport) -> bool {
        match transport {
            Transport::Tcp => !matches!(self, Self::Off),
            Transport::Udp => matches!(self, Self::TcpAndUdp),
            Transport::Sctp => false,
        }
    }
}

/// Flows that found no room in a smaller table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictedFlows {
    /// All flows that found no room.
    pub total: u64,
    /// Flows among these in which client or backend may have had something to say.
    pub in_use: u64,
}

impl EvictedFlows {
    pub fn add(&mut self, more: Self) {
        self.total = self.total.saturating_add(more.total);
        self.in_use = self.in_use.saturating_add(more.in_use);
    }
}
