//! One service's place between the rules and the maps: what is desired, and what the maps accepted.
//!
//! Invariant: `realized` says something else only after the maps accepted an op. What a failed op may have done anyway
//! is kept as `uncertain` until a later op settles it.

mod members;
mod phase;
mod port_rename;
mod row_quota;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::change::Cause;
use crate::claims::reservations::ServiceReservations;
use crate::claims::{ClaimRequest, Rank};
use crate::facts::{AddressType, ServiceFacts, SliceFacts};
use crate::hold::{EmptyList, Hold, HoldContext, ListHistory, ListPresence, OnEmpty};
use crate::keys::{FrontendKey, PortKey};
use crate::limits;
use crate::list::{Row, Rows, Scope, SlotState};
use crate::maglev;
use crate::op::{FrontendType, Membership, PortFacts, PortIndex, SlotRange, Word, WordFlags};
use crate::resolve::{DesiredFrontend, DesiredService, PortPolicy, weighting};
use crate::small_set::SmallSet;
use crate::snapshot::{ServiceState, ServiceView, Status};
use crate::source_ranges::{SourceRange, SourceRanges};
use crate::weights::BackendWeights;
use crate::work;
pub(crate) use phase::{FactsOrigin, Freshness, Phase, StartupWrite};

/// How far the plan of a service that is too heavy for one piece has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) ports: usize,
    pub(crate) frontends: usize,
}

/// What the maps hold of one list.
#[derive(Clone, Debug, Default)]
pub(crate) struct RealizedList {
    pub(crate) word: Word,
    /// The list that the word's range holds.
    pub(crate) rows: Arc<Rows>,
    /// What readers see is not known: publishing failed, so that they may see one of `suspects` instead of `word`, or a
    /// start could not take over what it found.
    pub(crate) uncertain: bool,
    pub(crate) suspects: Vec<SlotRange>,
}

impl RealizedList {
    fn empty(nothing: &Arc<Rows>) -> Self {
        Self { word: Word::EMPTY, rows: Arc::clone(nothing), uncertain: false, suspects: Vec::new() }
    }
}

/// What the maps hold of one port.
#[derive(Clone, Debug, Default)]
pub(crate) struct RealizedPort {
    pub(crate) cluster: RealizedList,
    pub(crate) local: RealizedList,
    /// `None`: the facts may be anything, because a write failed or a start did not read them.
    pub(crate) facts: Option<PortFacts>,
    pub(crate) members: BTreeMap<(Membership, SocketAddr), SlotState>,
    /// A write failed, so these may be there or not.
    pub(crate) uncertain_members: BTreeSet<(Membership, SocketAddr)>,
    pub(crate) sources: BTreeSet<SourceRange>,
    /// A write failed, so these may be there or not either.
    pub(crate) uncertain_sources: BTreeSet<SourceRange>,
}

impl RealizedPort {
    /// The state of an index that was never used, or was wiped.
    pub(crate) fn empty(nothing: &Arc<Rows>) -> Self {
        Self {
            cluster: RealizedList::empty(nothing),
            local: RealizedList::empty(nothing),
            facts: Some(PortFacts::default()),
            members: BTreeMap::new(),
            uncertain_members: BTreeSet::new(),
            sources: BTreeSet::new(),
            uncertain_sources: BTreeSet::new(),
        }
    }

    pub(crate) fn list(&self, scope: Scope) -> &RealizedList {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }

    pub(crate) fn list_mut(&mut self, scope: Scope) -> &mut RealizedList {
        match scope {
            Scope::Cluster => &mut self.cluster,
            Scope::Local => &mut self.local,
        }
    }

    /// Whether nothing is left of the port in the maps.
    pub(crate) fn is_wiped(&self) -> bool {
        let wiped = |list: &RealizedList| list.word == Word::EMPTY && !list.uncertain;
        wiped(&self.cluster)
            && wiped(&self.local)
            && self.facts == Some(PortFacts::default())
            && self.members.is_empty()
            && self.uncertain_members.is_empty()
            && self.sources.is_empty()
            && self.uncertain_sources.is_empty()
    }
}

