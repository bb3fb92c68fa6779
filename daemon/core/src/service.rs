//! One service: its desired state, and what the maps accepted.
//!
//! Invariant: `realized` changes only after the maps accepted an op. The possible effect of a failed op is recorded as
//! `uncertain` until a later op settles it.

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

/// The progress of a plan that is too heavy for one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) ports: usize,
    pub(crate) frontends: usize,
}

/// One list in the maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct RealizedList {
    pub(crate) word: Word,
    /// The list in the word's range.
    pub(crate) rows: Arc<Rows>,
    /// The readers' view is unknown: a publish failed, so that they may see one of `suspects` instead of `word`, or a
    /// start could not adopt what it found.
    pub(crate) uncertain: bool,
    pub(crate) suspects: Vec<SlotRange>,
}

impl RealizedList {
    fn empty(nothing: &Arc<Rows>) -> Self {
        Self { word: Word::EMPTY, rows: Arc::clone(nothing), uncertain: false, suspects: Vec::new() }
    }
}

/// One port in the maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct RealizedPort {
    pub(crate) cluster: RealizedList,
    pub(crate) local: RealizedList,
    /// `None`: the facts are unknown, because a write failed or a start did not read them.
    pub(crate) facts: Option<PortFacts>,
    pub(crate) members: BTreeMap<(Membership, SocketAddr), SlotState>,
    /// A write failed, so the maps may or may not have these.
    pub(crate) uncertain_members: BTreeSet<(Membership, SocketAddr)>,
    pub(crate) sources: BTreeSet<SourceRange>,
    /// A write failed, so the maps may or may not have these either.
    pub(crate) uncertain_sources: BTreeSet<SourceRange>,
}

impl RealizedPort {
    /// The state of an unused or wiped index.
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

    /// Whether the maps have nothing of the port.
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
    /// The clients that its load balancer addresses admit; `None`: all.
    pub(crate) sources: Option<SourceRanges>,
    pub(crate) history: ListHistory,
    /// How many rows it counts for: the block of its listed rows, or of its last list.
    pub(crate) counted: usize,
    /// Which of its lists are tables, the cluster list first.
    pub(crate) tables: [bool; 2],
    /// The last backend of each list that is a member, the cluster list first, if not all fit; `None`: all are.
    pub(crate) member_ends: [Option<SocketAddr>; 2],
    /// Whether backends outside the lists that keep their clients are members too, if the port has members.
    pub(crate) has_other_members: bool,
    pub(crate) realized: RealizedPort,
}

struct Decision {
    rows: Vec<Row>,
    weights: BackendWeights,
    policy: PortPolicy,
}

impl Port {
    /// A port without state. `nothing`: the empty rows that all such ports share.
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

    /// Drops its lists, which belonged to another Service of that name.
    fn forget_lists(&mut self, nothing: &Arc<Rows>) {
        (self.rows, self.history, self.counted) = (Arc::clone(nothing), ListHistory::default(), 0);
    }

