//! What readers see: one consistent view of all services, published with each batch.
//!
//! Invariant: a snapshot never changes. It shares everything that did not change with the one before it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::net::IpAddr;
use core::num::NonZeroU16;
use core::time::Duration;

use crate::drains::Drains;
use crate::event::Watched;
use crate::facts::{NodeFacts, ObjectKey, Rejection, ServiceFacts, Settings, SliceFacts, Timestamp};
use crate::hold::Hold;
use crate::index::Seed;
use crate::keys::{ObjectName, PortKey, Protocol, ServiceKey, Source};
use crate::lifecycle::Seen;
use crate::list::{LastList, Row, Rows, Scope};
use crate::op::{FrontendType, PortIndex, ServiceId};
use crate::shared_names::SharedNames;
use crate::shared_vec::SharedVec;
use crate::time::Now;
use crate::weights::Weight;
use crate::words;

words! {
    /// What a new connection to a frontend gets.
    #[derive(PartialOrd, Ord)]
    pub enum Verdict {
        /// A ready backend.
        Serving = "serving",
        /// A backend that is terminating, because no other is left.
        Draining = "draining",
        /// ECONNREFUSED: no backend is usable anywhere.
        Refusing = "refusing",
        /// Nothing: the policy is Local, and all usable backends are elsewhere.
        Dropping = "dropping",
        /// The last list, although the slices no longer have a usable endpoint.
        Held = "held",
        /// Not translated: no backend is there, and the real balancer is to answer.
        Passing = "passing",
        /// Not translated: it is the apiserver's own address.
        Bypassed = "bypassed",
        /// Another service owns this address.
        Conflict = "conflict",
        /// The datapath cannot translate this protocol, or must not translate this address.
        Unprogrammed = "unprogrammed",
    } told [Serving, Draining, Held, Refusing, Dropping, Passing, Bypassed, Conflict, Unprogrammed]
}

words! {
    /// Why a verdict is not `serving`.
    #[derive(PartialOrd, Ord)]
    pub enum Reason {
        /// There never was a usable endpoint.
        NoEndpoints = "no-endpoints",
        /// Endpoints are listed, and none is usable.
        AllUnready = "all-unready",
        /// Every endpoint was seen terminating before it went.
        ScaledDown = "scaled-down",
        /// All endpoints that are listed stand in slices that a label keeps proxies away from.
        Hidden = "hidden",
        /// The endpoints went without a terminating phase.
        Vanished = "vanished",
        /// As above, a short time after its source was interrupted.
        Resync = "resync",
        /// As above, together with many other services.
        MassLoss = "mass-loss",
        /// The list was held as long as it may be.
        HoldExpired = "hold-expired",
        /// The list was held until no backend took a probe.
        ProbesFailed = "probes-failed",
        /// The policy is Local, and no usable endpoint is on this node.
        LocalPolicy = "local-policy",
        /// Another service has the address.
        Claimed = "claimed",
        /// The address is one that no object may have, or an external IP that the configuration does not allow.
        Address = "address",
        /// SCTP where no packets are translated, or a protocol that Kubernetes does not know.
        Protocol = "protocol",
        /// The address is how nodes reach the apiserver.
        Control = "control",
    }
}

/// Whether the maps hold what the rules want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Not yet tried.
    #[default]
    Pending,
    Done,
    /// The last try failed; it is tried again.
    Error(Arc<str>),
}