/// One port of a service, desired or still in the maps.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) key: PortKey,
    pub(crate) index: Option<PortIndex>,
    pub(crate) rows: Arc<Rows>,
    pub(crate) policy: PortPolicy,
    /// The clients that its load-balancer addresses are for; `None`: all.
    pub(crate) sources: Option<SourceRanges>,
    pub(crate) history: ListHistory,
    /// For how many rows it counts: the block of what it lists, or of its last list.
    pub(crate) counted: usize,
    /// Which of its lists stand as tables, the cluster list first.
    pub(crate) tables: [bool; 2],
    /// The last backend of each list that is a member, the cluster list first, where there is no room for more; `None`:
    /// all are.
    pub(crate) member_ends: [Option<SocketAddr>; 2],
    /// Whether backends that are in no list, and keep the clients they have, are members where the port has members.
    pub(crate) has_other_members: bool,
    pub(crate) realized: RealizedPort,
}

/// What was decided for a port.
struct Decision {
    rows: Vec<Row>,
    weights: BackendWeights,
    policy: PortPolicy,
}

impl Port {
    /// A port of which nothing is known yet. `nothing`: rows that are none, which all such ports share.
    pub(crate) fn new(key: PortKey, nothing: &Arc<Rows>) -> Self {
        Self {
            key,
            index: None,
            rows: Arc::clone(nothing),
            policy: PortPolicy::default(),
            sources: None,
            history: ListHistory::default(),
            counted: 0,
            tables: [false; 2],
            member_ends: [None; 2],
            has_other_members: true,
            realized: RealizedPort::empty(nothing),
        }
    }

    /// Forgets its lists, which were those of another Service of that name.
    fn forget_lists(&mut self, nothing: &Arc<Rows>) {
        (self.rows, self.history, self.counted) = (Arc::clone(nothing), ListHistory::default(), 0);
    }

    /// Takes a new decision in, and so many of its rows. A list that would become empty is judged first, by all rows.
    fn apply_decision(&mut self, decision: Decision, most: usize, case: &HoldContext<'_>) {
        let Decision { mut rows, mut weights, policy } = decision;
        let has_list = rows.iter().any(Row::is_chosen);
        self.policy = policy;
        if has_list {
            self.history.release();
        } else {
            let empty = EmptyList {
                listed: &rows,
                transport: self.key.transport,
                had_list: self.rows.has_any_list(),
                has_remote_backend: policy.has_usable_backend,
            };
            self.history.judge_empty(empty, case);
        }
        row_quota::truncate_rows(&mut rows, &mut weights, most, &self.rows);
        let listed = rows.len();
        if !has_list {
            (rows, weights) = self.held_rows(self.history.merge_held(rows, policy), case);
        }
        // As long as the former list is held, its backends count as usable ones that exist somewhere.
        self.policy.has_usable_backend |= self.history.hold.is_some();
        let rows = Rows::new(rows, &self.rows, case.now.wall).with_weights(weights);
        // An equal list keeps its identity, so that every reader shares it.
        if rows != *self.rows {
            self.rows = Arc::new(rows);
        }
        if has_list {
            self.history.last.record_list(&self.rows);
        }
        self.counted = listed.max(self.history.last.row_count()).next_power_of_two().min(most);
        self.share_rows();
    }

    /// Has what the maps hold of the same lists keep no rows of its own: those of before may have been many more.
    fn share_rows(&mut self) {
        let Self { rows, realized, .. } = self;
        for scope in Scope::ALL {
            let list = realized.list_mut(scope);
            if !list.uncertain
                && !Arc::ptr_eq(&list.rows, rows)
                && rows.has_same_list(scope, &list.rows, scope)
            {
                list.rows = Arc::clone(rows);
            }
        }
    }

    /// The rows of a list that is held, or empty. It keeps its weights, so that a hold writes nothing to the maps when
    /// it begins; the operator's drains are of this moment.
    fn held_rows(&self, mut rows: Vec<Row>, case: &HoldContext<'_>) -> (Vec<Row>, BackendWeights) {
        let drained = weighting::drained_backends(rows.iter().map(Row::backend), &case.key.name, case.drains);
        let weights = self.rows.weights().clone().with_drained(drained);
        weighting::drop_weightless(&mut rows, &weights);
        (rows, weights)
    }

