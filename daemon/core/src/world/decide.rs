//! Decides again for every stale service, and settles the owner of each frontend.
//!
//! Invariant: deciding for one service changes no other service's lists. Another service is reached by a claim won or
//! lost only, and is marked dirty with that as its cause.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::World;
use super::asked::Kind;
use crate::change::Cause;
use crate::claims::covers::Coverage;
use crate::claims::{Claimed, Given, Rank, Wanted};
use crate::facts::{Listener, Listeners, NodeFacts, Settings};
use crate::keys::{Family, FrontendKey, Source, Transport};
use crate::op::{FrontendType, ServiceId};
use crate::resolve::{self, DesiredFrontend, Part};
use crate::service::{Freshness, Service};
use crate::snapshot::Verdict;
use crate::time::Now;
use crate::work;

impl World {
    /// Decides for the dirty services of the next piece, but for those that wait for the rest of what their source
    /// has to tell.
    pub(crate) fn decide(&mut self, now: Now) {
        self.expire_holds(now.uptime());
        self.walk_drained();
        self.set_aside();
        self.begin_pieces();
        let mut left = self.most_work();
        loop {
            // Claims may make more services dirty while this runs.
            while left > 0
                && let Some(id) = self.next_of_piece()
            {
                left = left.saturating_sub(self.decide_next(id, now));
            }
            self.decide_again(now);
            if self.is_judging(now.uptime()) {
                self.judge_mass(now.uptime());
            }
            if left == 0 || !self.has_more() {
                return self.gather();
            }
        }
    }

    /// Decides again for services of the piece that were decided before another one covered what they ask for, or
    /// ceased to.
    fn decide_again(&mut self, now: Now) {
        let is_stale = |id: &ServiceId| self.services.get(*id).is_some_and(Service::is_stale);
        let again: Vec<_> = self.turns.piece.iter().copied().filter(is_stale).collect();
        for id in again {
            self.decide_if_stale(id, now);
        }
    }

    /// Decides for a service if it is stale, and returns the work that the service takes of the piece.
    fn decide_next(&mut self, id: ServiceId, now: Now) -> u64 {
        let was_stale = self.decide_if_stale(id, now);
        self.take_into_piece(id, was_stale)
    }

    /// Decides for a service if it is stale, and returns whether it was.
    fn decide_if_stale(&mut self, id: ServiceId, now: Now) -> bool {
        let Some(service) = self.services.get_mut(id).filter(|service| service.is_stale()) else {
            return false;
        };
        let was_awaited = core::mem::take(&mut service.freshness) == Freshness::Awaited;
        self.decide_one(id, now);
        self.mark_decided(id, was_awaited);
        true
    }

