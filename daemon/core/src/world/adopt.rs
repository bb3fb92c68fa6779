//! Adopts the maps at a restart: what they hold counts as realized.
//!
//! Invariant: a port adopts an index only if every frontend that points to it is the port's own and of the same kind,
//! so no client of another service sees its lists. What no service adopts is removed last. A namespace keeps the number
//! that its frontends have in the maps.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use super::World;
use super::demand::DemandKind;
use super::family_pair::by_family_mut;
use super::services::Services;
use super::space::Space;
use crate::claims::{Frontends, RealizedFrontend};
use crate::facts::{ServiceFacts, ServiceType};
use crate::keys::{Family, FrontendKey, PortKey, Transport};
use crate::list::{Rows, Scope, Slot};
use crate::op::{Dump, DumpPort, FrontendType, PortIndex, QuotaId, ServiceId, Word};
use crate::service::{Port, RealizedList, RealizedPort};
use crate::snapshot::ServiceView;
use crate::tables::Tables;
use crate::work;

/// Map contents that no version of the rules would write. The plan rewrites them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// Two lists overlap, or one exceeds the map.
    #[error("port {} points to slots {}..{} that are not its own", index.0, word.base, word.base.saturating_add(word.count))]
    Slots { index: PortIndex, word: Word },
}

/// What a start found in the maps and no service has adopted.
#[derive(Debug, Default)]
pub(super) struct LeftoverPorts {
    pub(super) ports: BTreeMap<PortIndex, LeftoverPort>,
    /// Ports that may be wiped by now. A start has as many ports as services, and checks them after each piece.
    touched: BTreeSet<PortIndex>,
    /// Whether the start found a frontend, which has served clients since.
    pub(super) has_frontends: bool,
}

impl LeftoverPorts {
    pub(super) fn get(&self, index: PortIndex) -> Option<&LeftoverPort> {
        self.ports.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: PortIndex) -> Option<&mut LeftoverPort> {
        let port = self.ports.get_mut(&index);
        self.touched.extend(port.is_some().then_some(index));
        port
    }

    fn add(&mut self, index: PortIndex, family: Family, realized: RealizedPort) {
        let port = LeftoverPort { family, realized, frontends: BTreeSet::new(), lost_frontend: false };
        self.ports.insert(index, port);
        self.touched.insert(index);
    }

    /// Records that a frontend left the port to which it pointed.
    pub(super) fn remove_frontend(&mut self, key: FrontendKey, before: Option<RealizedFrontend>) {
        if let Some(port) = before.and_then(|before| self.get_mut(before.value.port)) {
            port.lost_frontend |= port.frontends.remove(&key);
        }
    }

    pub(super) fn forget_wiped(&mut self) -> Vec<PortIndex> {
        let is_over = |port: &LeftoverPort| port.frontends.is_empty() && port.realized.is_wiped();
        let touched = core::mem::take(&mut self.touched);
        work::count_work(touched.len());
        let wiped: Vec<_> =
            touched.into_iter().filter(|index| self.ports.get(index).is_some_and(is_over)).collect();
        wiped.iter().for_each(|index| drop(self.ports.remove(index)));
        wiped
    }

    /// Adopts the ports of the maps with their frontends, members and sources, and returns the errors found.
    fn adopt(
        &mut self,
        dump: &Dump,
        quotas: &BTreeMap<PortIndex, QuotaId>,
        space: &mut Space,
    ) -> Vec<AdoptError> {
        let mut errors = Vec::new();
        for port in &dump.ports {
            let quota = quotas.get(&port.index).copied().unwrap_or_default();
            self.adopt_port(port, quota, space, &mut errors);
        }
        for index in &dump.orphans {
            self.adopt_orphan(*index, space);
        }
        self.has_frontends = !dump.frontends.is_empty();
        for (key, value) in &dump.frontends {
            if let Some(port) = self.get_mut(value.port) {
                port.frontends.insert(*key);
            }
        }
        for (member, state) in &dump.members {
            if let Some(port) = self.get_mut(member.port) {
                port.realized.members.insert((member.membership, member.backend), *state);
            }
        }
        for source in dump.sources.iter().flatten() {
            if let Some(port) = self.get_mut(source.port) {
                port.realized.sources.insert(source.range);
            }
        }
        errors
    }