    /// Whether no usable endpoint is there, on this node or another, but for those of a list that is held.
    fn has_no_backend(&self) -> bool {
        self.history.hold.is_some() || !self.policy.has_usable_backend
    }

    /// How many slots the list takes where there is room for its table: one by Maglev has one, and one of backends with
    /// different weights.
    pub(crate) fn desired_places(&self, scope: Scope) -> u32 {
        let backends = self.rows.len(scope);
        let has_table = self.uses_maglev(scope) || !self.rows.is_even(scope);
        if has_table { maglev::table_size(backends) } else { backends }
    }

    /// What its lists are to a piece: each endpoint that is looked at, and the places that may be written.
    pub(crate) fn work(&self) -> u64 {
        let places: u64 = Scope::ALL.map(|scope| u64::from(self.desired_places(scope))).into_iter().sum();
        self.rows.iter().len() as u64 + places / limits::PLACES_PER_SLOT
    }

    /// Whether all nodes compute the same backend for a client. They do so with one backend too, and the list says so:
    /// only then a node that has never heard of a connection sends its packets on.
    fn uses_maglev(&self, scope: Scope) -> bool {
        self.policy.maglev && scope == Scope::Cluster && self.rows.len(scope) > 0
    }

    /// Whether the list stands in the maps as a table, or does when what is planned is written.
    pub(crate) const fn is_table(&self, scope: Scope) -> bool {
        let [cluster, local] = self.tables;
        match scope {
            Scope::Cluster => cluster,
            Scope::Local => local,
        }
    }

    /// Notes as what the list is to stand in the maps.
    pub(crate) const fn set_table(&mut self, scope: Scope, is_table: bool) {
        let [cluster, local] = &mut self.tables;
        match scope {
            Scope::Cluster => *cluster = is_table,
            Scope::Local => *local = is_table,
        }
    }

    /// Whether the maps certainly hold the list in so many places.
    pub(crate) fn is_realized_in(&self, scope: Scope, places: u32) -> bool {
        let list = self.realized.list(scope);
        !list.uncertain && list.word.count == places && self.rows.has_same_list(scope, &list.rows, scope)
    }

    /// The lists that would be tables if there were room, each with its places.
    pub(crate) fn missing_tables(&self) -> impl Iterator<Item = (Scope, u32)> {
        let lacks = |scope: &Scope| self.uses_list(*scope) && !self.is_table(*scope);
        let of_each = Scope::ALL.into_iter().filter(lacks).map(|scope| (scope, self.desired_places(scope)));
        of_each.filter(|(scope, places)| *places > self.rows.len(*scope))
    }

    /// What the word of a list should say beside its range.
    pub(crate) fn flags(&self, scope: Scope) -> WordFlags {
        let policy = self.policy;
        let affinity = WordFlags::default().with(WordFlags::AFFINITY, policy.affinity_timeout > 0);
        match scope {
            Scope::Cluster => affinity
                .with(WordFlags::MAGLEV, self.uses_maglev(scope))
                .with(WordFlags::MEMBERS, policy.keeps_members)
                .with(WordFlags::OFF_CLUSTER, self.has_off_cluster_backend())
                .with(WordFlags::SOURCES, self.sources.is_some())
                .with(WordFlags::INTERNAL_LOCAL, policy.internal_local)
                .with(WordFlags::EXTERNAL_LOCAL, policy.external_local),
            Scope::Local if policy.local_used => affinity.with(WordFlags::DROP, policy.has_usable_backend),
            Scope::Local => WordFlags::default(),
        }
    }

    /// Whether a backend of the cluster list may be on no node. Of a list that is held no slice says that any more: the
    /// maps do, if they have it.
    fn has_off_cluster_backend(&self) -> bool {
        let there = self.realized.cluster.word;
        let is_known = self.history.hold.is_some() && there.count > 0;
        self.policy.has_off_cluster_backend && (!is_known || there.flags.contains(WordFlags::OFF_CLUSTER))
    }