words! {
    /// Why a service has frontends, or none.
    pub enum ServiceState {
        /// It has frontends.
        Served = "served",
        /// It has no address that could be a frontend.
        NoAddress = "no-address",
        /// Kubernetes calls it `clusterIP: None`.
        Headless = "headless",
        /// A DNS alias.
        ExternalName = "external-name",
        /// The label `service-proxy-name` gives it to another proxy.
        OtherProxy = "other-proxy",
        /// Slices are there, the service is not.
        NoService = "no-service",
    }
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct PortView {
    /// Name, protocol, family.
    pub key: PortKey,
    /// Its place in the maps, once it has one.
    pub index: Option<PortIndex>,
    /// All endpoints, chosen or not.
    pub rows: Arc<Rows>,
    /// Its last list that was not empty.
    pub last: LastList,
    /// The list that is held.
    pub hold: Option<Arc<Hold>>,
    /// Why the last hold ended without a list.
    pub ended: Option<Reason>,
    /// Whether any frontend uses the cluster list.
    pub cluster_used: bool,
    /// Whether any frontend uses the local list.
    pub local_used: bool,
}

words! {
    /// Why an endpoint is in no list.
    pub enum UnusedBecause {
        Unready = "unready",
        /// Going away, while others are ready or it does not serve any more.
        Terminating = "terminating",
        /// Ready, but the hints name other zones or nodes.
        Zone = "zone",
        /// Ready, but on another node, and the policy is Local.
        Remote = "remote",
        /// Ready, but its weight is 0, while others have one.
        Weight = "weight",
        /// Ready, but an operator has drained it, while others take clients.
        Drained = "drained",
    }
}

impl PortView {
    /// The slice that a row was taken from, among the service's own or as the hold remembers it.
    pub fn slice_of<'a>(&'a self, row: &Row, slices: &'a [Arc<SliceFacts>]) -> Option<&'a Arc<SliceFacts>> {
        let held = self.hold.as_ref().filter(|_| row.is_held());
        held.map_or(slices, |hold| &hold.slices).get(usize::from(row.slice))
    }

    /// Why a row of this port is in no list; `None` if it is in one.
    pub fn unused_because(&self, row: &Row) -> Option<UnusedBecause> {
        let conditions = row.conditions();
        let has_weight = self.rows.weight(row.backend()) > Weight::NONE;
        match (row.is_chosen(), conditions.ready, conditions.terminating) {
            (true, ..) => None,
            (_, true, _) if self.rows.weights().is_drained(row.backend()) => Some(UnusedBecause::Drained),
            (_, true, _) if !has_weight => Some(UnusedBecause::Weight),
            (_, true, _) if self.cluster_used => Some(UnusedBecause::Zone),
            (_, true, _) => Some(UnusedBecause::Remote),
            (_, _, true) => Some(UnusedBecause::Terminating),
            (_, _, false) => Some(UnusedBecause::Unready),
        }
    }
}

/// One row of the frontends' table. What is written of it for a restart leaves out what only the maps can say.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FrontendView {
    /// What clients dial; unspecified for a NodePort.
    pub address: IpAddr,
    /// The port that clients dial.
    pub port: NonZeroU16,
    /// As the service says it, also where it is not programmed.
    pub protocol: Protocol,
    /// The kind of address.
    pub kind: FrontendType,
    /// The name of the service's port; empty if unnamed.
    pub port_name: Arc<str>,
    /// Its port among [`ServiceView::ports`]; `None` where nothing can be programmed.
    pub position: Option<usize>,
    /// Which list new connections from this node get.
    pub scope: Scope,
    /// Whether traffic from outside gets the local list.
    pub external_local: bool,
    /// What a new connection gets.
    pub verdict: Verdict,
    /// Why, unless serving.
    pub reason: Option<Reason>,
    /// Whether the maps say so.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub status: Status,
    /// The owner of the address, where it is not this service.
    pub owner: Option<ServiceKey>,
    /// What the maps still serve here, where that is not what the port's rows say (yet).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub applied: Option<Arc<Rows>>,
    /// Since when verdict, reason and lists are as they are.
    pub since: Timestamp,
}

/// One service with all that is known of it.
#[derive(Clone, Debug)]
pub struct ServiceView {
    pub key: ServiceKey,
    /// What the object says; `None` while only slices are known.
    pub facts: Option<Arc<ServiceFacts>>,
    /// Its own slices, by name.
    pub slices: Arc<[Arc<SliceFacts>]>,
    /// Why it has frontends, or none.
    pub state: ServiceState,
    /// Its ports, in the order of their keys.
    pub ports: Box<[PortView]>,
    /// Its frontends, in the order of the table.
    pub frontends: Box<[FrontendView]>,
    /// What this node saw of its load balancer, where it has one.
    pub seen: Option<Box<Seen>>,
}

impl ServiceView {
    /// How many bytes it takes in memory, but for what it shares with the tables.
    pub fn bytes(&self) -> usize {
        let rows = self.ports.iter().map(|port| size_of::<PortView>() + port.rows.bytes());
        size_of::<Self>() + rows.sum::<usize>() + self.frontends.len() * size_of::<FrontendView>()
    }

    /// The list that this node's own processes and pods get at a frontend: none unless the verdict gives one.
    pub fn backends<'a>(&'a self, frontend: &'a FrontendView) -> impl Iterator<Item = Row> + use<'a> {
        let scope = frontend.scope;
        let rows: Option<&Rows> = match &frontend.applied {
            Some(applied) => Some(applied),
            None => self.rows(frontend).map(Arc::as_ref),
        };
        rows.into_iter().flat_map(move |rows| rows.list(scope))
    }