    fn adopt_port(
        &mut self,
        port: &DumpPort,
        quota: QuotaId,
        space: &mut Space,
        errors: &mut Vec<AdoptError>,
    ) {
        space.indices.reserve(port.index, quota);
        let mut list = |scope, (word, slots): &(Word, Vec<Slot>)| {
            let own = word.count == 0 || space.slots(port.family).reserve(word.base, word.count);
            if own {
                let rows = Arc::new(Rows::from_slots(slots, scope));
                if let Some(range) = word.range(port.family) {
                    let is_table = range.count > rows.len(scope);
                    let Space { tables, lists, .. } = space;
                    let family = range.family;
                    let charges =
                        if is_table { tables.charges(family) } else { by_family_mut(lists, family) };
                    charges.charge(range.base, quota, range.count.next_power_of_two());
                }
                // Slots in another order than this version writes are rewritten.
                let uncertain = !rows.slots_in_range(scope, word.count).eq(slots.iter().copied());
                return RealizedList { word: *word, rows, uncertain, ..RealizedList::default() };
            }
            errors.push(AdoptError::Slots { index: port.index, word: *word });
            RealizedList { uncertain: true, ..RealizedList::default() }
        };
        let cluster = list(Scope::Cluster, &port.cluster);
        let local = list(Scope::Local, &port.local);
        let realized = RealizedPort { cluster, local, facts: Some(port.facts), ..RealizedPort::default() };
        self.add(port.index, port.family, realized);
    }

    /// No client dials an orphan; it only has to be wiped before its index is reused.
    fn adopt_orphan(&mut self, index: PortIndex, space: &mut Space) {
        space.indices.reserve(index, QuotaId::default());
        let unknown = || RealizedList { uncertain: true, ..RealizedList::default() };
        let realized = RealizedPort { cluster: unknown(), local: unknown(), ..RealizedPort::default() };
        self.add(index, Family::V4, realized);
    }

    /// Whether the maps match the restored view of a service. If not, the maps are newer: a process writes to them
    /// before it writes to the disk, which may have been full for days.
    pub(super) fn matches_view(&self, id: ServiceId, view: &ServiceView, frontends: &Frontends) -> bool {
        let is_found = |((index, scope, _), rows): (&LeftoverList, &&Arc<Rows>)| {
            self.get(*index).is_some_and(|port| port.has_same_backends(rows, *scope))
        };
        leftover_lists(id, view, frontends).is_some_and(|lists| lists.iter().all(is_found))
    }

    /// Gives a port without index the one that its frontends point to, if all of that is its own.
    pub(super) fn adopt_index(
        &mut self,
        id: ServiceId,
        position: usize,
        services: &mut Services,
        frontends: &mut Frontends,
    ) -> Option<PortIndex> {
        if self.ports.is_empty() {
            return None;
        }
        let service = services.get(id)?;
        let port = service.ports.get(position)?;
        let family = port.key.family;
        let policy = port.flags(Scope::Cluster).policy();
        let mut own: Vec<_> =
            service.port_frontends(position).filter_map(|it| Some((it.key()?, it.kind))).collect();
        own.sort_unstable();
        // A frontend must be of the same kind too: until it is rewritten, it reads the lists as its old kind does.
        let is_own = |key: &FrontendKey| {
            work::count_work(1);
            let entry = frontends.get(key).filter(|entry| entry.winner() == Some(id));
            let realized = entry.and_then(|entry| entry.realized);
            realized.is_some_and(|realized| own.binary_search(&(*key, realized.value.kind)).is_ok())
        };
        let mut tried = BTreeSet::new();
        let mut index_of = |key: &FrontendKey| {
            let index = frontends.get(key)?.realized?.value.port;
            let adopted = self.get(index).filter(|_| tried.insert(index))?;
            // Under another policy, no order of replacing the two words is safe.
            let alike = adopted.family == family && adopted.realized.cluster.word.flags.policy() == policy;
            let whole = alike && !adopted.lost_frontend;
            (whole && adopted.frontends.iter().all(is_own)).then_some(index)
        };
        let index = own.iter().find_map(|(key, _)| index_of(key))?;
        let adopted = self.ports.remove(&index)?;
        for key in &adopted.frontends {
            frontends.update(*key, |entry| {
                if let Some(realized) = &mut entry.realized {
                    realized.owner = Some(id);
                }
            });
        }
        let service = services.get_mut(id)?;
        adopted.frontends.iter().for_each(|key| service.frontends.insert(*key));
        let port = service.ports.get_mut(position)?;
        port.index = Some(index);
        port.realized = adopted.realized;
        Some(index)
    }
}

/// A list found in the maps, and the position of the restored port that owns its frontends.
type LeftoverList = (PortIndex, Scope, Option<usize>);

#[derive(Debug)]
pub(super) struct LeftoverPort {
    pub(super) family: Family,
    pub(super) realized: RealizedPort,
    pub(super) frontends: BTreeSet<FrontendKey>,
    /// A frontend has left it, and its clients in flight may not have read the word yet: no other service's lists may
    /// come here.
    lost_frontend: bool,
}