    /// Applies a decision with at most `most` of its rows. A list that would become empty is judged first, by all rows.
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
        // While the former list is held, its backends count as usable ones elsewhere.
        self.policy.has_usable_backend |= self.history.hold.is_some();
        let rows = Rows::new(rows, &self.rows, case.now.wall).with_weights(weights);
        // Equal rows keep their identity, so that all readers share them.
        if rows != *self.rows {
            self.rows = Arc::new(rows);
        }
        if has_list {
            self.history.last.record_list(&self.rows);
        }
        self.counted = listed.max(self.history.last.row_count()).next_power_of_two().min(most);
        self.share_rows();
    }

    /// Shares the port's rows with the maps' lists if they are equal: the former rows may have been many more.
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

    /// The rows of a held or empty list. It keeps its weights, so that a hold writes nothing to the maps when it
    /// begins; the operator's drains are current.
    fn held_rows(&self, mut rows: Vec<Row>, case: &HoldContext<'_>) -> (Vec<Row>, BackendWeights) {
        let drained = weighting::drained_backends(rows.iter().map(Row::backend), &case.key.name, case.drains);
        let weights = self.rows.weights().clone().with_drained(drained);
        weighting::drop_weightless(&mut rows, &weights);
        (rows, weights)
    }

    /// Whether no usable endpoint exists on any node, apart from a held list.
    fn has_no_backend(&self) -> bool {
        self.history.hold.is_some() || !self.policy.has_usable_backend
    }

    /// How many slots the list takes if its table fits: a list with Maglev has a table, and so has one with different
    /// weights.
    pub(crate) fn desired_places(&self, scope: Scope) -> u32 {
        let backends = self.rows.len(scope);
        let has_table = self.uses_maglev(scope) || !self.rows.is_even(scope);
        if has_table { maglev::table_size(backends) } else { backends }
    }

    /// The work of its lists in a piece: each endpoint that is examined, and the places that may be written.
    pub(crate) fn work(&self) -> u64 {
        let places: u64 = Scope::ALL.map(|scope| u64::from(self.desired_places(scope))).into_iter().sum();
        self.rows.iter().len() as u64 + places / limits::PLACES_PER_SLOT
    }

    /// Whether all nodes compute the same backend for a client. That holds for one backend too, and the word has the
    /// flag: only then a node forwards the packets of a connection that it does not have.
    fn uses_maglev(&self, scope: Scope) -> bool {
        self.policy.maglev && scope == Scope::Cluster && self.rows.len(scope) > 0
    }

    /// Whether the list is a table in the maps, or will be once the plan is written.
    pub(crate) const fn is_table(&self, scope: Scope) -> bool {
        let [cluster, local] = self.tables;
        match scope {
            Scope::Cluster => cluster,
            Scope::Local => local,
        }
    }

    /// Sets whether the list is to be a table in the maps.
    pub(crate) const fn set_table(&mut self, scope: Scope, is_table: bool) {
        let [cluster, local] = &mut self.tables;
        match scope {
            Scope::Cluster => *cluster = is_table,
            Scope::Local => *local = is_table,
        }
    }

    /// Whether the maps certainly hold the list in this many places.
    pub(crate) fn is_realized_in(&self, scope: Scope, places: u32) -> bool {
        let list = self.realized.list(scope);
        !list.uncertain && list.word.count == places && self.rows.has_same_list(scope, &list.rows, scope)
    }

    /// The lists that would be tables if these fit, each with its places.
    pub(crate) fn missing_tables(&self) -> impl Iterator<Item = (Scope, u32)> {
        let lacks = |scope: &Scope| self.uses_list(*scope) && !self.is_table(*scope);
        let of_each = Scope::ALL.into_iter().filter(lacks).map(|scope| (scope, self.desired_places(scope)));
        of_each.filter(|(scope, places)| *places > self.rows.len(*scope))
    }

    /// The desired flags of a list's word.
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

    /// Whether a backend of the cluster list may be on no node. The slices no longer show that for a held list, but its
    /// word in the maps does.
    fn has_off_cluster_backend(&self) -> bool {
        let there = self.realized.cluster.word;
        let is_known = self.history.hold.is_some() && there.count > 0;
        self.policy.has_off_cluster_backend && (!is_known || there.flags.contains(WordFlags::OFF_CLUSTER))
    }

    /// The flags of the word while clients of a removed frontend may still read it. Flags that none of the service's
    /// own frontends needs stay unchanged for those clients: all flags of an unused list, how clients find their place
    /// in it, where its backends are, the local list for outside clients without a frontend for them, the sources
    /// without a load balancer address.
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

    /// The clients that its load balancer addresses admit.
    pub(crate) fn sources(&self) -> &[SourceRange] {
        self.sources.as_deref().unwrap_or_default()
    }

    /// Whether the maps certainly admit this source.
    pub(crate) fn has_realized_source(&self, range: &SourceRange) -> bool {
        let realized = &self.realized;
        realized.sources.contains(range) && !realized.uncertain_sources.contains(range)
    }

    /// Whether one of the service's own frontends reads that list.
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

/// Whether the Service was deleted and re-created between two decisions, or while no process ran: then no event reports
/// that the old one is gone.
fn is_recreated(before: Option<&ServiceFacts>, now: Option<&ServiceFacts>) -> bool {
    let uid = |facts: Option<&ServiceFacts>| facts?.meta.uid.clone();
    matches!((uid(before), uid(now)), (Some(before), Some(now)) if before != now)
}