    /// The flags of the word as long as clients of a frontend that has left may still read it. What none of the
    /// service's own frontends needs stays as it was for those clients: all flags of a list that is not used, how
    /// clients find their place in it, where its backends are, the way for clients from outside where no frontend is
    /// for them, the sources where no frontend is a load-balancer address.
    pub(crate) fn transitional_flags(&self, scope: Scope) -> WordFlags {
        let before = self.realized.list(scope).word.flags;
        match scope {
            Scope::Local if !self.uses_list(scope) => before.without(WordFlags::UNKNOWN),
            Scope::Cluster => {
                let stays = |flag, unused: bool| unused && before.contains(flag);
                self.flags(scope)
                    .with(WordFlags::MAGLEV, stays(WordFlags::MAGLEV, !self.policy.cluster_used))
                    .with(WordFlags::OFF_CLUSTER, stays(WordFlags::OFF_CLUSTER, !self.policy.cluster_used))
                    .with(
                        WordFlags::EXTERNAL_LOCAL,
                        stays(WordFlags::EXTERNAL_LOCAL, !self.policy.has_external_frontend),
                    )
                    .with(WordFlags::SOURCES, stays(WordFlags::SOURCES, !self.policy.has_lb_frontend))
            }
            Scope::Local => self.flags(scope),
        }
    }

    /// The clients that its load-balancer addresses are for.
    pub(crate) fn sources(&self) -> &[SourceRange] {
        self.sources.as_deref().unwrap_or_default()
    }

    /// Whether the maps certainly let this source in.
    pub(crate) fn has_realized_source(&self, range: &SourceRange) -> bool {
        let realized = &self.realized;
        realized.sources.contains(range) && !realized.uncertain_sources.contains(range)
    }

    /// Whether any of the service's own frontends reads that list.
    pub(crate) fn uses_list(&self, scope: Scope) -> bool {
        match scope {
            Scope::Cluster => self.policy.cluster_used,
            Scope::Local => self.policy.local_used,
        }
    }

    pub(crate) fn facts(&self) -> PortFacts {
        PortFacts { affinity_timeout: self.policy.affinity_timeout, ignored_bits: self.policy.ignored_bits }
    }
}

/// Whether the name was given up and taken anew between two decisions, or while no process ran: then nothing says that
/// the one in between is gone.
fn is_recreated(before: Option<&ServiceFacts>, now: Option<&ServiceFacts>) -> bool {
    let uid = |facts: Option<&ServiceFacts>| facts?.meta.uid.clone();
    matches!((uid(before), uid(now)), (Some(before), Some(now)) if before != now)
}

/// One service between the rules and the maps.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: ServiceState,
    /// What the ports were decided from.
    pub(crate) facts: Option<Arc<ServiceFacts>>,
    pub(crate) rank: Option<Rank>,
    pub(crate) desired: Vec<DesiredFrontend>,
    /// The first `desired_count` are desired, in the order that [`DesiredFrontend::port_position`] means; the rest is leaving.
    pub(crate) ports: Vec<Port>,
    pub(crate) desired_count: usize,
    /// What it covers beside its own frontends.
    pub(crate) reservations: ServiceReservations,
    /// The frontends that the service claims, in the order of their keys.
    pub(crate) claims: Vec<ClaimRequest>,
    /// The frontends that are left to the real balancer, sorted.
    pub(crate) passing: Vec<FrontendKey>,
    /// The frontends that are in the maps on this service's behalf.
    pub(crate) frontends: SmallSet<FrontendKey>,
    pub(crate) view: Option<Arc<ServiceView>>,
    pub(crate) causes: Vec<Cause>,
    /// How many of the service's own causes gave way to later ones.
    pub(crate) suppressed: u32,
    pub(crate) phase: Phase,
    pub(crate) freshness: Freshness,
    pub(crate) facts_origin: FactsOrigin,
    /// The facts that it became dirty with, until it is decided what it claims by them.
    pub(crate) pending_facts: Option<Arc<ServiceFacts>>,
    pub(crate) startup_write: StartupWrite,
    /// From here its plan goes on.
    pub(crate) cursor: Cursor,
    pub(crate) ops: u32,
    /// What kept the last plan from being carried out.
    pub(crate) error: Option<Arc<str>>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            state: ServiceState::NoService,
            facts: None,
            rank: None,
            desired: Vec::new(),
            ports: Vec::new(),
            desired_count: 0,
            reservations: ServiceReservations::default(),
            claims: Vec::new(),
            passing: Vec::new(),
            frontends: SmallSet::None,
            view: None,
            causes: Vec::new(),
            suppressed: 0,
            phase: Phase::default(),
            freshness: Freshness::default(),
            facts_origin: FactsOrigin::default(),
            pending_facts: None,
            startup_write: StartupWrite::default(),
            cursor: Cursor::default(),
            ops: 0,
            error: None,
        }
    }
}