    /// The list that outside traffic gets, where it is not the list that this node itself gets.
    pub fn external_backends<'a>(
        &'a self,
        frontend: &FrontendView,
    ) -> Option<impl Iterator<Item = Row> + use<'a>> {
        let rows = self.rows(frontend).filter(|_| frontend.external_local)?;
        let same = rows.same_list(frontend.scope, rows, Scope::Local);
        (!same).then(|| rows.list(Scope::Local))
    }

    /// The rows that a frontend's lists are read off, if its verdict gives it any.
    pub(crate) fn rows(&self, frontend: &FrontendView) -> Option<&Arc<Rows>> {
        match frontend.verdict {
            Verdict::Serving | Verdict::Draining | Verdict::Held | Verdict::Refusing | Verdict::Dropping => {
                self.ports.get(frontend.position?).map(|port| &port.rows)
            }
            Verdict::Passing | Verdict::Bypassed | Verdict::Conflict | Verdict::Unprogrammed => None,
        }
    }
}

/// Everything that rejected itself, named up to a bound.
#[derive(Clone, Debug, Default)]
pub struct Rejections {
    /// The named ones.
    pub named: BTreeMap<ObjectKey, Rejection>,
    /// How many more are rejected now.
    pub more: usize,
    /// How many objects wait for room; each of them is rejected until it has it.
    pub waiting: usize,
    /// How many rejections since the start had no room by name when they came.
    pub dropped: u64,
    /// How many rejections there were since the start.
    pub total: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches that were applied.
    pub batches: u64,
    /// Events that were applied.
    pub events: u64,
    /// Ops that the maps accepted.
    pub ops: u64,
    /// Ops that the maps refused.
    pub ops_failed: u64,
    /// Ops that were not even tried because their owner was not dirty. Must stay 0.
    pub cross_service: u64,
    /// Steps that the rules left out because what they were about was not there, though it always is. Must stay 0.
    pub impossible: u64,
    /// Things in the maps that another writer had changed.
    pub drift: u64,
    /// Change records that were made.
    pub changes: u64,
    /// Change records for which the recorder had no room.
    pub changes_dropped: u64,
}

/// How full the maps are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Frontends in the maps.
    pub frontends: usize,
    /// Port indices in use, those in their grace period included.
    pub ports: usize,
    /// Slots of IPv4 and IPv6 in use, in whole blocks.
    pub slots: [u64; 2],
    /// Services waiting for another try.
    pub retries: usize,
}

/// How a comparison of the maps with what was written to them went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    pub at: Timestamp,
    /// Things that another writer had changed.
    pub differences: usize,
}

/// All services, by their ids and by their names; cheap to copy.
#[derive(Clone, Debug, Default)]
pub struct ServiceViews {
    views: SharedVec<Arc<ServiceView>>,
    names: SharedNames,
}

impl ServiceViews {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { views: SharedVec::default(), names: SharedNames::new(seed) }
    }

    pub fn get(&self, id: ServiceId) -> Option<&Arc<ServiceView>> {
        self.views.get(id.0 as usize)
    }

    /// All services, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServiceView>> {
        self.views.iter()
    }

    /// The services of exactly this name, one for each source that has it.
    pub fn named(&self, name: &ObjectName) -> impl Iterator<Item = &Arc<ServiceView>> {
        let near = self.names.near(name).iter().filter_map(|id| self.get(*id));
        near.filter(move |view| view.key.name == *name)
    }

    /// Whether one is an unchanged clone of the other. If not, they may say the same all the same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.views.is_same(&other.views)
    }

    /// Sets a service's view, or takes it away.
    pub fn set(&mut self, id: ServiceId, view: Option<Arc<ServiceView>>) {
        let before = self.get(id).cloned();
        let [old, new] = [&before, &view].map(|view| view.as_ref().map(|view| &view.key.name));
        if old != new {
            old.inspect(|name| self.names.remove(name, id));
            new.inspect(|name| self.names.add(name, id));
        }
        self.views.set(id.0 as usize, view);
    }
}

/// One consistent view of everything.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All services that are known, in no meaningful order.
    pub services: ServiceViews,
    /// How often each source was asked to tell everything once more, because something that it told found no room.
    pub asks: BTreeMap<Source, u64>,
    /// Everything that rejected itself.
    pub rejections: Arc<Rejections>,
    /// The own node.
    pub node: Arc<NodeFacts>,
    /// The settings in force.
    pub settings: Arc<Settings>,
    /// The drains in force.
    pub drains: Arc<Drains>,
    /// Sources that must deliver before anything is removed, and whether they have.
    pub sources: BTreeMap<Source, bool>,
    /// Services of which some list is held.
    pub held: Arc<BTreeSet<ServiceId>>,
    /// Up to which version of the apiserver each kind is known.
    pub progress: BTreeMap<Watched, Arc<str>>,
    /// When the sources last confirmed to a former process what is shown; `None` once every source has delivered to
    /// this one.
    pub stale_since: Option<Timestamp>,
    /// Whether the maps follow the rules: from the first whole list on, or from what was remembered.
    pub programmed: bool,
    /// Counters since the start.
    pub counters: Counters,
    /// How full the maps are.
    pub fill: Fill,
    /// The last comparison of the maps with what was written, once there was one.
    pub checked: Option<Checked>,
    /// When it was published.
    pub published: Timestamp,
    /// When it was published, on the clock that holds are counted on.
    pub mono: Duration,
}

