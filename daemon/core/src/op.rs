//! Ops: single writes to the maps, as plain values.
//!
//! Invariant: an op says all that the maps need, and its owner. How a value is laid out in a map is known to the
//! datapath alone.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::keys::{Family, FrontendKey};
use crate::list::{Rows, Scope, Slot, SlotState};
use crate::source_ranges::SourceRange;
use crate::words;

/// A service's place in all tables, stable while the service or any of its slices is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// A port's place in the `ports` map. Families have indices of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u32);

/// The number by which a service's namespace has its share of what all services use up, like the table of flows; 0: of
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaId(pub u16);

/// A contiguous run of slots in one family's backend array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRange {
    /// The family, hence the array.
    pub family: Family,
    /// The first slot.
    pub base: u32,
    /// How many slots are in use; at least 1.
    pub count: u32,
}

/// What holds for the clients of a list beside its slots: above all what an empty list tells them, and which of the two
/// lists they get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordFlags(u16);

impl WordFlags {
    const NONE: Self = Self(0);
    /// In the cluster word: some backend may be on no node of the cluster, so no client's packets go to one as they
    /// came.
    pub const OFF_CLUSTER: Self = Self(1 << 9);
    /// The slots are a table: backends have as many places as their shares are large, in no order, and each is a member
    /// of the list, too.
    pub const TABLE: Self = Self(1 << 8);
    /// A client that is known by its packets has its place in the list computed, as on all other nodes.
    pub const MAGLEV: Self = Self(1 << 7);
    /// An empty list drops (a usable backend exists elsewhere) instead of refusing.
    pub const DROP: Self = Self(1 << 6);
    /// In the cluster word: cluster IPs of this port use the local word.
    pub const INTERNAL_LOCAL: Self = Self(1 << 5);
    /// Clients stick to their backend for the time in the port's facts.
    pub const AFFINITY: Self = Self(1 << 4);
    /// In the cluster word: traffic from outside uses the local word.
    pub const EXTERNAL_LOCAL: Self = Self(1 << 3);
    /// In the cluster word: every serving backend is a member, so a backend that is no member does not serve.
    pub const MEMBERS: Self = Self(1 << 2);
    /// In the cluster word: load-balancer addresses are for the sources of the port alone.
    pub const SOURCES: Self = Self(1 << 1);
    /// Read from the maps only: another writer set a flag that no rule sets, so the word is written anew.
    pub const UNKNOWN: Self = Self(1);

    /// With the other's flags as well, if that is `on`.
    #[must_use]
    pub const fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { self }
    }

    /// Without the other's flags.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Only the flags that send clients to the local word.
    #[must_use]
    pub const fn policy(self) -> Self {
        Self(self.0 & (Self::INTERNAL_LOCAL.0 | Self::EXTERNAL_LOCAL.0))
    }

    /// Only the flags that have clients look further: at the local word, or at the sources.
    #[must_use]
    pub const fn redirects(self) -> Self {
        Self(self.policy().0 | self.0 & Self::SOURCES.0)
    }

    /// Whether all flags of the other are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One list as the kernel finds it: where it begins, how long it is, and what else holds for its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    /// The first slot; 0 when the list is empty.
    pub base: u32,
    /// How many slots; at most [`BACKENDS_PER_LIST_MAX`](crate::limits::BACKENDS_PER_LIST_MAX). In a table of
    /// [`maglev`](crate::maglev) a backend has many.
    pub count: u32,
    /// What else holds for clients of the list.
    pub flags: WordFlags,
}

impl Word {
    /// Refuses; what an index that was never used says.
    pub const EMPTY: Self = Self { base: 0, count: 0, flags: WordFlags::NONE };

    /// Its slots, if it has any.
    pub const fn range(self, family: Family) -> Option<SlotRange> {
        if self.count == 0 { None } else { Some(SlotRange { family, base: self.base, count: self.count }) }
    }
}

/// Facts of a port that only some connects read. The port's service is not kept here: the daemon finds it by the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortFacts {
    /// Seconds; 0: no affinity.
    pub affinity_timeout: u32,
    /// How many last bits of a client's address do not count for affinity.
    pub ignored_bits: u8,
}

words! {
    /// What kind of address a frontend is. The order decides when one service claims an address twice.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum FrontendType {
        /// A cluster IP: obeys the internal policy.
        ClusterIp = "ClusterIP",
        /// An ingress IP.
        LoadBalancer = "LoadBalancer",
        /// An external IP.
        ExternalIp = "ExternalIP",
        /// A port of every node.
        NodePort = "NodePort",
        /// An address of a `[[service]]` block.
        Static = "Static",
        /// An address of a ServiceImport: obeys the internal policy, and no apiserver gave it out.
        ClusterSetIp = "ClusterSetIP",
    } told [ClusterIp, NodePort, LoadBalancer, ExternalIp, Static, ClusterSetIp]
}

impl FrontendType {
    /// The list that the flags of the cluster word give a client of such a frontend; `from_outside`: the external
    /// policy binds the client.
    pub const fn list_scope(self, flags: WordFlags, from_outside: bool) -> Scope {
        let is_local = if self.is_internal() {
            flags.contains(WordFlags::INTERNAL_LOCAL)
        } else {
            from_outside && flags.contains(WordFlags::EXTERNAL_LOCAL)
        };
        if is_local { Scope::Local } else { Scope::Cluster }
    }