impl Service {
    /// Adds a cause. Where there are too many, one that an object of others brought gives way, else the oldest; a cause
    /// that an object of others brings pushes out none of the service's own.
    pub(crate) fn add_cause(&mut self, cause: Cause) {
        if self.causes.len() >= limits::CAUSES_PER_CHANGE_MAX {
            match self.causes.iter().position(Cause::is_foreign) {
                Some(position) => drop(self.causes.remove(position)),
                None if cause.is_foreign() => return,
                None => {
                    self.causes.remove(0);
                    self.suppressed = self.suppressed.saturating_add(1);
                }
            }
        }
        // Most batches bring a service one or two events.
        if self.causes.capacity() == 0 {
            self.causes.reserve_exact(2);
        }
        self.causes.push(cause);
    }

    /// Takes a new decision in: known ports keep what the maps hold of them, ports no longer desired go to the end. The
    /// ports may have so many rows together, beside what does not count. Returns how many are left out.
    pub(crate) fn apply_desired(
        &mut self,
        desired: DesiredService,
        facts: Option<Arc<ServiceFacts>>,
        (case, rows_most): (&HoldContext<'_>, usize),
        nothing: &Arc<Rows>,
    ) -> usize {
        let before = core::mem::replace(&mut self.facts, facts);
        if is_recreated(before.as_deref(), self.facts.as_deref()) {
            // The maps have what they have; no client of the new one ever had a list.
            self.ports.iter_mut().for_each(|port| port.forget_lists(nothing));
        }
        let served = self.ports.get(..self.desired_count).unwrap_or_default();
        let mut pasts = match (&before, &self.facts) {
            (Some(before), Some(now)) => port_rename::find_renamed(served, &desired.ports, before, now),
            _ => BTreeMap::new(),
        };
        let mut old: BTreeMap<_, _> = self.ports.drain(..).map(|port| (port.key.clone(), port)).collect();
        self.desired_count = desired.ports.len();
        // There are as many services as a cluster has, and nearly all have one port: no room for three more.
        self.ports.reserve_exact(self.desired_count);
        let mut decisions = Vec::with_capacity(self.desired_count);
        for wanted in desired.ports {
            work::count_work(1 + wanted.rows.len());
            let past = pasts.remove(&wanted.key);
            let mut port = old.remove(&wanted.key).unwrap_or_else(|| Port::new(wanted.key, nothing));
            if let Some(past) = past {
                past.restore_to(&mut port);
            }
            port.sources = wanted.sources;
            self.ports.push(port);
            decisions.push(Decision { rows: wanted.rows, weights: wanted.weights, policy: wanted.policy });
        }
        let waiting = self.decide_ports(decisions, rows_most, case);
        for mut port in old.into_values().filter(|port| port.index.is_some()) {
            port.rows = Arc::clone(nothing);
            port.policy = PortPolicy::default();
            port.sources = None;
            port.history.release();
            self.ports.push(port);
        }
        self.desired = desired.frontends;
        self.desired.shrink_to_fit();
        self.update_passing(case);
        self.state = desired.state;
        waiting
    }

    /// Has each port take its decision, with as many rows as it may have, and returns how many rows are left out.
    fn decide_ports(&mut self, decisions: Vec<Decision>, rows_most: usize, case: &HoldContext<'_>) -> usize {
        let listed = decisions.iter().map(|decision| decision.rows.len());
        let mosts = row_quota::divide_rows(self.ports.iter().zip(listed.clone()), rows_most);
        let waiting = listed.zip(&mosts).map(|(listed, most)| listed.saturating_sub(*most)).sum();
        for (port, (decision, most)) in self.ports.iter_mut().zip(decisions.into_iter().zip(mosts)) {
            port.apply_decision(decision, most, case);
        }
        waiting
    }

    /// Leaves addresses that a real balancer serves too to that balancer, where no backend is there and the service, or
    /// else the configuration, asks for it.
    fn update_passing(&mut self, case: &HoldContext<'_>) {
        self.passing.clear();
        if case.own.unwrap_or(case.policy.on_empty) != OnEmpty::Pass {
            return;
        }
        for frontend in &mut self.desired {
            let port = frontend.position.and_then(|position| self.ports.get(position));
            let is_shared = matches!(frontend.kind, FrontendType::LoadBalancer | FrontendType::ExternalIp);
            frontend.passes = is_shared && port.is_some_and(Port::has_no_backend);
            self.passing.extend(frontend.key().filter(|_| frontend.passes));
        }
        self.passing.sort_unstable();
    }

    /// The desired frontends of the port at a place. They stand among those of the same port name.
    pub(crate) fn port_frontends(&self, position: usize) -> impl Iterator<Item = &DesiredFrontend> {
        let name = self.ports.get(position).map(|port| &*port.key.name).unwrap_or_default();
        let begin = self.desired.partition_point(|it| &*it.port_name < name);
        let named = self.desired.iter().skip(begin).take_while(move |it| &*it.port_name == name);
        named.filter(move |it| it.position == Some(position))
    }

    /// Whether this frontend is left to the real balancer.
    pub(crate) fn passes(&self, key: &FrontendKey) -> bool {
        self.passing.binary_search(key).is_ok()
    }

    /// Whether any of its ports has a list, held or not, and whether any has one that is not held.
    pub(crate) fn list_presence(&self) -> ListPresence {
        let has = |port: &&Port| port.rows.has_any_list();
        let mut with = self.ports.iter().filter(has).peekable();
        ListPresence { any: with.peek().is_some(), unheld: with.any(|port| port.history.hold.is_none()) }
    }

    /// The holds of all its ports.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> + Clone {
        self.ports.iter().filter_map(|port| port.history.hold.as_deref())
    }

