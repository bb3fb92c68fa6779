//! Decides every stale service of a piece, and which frontends are reserved for the node.
//!
//! Invariant: deciding for one service changes no other service's lists. It reaches another only through a claim won or
//! lost, which marks that one dirty with its cause.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::World;
use super::adopt::LeftoverPorts;
use super::demand::DemandKind;
use super::hold::set_probeable_backends;
use super::services::Services;
use crate::claims::reservations::ServiceReservations;
use crate::claims::{AddressOrigin, Frontends, Rank};
use crate::facts::{Listener, Listeners, NodeFacts, Settings};
use crate::keys::{Family, FrontendKey, Source, Transport};
use crate::op::{FrontendType, ServiceId};
use crate::resolve::{self, DesiredFrontend, FrontendQuota};
use crate::service::{Freshness, Service};
use crate::snapshot::Verdict;
use crate::tables::Tables;
use crate::time::ClockReading;

impl World {
    /// Decides the dirty services of the next piece, except those that wait for their source's first list.
    pub(crate) fn decide(&mut self, now: ClockReading) {
        self.ledger.expire(now.uptime(), &mut self.services);
        self.drain_scan.advance(self.queue.most, &mut self.services);
        self.begin_pieces();
        let mut left = self.queue.most;
        loop {
            // Claims may make more services dirty meanwhile.
            while left > 0
                && let Some(id) = self.queue.next(&mut self.services, &self.tables)
            {
                let was_stale = self.decide_if_stale(id, now);
                let Self { queue, services, tables, .. } = self;
                left = left.saturating_sub(queue.take_into_piece(id, was_stale, services, tables));
            }
            self.decide_again(now);
            let Self { queue, services, ledger, tables, .. } = self;
            if queue.begin_judging(now.uptime(), services) {
                ledger.hold_mass_losses(&tables.settings.hold, now.uptime(), services);
            }
            if left == 0 || !queue.has_more(services) {
                return queue.gather(services);
            }
        }
    }

    /// Sets aside the dirty services of sources that have not synced: in a partial first list, a service has no
    /// backend until its slices come. Restored services are complete.
    fn begin_pieces(&mut self) {
        let Self { queue, services, tables, realized, owners, .. } = self;
        let found = (&realized.leftovers, &owners.frontends);
        let may_decide = |id, services: &Services| may_decide(id, services, tables, found);
        if !tables.is_fully_synced() {
            queue.set_aside(services, tables, &may_decide);
        }
        queue.begin_start(services, &may_decide);
    }

    /// Waits for all decisions that a change for all services makes necessary.
    pub(super) fn await_undecided(&mut self) {
        let Self { queue, services, tables, realized, owners, .. } = self;
        let found = (&realized.leftovers, &owners.frontends);
        let may_decide = |id, services: &Services| may_decide(id, services, tables, found);
        queue.await_undecided(services, &may_decide);
    }

    /// Decides again for services of the piece that a later one's reservations have made stale.
    fn decide_again(&mut self, now: ClockReading) {
        let is_stale = |id: &ServiceId| self.services.get(*id).is_some_and(Service::is_stale);
        let again: Vec<_> = self.queue.piece.iter().copied().filter(is_stale).collect();
        for id in again {
            self.decide_if_stale(id, now);
        }
    }

    /// Decides for a service if it is stale, and returns whether it was.
    fn decide_if_stale(&mut self, id: ServiceId, now: ClockReading) -> bool {
        let Some(service) = self.services.get_mut(id).filter(|service| service.is_stale()) else {
            return false;
        };
        let was_awaited = core::mem::take(&mut service.freshness) == Freshness::Awaited;
        self.decide_one(id, now);
        self.queue.mark_decided(id, was_awaited, &mut self.services, &self.tables);
        true
    }

    fn decide_one(&mut self, id: ServiceId, now: ClockReading) {
        let Self { tables, services, owners, demand, space, .. } = self;
        let Some(known) = tables.get(id) else { return services.count_impossible() };
        let facts = known.facts.clone();
        let node = Arc::clone(&tables.node);
        let settings = Arc::clone(&tables.settings);
        let drains = Arc::clone(&tables.drains);
        let given = (&*node, &*settings, &*drains);
        let has = |it: &DesiredFrontend| owners.frontends.is_realized_for(id, known.quota, it);
        let may_ask = |kind| demand.allowance(kind, (id, known.quota), &settings);
        let quota = FrontendQuota {
            most: may_ask(DemandKind::Frontends).saturating_add(1),
            external_ips: may_ask(DemandKind::ExternalIps),
            is_present: &has,
        };
        let desired = resolve::resolve(facts.as_deref(), &known.slices, given, quota);
        let mut cut = desired.cut;
        demand.count_frontends(id, known, &desired, &owners.frontends);
        let rank = facts.as_deref().map(Rank::for_service);
        // A service reserves its truncated frontends too.
        let own = desired.frontends.iter().chain(&desired.reserved);
        owners.replace_reservations(
            id,
            rank,
            ServiceReservations::from_frontends(own, &node),
            services,
            tables,
        );
        let wanted = owners.claimable_frontends(&desired.frontends, id, rank, tables);
        let rows_most = demand.allowance(DemandKind::Rows, (id, known.quota), &settings);
        let nothing = services.empty_rows();
        let Some(service) = services.get_mut(id) else { return services.count_impossible() };
        let case = self.ledger.hold_context(known, service, (&settings, &drains), now);
        let before = service.list_presence();
        cut.rows = service.apply_desired(desired, facts, (&case, rows_most), &nothing);
        space.indices.set_positions(&service.ports);
        demand.count_rows(id, known, service.rows_counted(), cut.rows > 0);
        tables.record_truncation(id, cut);
        let (Some(known), Some(service)) = (tables.get(id), services.get_mut(id)) else {
            return services.count_impossible();
        };
        set_probeable_backends(known, service, &owners.frontends, (&settings, &node));
        self.ledger.record_decision((id, known), service, before, (&settings.hold, now.uptime()));
        owners.replace_claims(id, wanted, rank, services, tables);
    }
}