    /// Sets aside the dirty services of sources that have not delivered yet: a first list that is not whole counts for
    /// nothing, because a service with slices still to come has no backend in it. What is remembered is whole.
    fn set_aside(&mut self) {
        if self.tables.is_told_all() {
            return;
        }
        let dirty = core::mem::take(&mut self.services.dirty);
        let (ready, waiting): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|id| self.may_decide(*id));
        self.services.dirty = ready;
        waiting.iter().for_each(|id| self.put_aside(*id));
        self.turns.waiting.extend(waiting);
    }

    /// Whether services of that source are set aside.
    pub(super) fn sets_aside(&self, source: Source) -> bool {
        let is_of_it = |id: &ServiceId| self.tables.get(*id).is_some_and(|known| known.key.source == source);
        // A source that has delivered has none there, and no more is looked at.
        self.tables.synced.get(&source) == Some(&false) && self.turns.waiting.iter().any(is_of_it)
    }

    /// Has nothing wait for a service that is set aside: neither a start, nor, where its source is absent, another
    /// service whose frontends it asks for.
    fn put_aside(&mut self, id: ServiceId) {
        self.mark_written(id);
        if self.tables.get(id).is_some_and(|known| self.tables.is_absent(known.key.source)) {
            let service = self.services.get_mut(id);
            let awaited = service.filter(|service| service.freshness == Freshness::Awaited);
            let was_awaited = awaited.map(|service| service.freshness = Freshness::Stale).is_some();
            self.mark_decided(id, was_awaited);
        }
    }

    /// Has the services that were set aside decided for, because a source has delivered, or is not waited for.
    pub(super) fn go_on_with_waiting(&mut self) {
        self.services.dirty.append(&mut self.turns.waiting);
        for id in self.services.dirty.clone() {
            self.turns.mark_unwritten(self.services.get_mut(id));
        }
    }

    /// What a source has told that cannot be read further counts: each of its services is told whole. A ServiceImport
    /// waits for the cluster's Services too: each of them goes before it, and until they have come it would have their
    /// addresses. One that a former process served is served, but never over maps that say otherwise: those are newer
    /// than what was written down.
    pub(super) fn may_decide(&self, id: ServiceId) -> bool {
        let Some(source) = self.tables.get(id).map(|known| known.key.source) else { return true };
        let has_delivered = |source| self.tables.synced.get(&source) != Some(&false);
        let view = self.services.get(id).and_then(|service| service.view.as_deref());
        let remembered = view.filter(|view| !self.has_found_any() || self.is_as_found(id, view));
        if source != Source::ClusterSet || has_delivered(Source::Kubernetes) {
            let is_told = self.tables.get(id).is_some_and(|known| self.tables.is_told_apart(&known.key));
            return has_delivered(source) || is_told || remembered.is_some();
        }
        remembered.is_some_and(|view| view.frontends.iter().all(|it| it.verdict != Verdict::Conflict))
    }

    fn decide_one(&mut self, id: ServiceId, now: Now) {
        let Some(known) = self.tables.get(id) else { return self.services.count_impossible() };
        let facts = known.facts.clone();
        let node = Arc::clone(&self.tables.node);
        let settings = Arc::clone(&self.tables.settings);
        let drains = Arc::clone(&self.tables.drains);
        let given = (&*node, &*settings, &*drains);
        let has = |it: &DesiredFrontend| self.has_written(id, it);
        let most = self.may_ask(Kind::Frontends, id).saturating_add(1);
        let part = Part { most, chosen: self.may_ask(Kind::Chosen, id), has: &has };
        let desired = resolve::resolve(facts.as_deref(), &known.slices, given, part);
        let mut cut = desired.cut;
        self.account_for_frontends(id, &desired);
        let rank = facts.as_deref().map(Rank::of);
        // What is left out of a service is covered all the same.
        let own = desired.frontends.iter().chain(&desired.covering);
        self.cover(id, rank, Coverage::of(own, &node));
        let wanted = self.claimable(&desired.frontends, id, rank);
        let Some(case) = self.case(id, (&settings, &drains), now) else {
            return self.services.count_impossible();
        };
        let rows_most = self.may_ask(Kind::Rows, id);
        let Self { services, space, .. } = self;
        let nothing = services.nothing();
        let Some(service) = services.get_mut(id) else { return self.services.count_impossible() };
        let before = service.lists();
        cut.rows = service.take(desired, facts, (&case, rows_most), &nothing);
        space.indices.put_all(&service.ports);
        let counted = service.rows_counted();
        self.account_for_rows(id, counted, cut.rows > 0);
        self.tables.cut_short(id, cut);
        self.open_holds(id, &settings, &node);
        self.account_for_holds(id, before, &settings, now.uptime());
        self.claim(id, wanted, rank);
    }

    /// Replaces what the service covers. Other services that ask for something inside of what it began or ceased to
    /// cover are decided for anew.
    fn cover(&mut self, id: ServiceId, rank: Option<Rank>, now: Coverage) {
        let Self { services, covers, tables, .. } = self;
        let (Some(service), Some(known)) = (services.get_mut(id), tables.get(id)) else { return };
        if service.coverage == now {
            return;
        }
        let before = core::mem::replace(&mut service.coverage, now);
        let source = rank.map_or(known.key.source, Rank::source);
        let told = covers.replace((source, id), &before, &service.coverage);
        work::done(told.len());
        for (other, key) in told {
            services.mark(other, Cause::ClaimLost(key, known.key.clone()), true);
        }
    }

    /// What a service claims, sorted: all that can be programmed, but for the apiserver's own addresses, those of the
    /// node, and what another service covers.
    fn claimable(&self, frontends: &[DesiredFrontend], id: ServiceId, rank: Option<Rank>) -> Vec<Wanted> {
        let settings = &self.tables.settings;
        let node = &self.tables.node;
        let host = self.tables.host();
        let Some(source) = rank.map(Rank::source) else { return Vec::new() };
        let is_free = |key: &FrontendKey, kind| {
            !is_bypassed(key, kind, settings, node)
                && !is_nodes(key, kind, source, host)
                && listener(key, kind, source, host).is_none()
                && self.covered_by(key, kind, (source, id)).is_none()
        };
        let all = frontends.iter().filter_map(|it| Some((it.kind, it.key()?)));
        let free = all.filter(|(kind, key)| is_free(key, *kind));
        // Nearly always all of them: then nothing is moved when what is too much is given back.
        let mut wanted = Vec::with_capacity(frontends.len());
        wanted.extend(free.map(|(kind, key)| Wanted { key, given: Given::of(kind) }));
        wanted.sort_unstable();
        wanted.shrink_to_fit();
        wanted
    }

    /// The other service that covers a frontend.
    pub(super) fn covered_by(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        of: (Source, ServiceId),
    ) -> Option<ServiceId> {
        let name = |id| self.tables.get(id).map(|known| &known.key);
        self.covers.owner(key, kind, &self.tables.node, of, &|a, b| name(a).cmp(&name(b)))
    }

    /// Replaces the claims of a service. With another rank, all of them are entered anew.
    fn claim(&mut self, id: ServiceId, wanted: Vec<Wanted>, rank: Option<Rank>) {
        let Some(service) = self.services.get_mut(id) else { return self.services.count_impossible() };
        let same_rank = service.rank == rank;
        if same_rank && service.claimed == wanted {
            return;
        }
        service.rank = rank;
        let claimed = core::mem::take(&mut service.claimed);
        for it in missing(&claimed, if same_rank { &wanted } else { &[] }) {
            match self.frontends.withdraw(it.key, id) {
                Some(heir) => self.won(heir, it.key, id),
                None => self.left_over(it.key, id),
            }
        }
        if let Some(rank) = rank {
            self.enter(id, rank, missing(&wanted, if same_rank { &claimed } else { &[] }));
        }
        if let Some(service) = self.services.get_mut(id) {
            service.claimed = wanted;
        }
    }

    /// Enters claims of a service.
    fn enter<'a>(&mut self, id: ServiceId, rank: Rank, wanted: impl Iterator<Item = &'a Wanted>) {
        for it in wanted {
            let tables = &self.tables;
            let name = |id| tables.get(id).map(|known| &known.key);
            match self.frontends.claim(*it, id, rank, &|a, b| name(a).cmp(&name(b))) {
                Claimed::Alone | Claimed::LostTo(_) => {}
                Claimed::WonFrom(former) => self.lost(former, it.key, id),
            }
        }
    }

    fn won(&mut self, heir: ServiceId, key: FrontendKey, from: ServiceId) {
        if let Some(from) = self.tables.get(from) {
            let cause = Cause::ClaimWon(key, from.key.clone());
            self.services.mark(heir, cause, false);
        }
        self.changed_hands(key);
    }

    /// Marks the service that owned the frontend until now. All others lost it before, and merely name another owner
    /// from now on.
    fn lost(&mut self, former: ServiceId, key: FrontendKey, to: ServiceId) {
        let Some(to) = self.tables.get(to) else { return self.services.count_impossible() };
        let cause = Cause::ClaimLost(key, to.key.clone());
        self.services.mark(former, cause, false);
        self.changed_hands(key);
    }

    /// Has a frontend that no service claims any more removed by the service that has it in the maps, where that is not
    /// the one that withdrew.
    fn left_over(&mut self, key: FrontendKey, by: ServiceId) {
        let Some(entry) = self.frontends.get(&key).filter(|entry| entry.winner().is_none()) else { return };
        let owner = entry.realized.and_then(|realized| realized.owner);
        if let Some(owner) = owner.filter(|owner| *owner != by) {
            self.services.plan_anew(owner);
        }
    }
}