impl Snapshot {
    /// Whether every source has delivered.
    pub fn is_synced(&self) -> bool {
        !self.sources.is_empty() && self.sources.values().all(|synced| *synced)
    }

    /// Whether the snapshot says anything that the one before did not, beyond the time and that the engine still runs.
    pub fn is_news_after(&self, before: &Self) -> bool {
        let Self { services, asks, rejections, node, settings, drains, sources, held, progress, .. } = self;
        let shares_all = services.is_same(&before.services)
            && Arc::ptr_eq(rejections, &before.rejections)
            && Arc::ptr_eq(node, &before.node)
            && Arc::ptr_eq(settings, &before.settings)
            && Arc::ptr_eq(drains, &before.drains)
            && Arc::ptr_eq(held, &before.held);
        let counters = Counters { batches: before.counters.batches, ..self.counters };
        let is_as_it_was = (asks, sources, progress) == (&before.asks, &before.sources, &before.progress)
            && (self.stale_since, self.programmed) == (before.stale_since, before.programmed)
            && (counters, self.fill, self.checked) == (before.counters, before.fill, before.checked);
        !(shares_all && is_as_it_was)
    }

    /// When it was published, on both clocks.
    pub const fn clock(&self) -> Now {
        Now { wall: self.published, mono: self.mono }
    }

    /// When a hold ends at the latest, by the wall clock as it stands.
    pub fn hold_until(&self, hold: &Hold) -> Option<Timestamp> {
        hold.until(&self.settings.hold).map(|until| self.clock().wall_at(until))
    }

    /// When the sources last confirmed what it says: a process that only remembered confirms nothing, however long it
    /// ran.
    pub fn confirmed(&self) -> Timestamp {
        self.stale_since.unwrap_or(self.published)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;
    use crate::weights::OfBackends;

    fn view(number: usize, source: Source) -> Arc<ServiceView> {
        let name = ObjectName::new("default", &format!("service-{number}")).unwrap();
        Arc::new(ServiceView {
            key: ServiceKey { name, source },
            facts: None,
            slices: Arc::default(),
            state: ServiceState::NoService,
            ports: Box::default(),
            frontends: Box::default(),
            seen: None,
        })
    }

    #[test]
    fn invariant_10_the_weights_of_its_backends_count_as_bytes_of_a_view() {
        let bytes = |weight| {
            let weight = Weight::new(weight).unwrap();
            let row = |number: u32| {
                let address = core::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into();
                Row::new(address, NonZeroU16::MIN, crate::facts::Conditions::READY, 0, 0)
            };
            let rows: Vec<_> = (0..1_000).map(row).collect();
            let weights = OfBackends::new(rows.iter().map(|row| (row.backend(), weight)));
            let rows = Arc::new(Rows::remembered(&rows).unwrap().weighted(weights));
            let port = PortView {
                key: PortKey {
                    name: "".into(),
                    transport: crate::keys::Transport::Tcp,
                    family: crate::keys::Family::V4,
                },
                index: None,
                rows,
                last: LastList::default(),
                hold: None,
                ended: None,
                cluster_used: true,
                local_used: false,
            };
            let ports = alloc::vec![port].into();
            ServiceView { ports, ..ServiceView::clone(&view(0, Source::Manifests)) }.bytes()
        };
        assert_eq!(bytes(2) - bytes(1), 1_000 * size_of::<(core::net::SocketAddr, Weight)>());
    }

    /// More names than places, each set, taken away or replaced by another one again and again.
    #[test]
    fn what_is_found_by_a_name_is_what_a_walk_finds() {
        let mut views = ServiceViews::new(Seed(7));
        let mut before = views.clone();
        for turn in 0..60_000_usize {
            let (id, number) = (turn * 7 % 9_000, turn * 13 % 10_000);
            let source = Source::ALL[turn % Source::ALL.len()];
            views.set(ServiceId(id.try_into().unwrap()), (turn % 5 > 0).then(|| view(number, source)));
            if turn % 997 == 0 {
                let name = &view(number, source).key.name;
                let by_walk = |views: &ServiceViews| {
                    views.iter().filter(|view| view.key.name == *name).map(Arc::as_ptr).collect::<Vec<_>>()
                };
                let found = |views: &ServiceViews| views.named(name).map(Arc::as_ptr).collect::<Vec<_>>();
                assert_eq!(found(&views), by_walk(&views), "turn {turn}");
                assert_eq!(
                    found(&before),
                    by_walk(&before),
                    "turn {turn}: a clone never sees a later change"
                );
                before = views.clone();
            }
        }
    }
}