/// Whether a service may be decided. An unreadable source's services count, because each is delivered whole. A
/// ServiceImport also waits for the cluster's Services: each of them precedes it, and until they arrive it would take
/// their addresses. A restored service may be decided unless the maps differ: those are newer than the restored state.
fn may_decide(
    id: ServiceId,
    services: &Services,
    tables: &Tables,
    (found, frontends): (&LeftoverPorts, &Frontends),
) -> bool {
    let Some(known) = tables.get(id) else { return true };
    let source = known.key.source;
    let has_delivered = |source| tables.synced.get(&source) != Some(&false);
    let view = services.get(id).and_then(|service| service.view.as_deref());
    let remembered = view.filter(|view| !found.has_frontends || found.matches_view(id, view, frontends));
    if source != Source::ClusterSet || has_delivered(Source::Kubernetes) {
        return has_delivered(source) || tables.is_confirmed_service(&known.key) || remembered.is_some();
    }
    remembered.is_some_and(|view| view.frontends.iter().all(|it| it.verdict != Verdict::Conflict))
}

/// Whether the node reserves this frontend, so that no service of the cluster may have it. An address that the author
/// chose, or a balancer's address, must not take the ports of the node's own servers at any address of the host. While
/// the node's listeners are unknown, all ports of its NodePort addresses are reserved, unless the administrator listed
/// the address.
pub(super) fn is_node_reserved(
    key: &FrontendKey,
    kind: FrontendType,
    source: Source,
    (settings, node, listeners): HostContext<'_>,
) -> bool {
    let is_named = kind == FrontendType::ExternalIp && settings.external_ips.lists_exactly(key.address);
    let is_main = node.node_port_addresses.contains(&key.address);
    let is_own_port = NODE_SERVER_PORTS.contains(&key.port.get())
        || AddressOrigin::from_type(kind) == AddressOrigin::FromAuthor
            && CONTROL_PLANE_PORTS.contains(&key.port.get());
    source.is_tenant_writable()
        && match AddressOrigin::from_type(kind) {
            AddressOrigin::Allocated => false,
            AddressOrigin::FromAuthor if is_main && !is_named && listeners.is_none() => true,
            // The clusters of a set share these addresses, so they are no host's.
            AddressOrigin::FromAuthor
                if kind == FrontendType::ClusterSetIp && node.has_address(key.address) =>
            {
                true
            }
            // An address that floats between nodes serves what services ask for at it, except the node's own ports.
            AddressOrigin::FromAuthor | AddressOrigin::FromController => {
                is_own_port && node.has_address(key.address)
            }
        }
}

/// Every node's own servers: the kubelet and this daemon's health check. Some controllers give a balancer the node's
/// address for lack of another; they do not mean these.
const NODE_SERVER_PORTS: [u16; 2] = [10_250, 10_256];

/// The servers of a control-plane node: the apiserver, and etcd for its clients and peers. No list of sockets shows
/// them while they restart.
const CONTROL_PLANE_PORTS: [u16; 3] = [6_443, 2_379, 2_380];

/// The facts that decide whether a frontend is the node's own.
type HostContext<'a> = (&'a Settings, &'a NodeFacts, Option<&'a Listeners>);

/// The node's socket that takes this frontend's connections: a process listens at the host's address that the author of
/// a Service chose. An address that the administrator listed goes to the Service.
pub(super) fn find_listener(
    key: &FrontendKey,
    kind: FrontendType,
    source: Source,
    (settings, node, listeners): HostContext<'_>,
) -> Option<Listener> {
    let is_chosen = kind == FrontendType::ExternalIp && source.is_tenant_writable();
    let is_here =
        is_chosen && node.has_address(key.address) && !settings.external_ips.lists_exactly(key.address);
    listeners.filter(|_| is_here)?.find_listener(key)
}

/// Whether this is the apiserver's own address, or a NodePort that would serve at it on this node.
pub(super) fn is_bypassed(
    key: &FrontendKey,
    kind: FrontendType,
    settings: &Settings,
    node: &NodeFacts,
) -> bool {
    let family = Family::from_address(key.address);
    let is_here =
        |it: &&SocketAddr| Family::from_address(it.ip()) == family && node.has_node_ports_at(it.ip());
    key.transport == Transport::Tcp
        && if key.address.is_unspecified() {
            settings.apiservers().filter(is_here).any(|it| it.port() == key.port.get())
        } else {
            let dialled = SocketAddr::new(key.address, key.port.get());
            let is_named =
                || kind != FrontendType::ClusterIp && settings.reported_apiservers.contains(&dialled);
            settings.bypass.contains(&dialled) || is_named()
        }
}