/// Which of these the others lack; both are sorted.
fn missing<'a>(of: &'a [Wanted], others: &'a [Wanted]) -> impl Iterator<Item = &'a Wanted> {
    let mut others = others.iter().peekable();
    of.iter().filter(move |it| {
        while others.next_if(|other| other < it).is_some() {}
        others.peek() != Some(it)
    })
}

/// Whether this is the node's own, and no service of the cluster may have it: for an address that its author chose and
/// for a balancer's address, the ports of the node's own servers at any address of the host. While it is not known at
/// which ports processes of the node listen, it is all ports of the addresses at which the node answers NodePorts,
/// unless the administrator named the address.
pub(super) fn is_nodes(
    key: &FrontendKey,
    kind: FrontendType,
    source: Source,
    (settings, node, listeners): Host<'_>,
) -> bool {
    let is_named = kind == FrontendType::ExternalIp && settings.external_ips.names(key.address);
    let is_main = node.node_port_addresses.contains(&key.address);
    let is_own_port = NODES_PORTS.contains(&key.port.get())
        || Given::of(kind) == Given::ByAnybody && CONTROL_PORTS.contains(&key.port.get());
    source.is_tenants()
        && match Given::of(kind) {
            Given::Out => false,
            Given::ByAnybody if is_main && !is_named && listeners.is_none() => true,
            // What all clusters of a set share is no host's.
            Given::ByAnybody if kind == FrontendType::ClusterSetIp && node.has(key.address) => true,
            // An address that floats from node to node is here for what services ask for at it, not for the node's own
            // ports.
            Given::ByAnybody | Given::ByController => is_own_port && node.has(key.address),
        }
}

