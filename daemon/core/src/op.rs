//! Ops: single writes to the maps, as plain values.
//!
//! Invariant: an op has everything that the maps need, and its owner. Only the datapath lays values out in a map.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::keys::{Family, FrontendKey};
use crate::list::{Rows, Scope, Slot, SlotState};
use crate::source_ranges::SourceRange;
use crate::words;

/// A service's index in all tables, stable while the tables have the service or one of its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// A port's index in the `ports` map. Families have separate indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u32);

/// The number of a namespace's quota of shared resources such as the flow table; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaId(pub u16);

/// A contiguous run of slots in one family's backend array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRange {
    /// The family, which selects the array.
    pub family: Family,
    pub base: u32,
    pub count: u32,
}

/// Properties of a list besides its slots: above all the result of an empty list, and which of the two lists a client
/// gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordFlags(u16);

impl WordFlags {
    const NONE: Self = Self(0);
    /// In the cluster word: some backend may be on no node of the cluster, so no client's packets may reach a backend
    /// unchanged.
    pub const OFF_CLUSTER: Self = Self(1 << 9);
    /// The slots are a table: backends have places in proportion to their weights, in no order, and each is also a
    /// member of the list.
    pub const TABLE: Self = Self(1 << 8);
    /// A hash of a client's packets selects its place in the list, as on all other nodes.
    pub const MAGLEV: Self = Self(1 << 7);
    /// An empty list drops (a usable backend exists elsewhere) instead of refusing.
    pub const DROP: Self = Self(1 << 6);
    /// In the cluster word: cluster IPs of this port use the local word.
    pub const INTERNAL_LOCAL: Self = Self(1 << 5);
    /// Clients keep their backend for the timeout in the port's facts.
    pub const AFFINITY: Self = Self(1 << 4);
    /// In the cluster word: traffic from outside uses the local word.
    pub const EXTERNAL_LOCAL: Self = Self(1 << 3);
    /// In the cluster word: every serving backend is a member, so a backend that is no member does not serve.
    pub const MEMBERS: Self = Self(1 << 2);
    /// In the cluster word: load balancer addresses admit only the port's sources.
    pub const SOURCES: Self = Self(1 << 1);
    /// Only when read: another writer set a flag that holdfast never sets, so the word is rewritten.
    pub const UNKNOWN: Self = Self(1);

    /// Adds the other's flags if `on`.
    #[must_use]
    pub const fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { self }
    }

    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Keeps only the flags that send clients to the local word.
    #[must_use]
    pub const fn policy(self) -> Self {
        Self(self.0 & (Self::INTERNAL_LOCAL.0 | Self::EXTERNAL_LOCAL.0))
    }

    /// Keeps only the flags that send clients on: to the local word, or to the sources.
    #[must_use]
    pub const fn redirects(self) -> Self {
        Self(self.policy().0 | self.0 & Self::SOURCES.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One list in the maps: its slots and its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    /// The first slot; 0 if the list is empty.
    pub base: u32,
    /// The number of slots; at most [`BACKENDS_PER_LIST_MAX`](crate::limits::BACKENDS_PER_LIST_MAX). In a table of
    /// [`maglev`](crate::maglev) a backend has many.
    pub count: u32,
    pub flags: WordFlags,
}

impl Word {
    /// Refuses; the word of an unused index.
    pub const EMPTY: Self = Self { base: 0, count: 0, flags: WordFlags::NONE };

    pub const fn range(self, family: Family) -> Option<SlotRange> {
        if self.count == 0 { None } else { Some(SlotRange { family, base: self.base, count: self.count }) }
    }
}

/// Port facts that only some connects read. They omit the port's service, which the daemon finds by the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortFacts {
    /// Seconds; 0: no affinity.
    pub affinity_timeout: u32,
    /// How many trailing bits of a client's address affinity ignores.
    pub ignored_bits: u8,
}

words! {
    /// The type of a frontend's address. The order decides if one service claims an address twice.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum FrontendType {
        /// A cluster IP: follows the internal policy.
        ClusterIp = "ClusterIP",
        /// An ingress IP.
        LoadBalancer = "LoadBalancer",
        ExternalIp = "ExternalIP",
        /// A port of every node.
        NodePort = "NodePort",
        /// An address of a `[[service]]` block.
        Static = "Static",
        /// An address of a ServiceImport: follows the internal policy, and no apiserver allocated it.
        ClusterSetIp = "ClusterSetIP",
    } told [ClusterIp, NodePort, LoadBalancer, ExternalIp, Static, ClusterSetIp]
}

impl FrontendType {
    /// The list that a client of such a frontend gets by the flags of the cluster word; `from_outside`: the external
    /// policy applies to the client.
    pub const fn list_scope(self, flags: WordFlags, from_outside: bool) -> Scope {
        let is_local = if self.is_internal() {
            flags.contains(WordFlags::INTERNAL_LOCAL)
        } else {
            from_outside && flags.contains(WordFlags::EXTERNAL_LOCAL)
        };
        if is_local { Scope::Local } else { Scope::Cluster }
    }

    /// Whether `internalTrafficPolicy` applies to its clients, and not the external one.
    pub const fn is_internal(self) -> bool {
        match self {
            Self::ClusterIp | Self::ClusterSetIp => true,
            Self::LoadBalancer | Self::ExternalIp | Self::NodePort | Self::Static => false,
        }
    }

    /// Whether the author of a Service chose the address, so that authors can claim any number.
    pub const fn is_author_chosen(self) -> bool {
        matches!(self, Self::ExternalIp)
    }