    /// The holds of all its ports, to change them.
    pub(crate) fn holds_mut(&mut self) -> impl Iterator<Item = &mut Arc<Hold>> {
        self.ports.iter_mut().filter_map(|port| port.history.hold.as_mut())
    }

    /// Takes notice of what a version of a slice says of the last lists, which would be lost otherwise: the next
    /// version takes its place before any decision was made by this one.
    pub(crate) fn observe_slice(&mut self, slice: &SliceFacts) {
        let AddressType::Ip(family) = slice.address_type else { return };
        for told in &slice.ports {
            let Some(transport) = told.protocol.transport() else { continue };
            let key = PortKey { name: Arc::clone(&told.name), transport, family };
            if let Some(port) = self.desired_port_mut(&key) {
                port.history.last.observe_slice(&slice.endpoints, told.port);
            }
        }
    }

    /// The hold of one port.
    pub(crate) fn hold_mut(&mut self, key: &PortKey) -> Option<&mut Arc<Hold>> {
        self.desired_port_mut(key)?.history.hold.as_mut()
    }

    fn desired_port_mut(&mut self, key: &PortKey) -> Option<&mut Port> {
        let wanted = self.ports.get_mut(..self.desired_count)?;
        let position = wanted.binary_search_by(|port| port.key.cmp(key)).ok()?;
        wanted.get_mut(position)
    }

    /// The status of a row that is not as it should be.
    pub(crate) fn status(&self) -> Status {
        self.error.clone().map_or(Status::Pending, Status::Error)
    }

    /// Whether the service has left nothing in the maps and claims nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.claims.is_empty() && self.frontends.is_empty()
    }
}