/// One service between its desired state and the maps.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: ServiceState,
    /// The facts of the last decision.
    pub(crate) facts: Option<Arc<ServiceFacts>>,
    pub(crate) rank: Option<Rank>,
    pub(crate) desired: Vec<DesiredFrontend>,
    /// The first `desired_count` are desired, in the order of [`DesiredFrontend::position`]; the rest is leaving.
    pub(crate) ports: Vec<Port>,
    pub(crate) desired_count: usize,
    /// What it reserves besides its own frontends.
    pub(crate) reservations: ServiceReservations,
    /// The frontends that the service claims, sorted by key.
    pub(crate) claims: Vec<ClaimRequest>,
    /// The frontends that pass to the real balancer, sorted.
    pub(crate) passing: Vec<FrontendKey>,
    /// The frontends in the maps that belong to this service.
    pub(crate) frontends: SmallSet<FrontendKey>,
    pub(crate) view: Option<Arc<ServiceView>>,
    pub(crate) causes: Vec<Cause>,
    /// How many of the service's own causes were dropped for later ones.
    pub(crate) suppressed: u32,
    pub(crate) phase: Phase,
    pub(crate) freshness: Freshness,
    pub(crate) facts_origin: FactsOrigin,
    /// The facts that made it dirty, until its claims by them are decided.
    pub(crate) pending_facts: Option<Arc<ServiceFacts>>,
    pub(crate) startup_write: StartupWrite,
    /// Its plan continues here.
    pub(crate) cursor: Cursor,
    pub(crate) ops: u32,
    /// Why the last plan was not executed.
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
    /// Adds a cause. If there are too many, it drops a foreign cause, otherwise the oldest; a foreign cause never
    /// displaces one of the service's own.
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

    /// Applies a new decision: existing ports keep their state in the maps, undesired ports move to the end. All ports
    /// together may have `rows_most` rows besides those that do not count. Returns how many rows are left out.
    pub(crate) fn apply_desired(
        &mut self,
        desired: DesiredService,
        facts: Option<Arc<ServiceFacts>>,
        (case, rows_most): (&HoldContext<'_>, usize),
        nothing: &Arc<Rows>,
    ) -> usize {
        let before = core::mem::replace(&mut self.facts, facts);
        if is_recreated(before.as_deref(), self.facts.as_deref()) {
            // The maps keep their state; no client of the new Service ever had a list.
            self.ports.iter_mut().for_each(|port| port.forget_lists(nothing));
        }
        let served = self.ports.get(..self.desired_count).unwrap_or_default();
        let mut histories = match (&before, &self.facts) {
            (Some(before), Some(now)) => port_rename::find_renamed(served, &desired.ports, before, now),
            _ => BTreeMap::new(),
        };
        let mut old: BTreeMap<_, _> = self.ports.drain(..).map(|port| (port.key.clone(), port)).collect();
        self.desired_count = desired.ports.len();
        // A cluster has many services, and nearly all have one port: do not reserve space for more.
        self.ports.reserve_exact(self.desired_count);
        let mut decisions = Vec::with_capacity(self.desired_count);
        for wanted in desired.ports {
            work::count_work(1 + wanted.rows.len());
            let history = histories.remove(&wanted.key);
            let mut port = old.remove(&wanted.key).unwrap_or_else(|| Port::new(wanted.key, nothing));
            if let Some(history) = history {
                history.restore_to(&mut port);
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

    /// Applies each port's decision with as many rows as it may have. Returns how many rows are left out.
    fn decide_ports(&mut self, decisions: Vec<Decision>, rows_most: usize, case: &HoldContext<'_>) -> usize {
        let listed = decisions.iter().map(|decision| decision.rows.len());
        let mosts = row_quota::divide_rows(self.ports.iter().zip(listed.clone()), rows_most);
        let waiting = listed.zip(&mosts).map(|(listed, most)| listed.saturating_sub(*most)).sum();
        for (port, (decision, most)) in self.ports.iter_mut().zip(decisions.into_iter().zip(mosts)) {
            port.apply_decision(decision, most, case);
        }
        waiting
    }

    /// Passes addresses that a real balancer serves too to that balancer, if no backend exists and the service, or else
    /// the configuration, requests it.
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

    /// The desired frontends of the port at a position. They are sorted by port name.
    pub(crate) fn port_frontends(&self, position: usize) -> impl Iterator<Item = &DesiredFrontend> {
        let name = self.ports.get(position).map(|port| &*port.key.name).unwrap_or_default();
        let begin = self.desired.partition_point(|it| &*it.port_name < name);
        let named = self.desired.iter().skip(begin).take_while(move |it| &*it.port_name == name);
        named.filter(move |it| it.position == Some(position))
    }

    /// Whether this frontend passes to the real balancer.
    pub(crate) fn passes(&self, key: &FrontendKey) -> bool {
        self.passing.binary_search(key).is_ok()
    }

    /// Whether any of its ports has a list, and whether any has one that is not held.
    pub(crate) fn list_presence(&self) -> ListPresence {
        let has = |port: &&Port| port.rows.has_any_list();
        let mut with = self.ports.iter().filter(has).peekable();
        ListPresence { any: with.peek().is_some(), unheld: with.any(|port| port.history.hold.is_none()) }
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> + Clone {
        self.ports.iter().filter_map(|port| port.history.hold.as_deref())
    }

    pub(crate) fn holds_mut(&mut self) -> impl Iterator<Item = &mut Arc<Hold>> {
        self.ports.iter_mut().filter_map(|port| port.history.hold.as_mut())
    }

    /// Records what a version of a slice shows about the last lists: the next version may replace it before a decision
    /// reads it.
    pub(crate) fn observe_slice(&mut self, slice: &SliceFacts) {
        let AddressType::Ip(family) = slice.address_type else { return };
        for slice_port in &slice.ports {
            let Some(transport) = slice_port.protocol.transport() else { continue };
            let key = PortKey { name: Arc::clone(&slice_port.name), transport, family };
            if let Some(port) = self.desired_port_mut(&key) {
                port.history.last.observe_slice(&slice.endpoints, slice_port.port);
            }
        }
    }

    pub(crate) fn hold_mut(&mut self, key: &PortKey) -> Option<&mut Arc<Hold>> {
        self.desired_port_mut(key)?.history.hold.as_mut()
    }

    fn desired_port_mut(&mut self, key: &PortKey) -> Option<&mut Port> {
        let wanted = self.ports.get_mut(..self.desired_count)?;
        let position = wanted.binary_search_by(|port| port.key.cmp(key)).ok()?;
        wanted.get_mut(position)
    }

    /// The status of a row that is not as desired.
    pub(crate) fn status(&self) -> Status {
        self.error.clone().map_or(Status::Pending, Status::Error)
    }

    /// Whether the service has nothing in the maps and claims nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.claims.is_empty() && self.frontends.is_empty()
    }
}