    /// Whether `internalTrafficPolicy` binds its clients, and not the external one.
    pub const fn is_internal(self) -> bool {
        match self {
            Self::ClusterIp | Self::ClusterSetIp => true,
            Self::LoadBalancer | Self::ExternalIp | Self::NodePort | Self::Static => false,
        }
    }

    /// Whether the author of a Service chose the address, so that there may be as many as authors like.
    pub const fn is_author_chosen(self) -> bool {
        matches!(self, Self::ExternalIp)
    }

    /// The place in tables: ClusterIP, NodePort, LoadBalancer, ExternalIP, Static, ClusterSetIP.
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

/// What the frontend map says of a key. It is replaced as a whole, so no client meets half of a frontend that moves to
/// another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendValue {
    /// Where its lists are.
    pub port: PortIndex,
    /// Which policy it obeys.
    pub kind: FrontendType,
    /// The number of its service's namespace. Each client uses a part of that namespace's share.
    pub quota: QuotaId,
}

/// One map write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes the slots of one list of these rows to a range that no word points to: a range with more slots than the
    /// list has backends gets them as a table.
    WriteRange(SlotRange, Scope, Arc<Rows>),
    /// Makes a backend known as a member of a list, or as one that serves.
    InsertMember(MemberKey, SlotState),
    /// Replaces a list by one aligned store.
    PublishWord(PortIndex, Scope, Word),
    /// Writes a port's facts.
    WriteFacts(PortIndex, PortFacts),
    /// Makes a frontend known, or moves it to another port.
    InsertFrontend(FrontendKey, FrontendValue),
    /// Forgets a frontend. Forgetting one that is not there is no error.
    RemoveFrontend(FrontendKey),
    /// Forgets a member. Forgetting one that is not there is no error.
    RemoveMember(MemberKey),
    /// Wipes a range that no reader can see any more.
    FreeRange(SlotRange),
    /// Lets clients of these addresses in, where a port has sources.
    InsertSource(SourceKey, QuotaId),
    /// No longer lets clients of these addresses in. Forgetting a source that is not there is no error.
    RemoveSource(SourceKey),
    /// Makes a local address answer NodePorts.
    InsertNodeAddress(IpAddr),
    /// Makes a local address no longer answer NodePorts.
    RemoveNodeAddress(IpAddr),
}

/// What a backend of a port is known for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Membership {
    /// It is in that list, which clients with affinity ask for, or which is a table.
    List(Scope),
    /// It serves, in a list or not: a client that talks to it over a socket keeps it.
    Serving,
}

impl Membership {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::List(Scope::Cluster), Self::List(Scope::Local), Self::Serving];
}

/// A backend of a port, and what it is known for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    pub port: PortIndex,
    pub membership: Membership,
    pub backend: SocketAddr,
}

/// Clients that a port's load-balancer addresses are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    pub port: PortIndex,
    pub range: SourceRange,
}

/// What an op is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// This service and no other.
    Service(ServiceId),
    /// The node's own addresses.
    Node,
    /// None of these: a range that all readers have left, or something found in the maps that no service claims.
    Nobody,
}

/// One map write with its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// What the op is done for.
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

/// All that the maps hold, read back. What a restart finds is what was realized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Every frontend, sorted.
    pub frontends: alloc::vec::Vec<(FrontendKey, FrontendValue)>,
    /// Every port index that a frontend points to, sorted.
    pub ports: alloc::vec::Vec<DumpPort>,
    /// Every port index that no frontend points to, but that is not wiped, sorted.
    pub orphans: alloc::vec::Vec<PortIndex>,
    /// Every member, sorted.
    pub members: alloc::vec::Vec<(MemberKey, SlotState)>,
    /// Every source, sorted; `None`: these maps keep none, because no program would read them.
    pub sources: Option<alloc::vec::Vec<SourceKey>>,
    /// Every node address, sorted.
    pub node_addresses: alloc::vec::Vec<IpAddr>,
}

/// One frontend, read back with all that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendEntry {
    /// What the frontend map says.
    pub value: FrontendValue,
    /// The port that it leads to.
    pub port: DumpPort,
}

/// How much more the maps will hold at most when what is dirty now has been written; some of it may have its place
/// already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapGrowth {
    /// Frontends of IPv4 and IPv6.
    pub frontends: [u32; 2],
    pub ports: u32,
    /// Slots of IPv4 and IPv6.
    pub slots: [u32; 2],
    pub members: u32,
}

/// Names a grace period that the maps began: over once every reader has left that began before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grace(pub u64);

/// One port index, read back.
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
    /// The word of a list.
    pub const fn word(&self, scope: Scope) -> Word {
        match scope {
            Scope::Cluster => self.cluster.0,
            Scope::Local => self.local.0,
        }
    }

    /// The backends of a list, sorted, each with how many places it has: in a table of many.
    pub fn backends(&self, scope: Scope) -> BTreeMap<Slot, u32> {
        let (_, slots) = if matches!(scope, Scope::Cluster) { &self.cluster } else { &self.local };
        slots.iter().fold(BTreeMap::new(), |mut backends, slot| {
            let places: &mut u32 = backends.entry(*slot).or_default();
            *places = places.saturating_add(1);
            backends
        })
    }
}