impl LeftoverPort {
    fn has_same_backends(&self, rows: &Rows, scope: Scope) -> bool {
        let found = match scope {
            Scope::Cluster => &self.realized.cluster.rows,
            Scope::Local => &self.realized.local.rows,
        };
        work::count_work(usize::try_from(rows.len(scope)).unwrap_or(usize::MAX));
        rows.list(scope).map(|row| row.backend()).eq(found.list(scope).map(|row| row.backend()))
    }

    /// The block size of its longer list.
    fn row_count(&self) -> u32 {
        let RealizedPort { cluster, local, .. } = &self.realized;
        cluster.rows.len(Scope::Cluster).max(local.rows.len(Scope::Local)).next_power_of_two()
    }

    /// The same as a port without a service, so that it is wiped like any other.
    pub(super) fn as_port(&self) -> Port {
        let key = PortKey { name: Arc::from(""), transport: Transport::Tcp, family: self.family };
        Port { realized: self.realized.clone(), ..Port::new(key, &Arc::default()) }
    }
}

impl World {
    /// Takes the maps as realized, and returns errors, which the plan rewrites.
    pub(crate) fn adopt(&mut self, dump: &Dump) -> Vec<AdoptError> {
        let Self { realized, space, tables, owners, demand, .. } = self;
        let quotas: BTreeMap<_, _> =
            dump.frontends.iter().map(|(_, value)| (value.port, value.quota)).collect();
        let errors = realized.leftovers.adopt(dump, &quotas, space);
        for (key, value) in &dump.frontends {
            owners.frontends.adopt(*key, *value);
            tables.reserve_quota(value.quota);
            demand.count_leftover(DemandKind::Frontends, value.quota, 1);
            if value.kind.is_author_chosen() {
                demand.count_leftover(DemandKind::ExternalIps, value.quota, 1);
            }
        }
        for (index, port) in &realized.leftovers.ports {
            let quota = quotas.get(index).copied().unwrap_or_default();
            space.members.count_leftover(*index, quota, &port.realized);
            demand.count_leftover(DemandKind::Rows, quota, port.row_count());
        }
        realized.node.realized = dump.node_addresses.iter().copied().collect();
        errors
    }
}

/// The lists that a view's frontends point to in the maps, each once, with the restored rows. Frontends that the
/// service has adopted are left out. `None`: a frontend is not in the maps, or is another service's.
fn leftover_lists<'v>(
    id: ServiceId,
    view: &'v ServiceView,
    frontends: &Frontends,
) -> Option<BTreeMap<LeftoverList, &'v Arc<Rows>>> {
    let mut lists = BTreeMap::new();
    for row in &view.frontends {
        let (Some(rows), Some(transport)) = (view.rows(row), row.protocol.transport()) else { continue };
        let key = FrontendKey { address: row.address, port: row.port, transport };
        let realized = frontends.get(&key)?.realized?;
        work::count_work(1);
        match realized.owner {
            Some(owner) if owner == id => continue,
            Some(_) => return None,
            None => {}
        }
        let local = Some(Scope::Local).filter(|_| row.external_local);
        let scopes = core::iter::once(row.scope).chain(local);
        lists.extend(scopes.map(|scope| ((realized.value.port, scope, row.position), rows)));
    }
    Some(lists)
}

impl Tables {
    /// Restores the namespace's number from an address of the service in the maps. The address must be an allocated
    /// one, found with its own kind: any service may list any external IP.
    pub(super) fn restore_quota(&mut self, facts: &ServiceFacts, frontends: &Frontends) {
        let namespace = facts.key.name.namespace();
        if self.has_quota(namespace) {
            return;
        }
        let found = |(key, kind): (FrontendKey, FrontendType)| {
            work::count_work(1);
            let realized = frontends.get(&key)?.realized?;
            (realized.owner.is_none() && realized.value.kind == kind).then_some(realized.value.quota)
        };
        if let Some(quota) = allocated_frontends(facts).find_map(found) {
            self.record_quota_owner(namespace, quota);
        }
    }
}

/// The frontends of a service that its author cannot choose freely, each with its kind in the maps.
fn allocated_frontends(facts: &ServiceFacts) -> impl Iterator<Item = (FrontendKey, FrontendType)> {
    facts.ports.iter().flat_map(move |port| {
        let cluster = facts.cluster_ips.iter().filter(|_| facts.kind != ServiceType::ClusterSetIp);
        let cluster = cluster.map(move |it| (*it, Some(port.port), FrontendType::ClusterIp));
        let fixed = facts.static_frontends.iter();
        let fixed = fixed.map(|it| (it.ip(), NonZeroU16::new(it.port()), FrontendType::Static));
        cluster.chain(fixed).filter_map(move |(address, number, kind)| {
            Some((FrontendKey { address, port: number?, transport: port.protocol.transport()? }, kind))
        })
    })
}