    /// The order in printed tables: ClusterIP, NodePort, LoadBalancer, ExternalIP, Static, ClusterSetIP.
    pub const fn table_order(self) -> u8 {
        match self {
            Self::ClusterIp => 0,
            Self::NodePort => 1,
            Self::LoadBalancer => 2,
            Self::ExternalIp => 3,
            Self::Static => 4,
            Self::ClusterSetIp => 5,
        }
    }
}

/// The value of a frontend in the maps. It is replaced whole, so a frontend that moves to another port is never seen
/// half changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendValue {
    /// The port with its lists.
    pub port: PortIndex,
    /// The type, which selects the policy.
    pub kind: FrontendType,
    /// The quota of its service's namespace, which each client counts against.
    pub quota: QuotaId,
}

/// One map write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes one list of these rows to a range that no word points to: as a table, if the range has more slots than
    /// the list has backends.
    WriteRange(SlotRange, Scope, Arc<Rows>),
    /// Adds a backend as a member of a list, or as one that serves.
    InsertMember(MemberKey, SlotState),
    /// Replaces a list by one aligned store.
    PublishWord(PortIndex, Scope, Word),
    WriteFacts(PortIndex, PortFacts),
    /// Adds a frontend, or moves it to another port.
    InsertFrontend(FrontendKey, FrontendValue),
    /// Removes a frontend. A missing one is no error.
    RemoveFrontend(FrontendKey),
    /// Removes a member. A missing one is no error.
    RemoveMember(MemberKey),
    /// Wipes a range that no reader can see any more.
    FreeRange(SlotRange),
    /// Admits clients from these addresses, if a port has sources.
    InsertSource(SourceKey, QuotaId),
    /// Stops admitting clients from these addresses. A missing source is no error.
    RemoveSource(SourceKey),
    /// Makes a local address serve NodePorts.
    InsertNodeAddress(IpAddr),
    /// Stops a local address from serving NodePorts.
    RemoveNodeAddress(IpAddr),
}

/// What a backend of a port is a member of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Membership {
    /// That list, because its clients have affinity or because it is a table.
    List(Scope),
    /// The serving backends, in a list or not: a client that has a socket to it keeps it.
    Serving,
}

impl Membership {
    pub const ALL: [Self; 3] = [Self::List(Scope::Cluster), Self::List(Scope::Local), Self::Serving];
}

/// A backend of a port as a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    pub port: PortIndex,
    pub membership: Membership,
    pub backend: SocketAddr,
}

/// Clients that a port's load balancer addresses admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    pub port: PortIndex,
    pub range: SourceRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// This service and no other.
    Service(ServiceId),
    /// The node's own addresses.
    Node,
    /// None of these: a range that all readers have left, or a leftover in the maps that no service claims.
    Nobody,
}

/// One map write with its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub owner: Owner,
    pub action: Action,
}

impl Action {
    /// The kind of write, for metrics and errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::WriteRange(..) => "write range",
            Self::InsertMember(..) => "insert member",
            Self::PublishWord(..) => "publish word",
            Self::WriteFacts(..) => "write facts",
            Self::InsertFrontend(..) => "insert frontend",
            Self::RemoveFrontend(..) => "remove frontend",
            Self::RemoveMember(..) => "remove member",
            Self::FreeRange(..) => "free range",
            Self::InsertSource(..) => "insert source",
            Self::RemoveSource(..) => "remove source",
            Self::InsertNodeAddress(..) => "insert node address",
            Self::RemoveNodeAddress(..) => "remove node address",
        }
    }
}

/// Everything in the maps, as read. After a restart this is the realized state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Every frontend, sorted.
    pub frontends: alloc::vec::Vec<(FrontendKey, FrontendValue)>,
    /// Every port index that a frontend points to, sorted.
    pub ports: alloc::vec::Vec<DumpPort>,
    /// Every port index without a frontend that is not wiped, sorted.
    pub orphans: alloc::vec::Vec<PortIndex>,
    /// Every member, sorted.
    pub members: alloc::vec::Vec<(MemberKey, SlotState)>,
    /// Every source, sorted; `None`: these maps store none, because no program would read them.
    pub sources: Option<alloc::vec::Vec<SourceKey>>,
    /// Every node address, sorted.
    pub node_addresses: alloc::vec::Vec<IpAddr>,
}

/// One frontend as read, with its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendEntry {
    pub value: FrontendValue,
    pub port: DumpPort,
}

/// An upper bound of the maps' growth once everything dirty now is written; some of it may be in the maps already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapGrowth {
    /// Frontends of IPv4 and IPv6.
    pub frontends: [u32; 2],
    pub ports: u32,
    /// Slots of IPv4 and IPv6.
    pub slots: [u32; 2],
    pub members: u32,
}

/// A grace period of the maps: it is over once every reader that began before it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grace(pub u64);

/// One port index as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpPort {
    pub index: PortIndex,
    /// The family of the frontends that point to it.
    pub family: Family,
    pub facts: PortFacts,
    /// The cluster word and its slots.
    pub cluster: (Word, alloc::vec::Vec<Slot>),
    /// The local word and its slots.
    pub local: (Word, alloc::vec::Vec<Slot>),
}

impl DumpPort {
    pub const fn word(&self, scope: Scope) -> Word {
        match scope {
            Scope::Cluster => self.cluster.0,
            Scope::Local => self.local.0,
        }
    }

    /// The backends of a list, sorted, each with its number of places: several in a table.
    pub fn backends(&self, scope: Scope) -> BTreeMap<Slot, u32> {
        let (_, slots) = if matches!(scope, Scope::Cluster) { &self.cluster } else { &self.local };
        slots.iter().fold(BTreeMap::new(), |mut backends, slot| {
            let places: &mut u32 = backends.entry(*slot).or_default();
            *places = places.saturating_add(1);
            backends
        })
    }
}