/// What listens at each node's own addresses: kubelet, and the health of this daemon. A controller that gives a
/// balancer the node's address, as some do that have no other, does not mean these.
const NODES_PORTS: [u16; 2] = [10_250, 10_256];

/// What listens at the addresses of a node of the control plane: the apiserver, and etcd for its clients and its peers.
/// They may be away for a moment, as in a restart, and then no list of sockets shows them.
const CONTROL_PORTS: [u16; 3] = [6_443, 2_379, 2_380];

/// What decides whether a frontend is the node's own.
type Host<'a> = (&'a Settings, &'a NodeFacts, Option<&'a Listeners>);

/// The socket of the node that keeps its clients from this frontend: a process listens at an address of the host, which
/// the author of a Service chose. An address that the administrator named is given to the Service.
pub(super) fn listener(
    key: &FrontendKey,
    kind: FrontendType,
    source: Source,
    (settings, node, listeners): Host<'_>,
) -> Option<Listener> {
    let is_chosen = kind == FrontendType::ExternalIp && source.is_tenants();
    let is_here = is_chosen && node.has(key.address) && !settings.external_ips.names(key.address);
    listeners.filter(|_| is_here)?.at(key)
}

/// Whether this is the apiserver's own address, or a NodePort that would answer at it on this node.
pub(super) fn is_bypassed(
    key: &FrontendKey,
    kind: FrontendType,
    settings: &Settings,
    node: &NodeFacts,
) -> bool {
    let family = Family::of(key.address);
    let is_here = |it: &&SocketAddr| Family::of(it.ip()) == family && node.has_node_ports_at(it.ip());
    key.transport == Transport::Tcp
        && if key.address.is_unspecified() {
            settings.apiservers().filter(is_here).any(|it| it.port() == key.port.get())
        } else {
            let dialled = SocketAddr::new(key.address, key.port.get());
            let is_named = || kind != FrontendType::ClusterIp && settings.named.contains(&dialled);
            settings.bypass.contains(&dialled) || is_named()
        }
}
