//! A restart: what the maps hold is what was realized.
//!
//! Invariant: an index found in the maps is taken over by a port only if every frontend that points to it is that
//! port's own, and of the same kind, so no client of another service can see its lists. What no service takes over is
//! removed last. A namespace keeps the number that its frontends have in the maps.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use super::World;
use super::asked::Kind;
use super::parts::part_mut;
use super::plan::plan_wipe;
use super::space::Space;
use crate::facts::{ServiceFacts, ServiceType};
use crate::keys::{Family, FrontendKey, PortKey, Source, Transport};
use crate::list::{Rows, Scope, Slot};
use crate::op::{Action, Dump, DumpPort, FrontendType, Op, Owner, PortIndex, ServiceId, Share, Word};
use crate::service::{Port, RealizedList, RealizedPort};
use crate::snapshot::ServiceView;
use crate::work;

/// Something in the maps that no version of the rules would have written. It is written anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// Two lists in one place, or one beyond the map.
    #[error("port {} points to slots {}..{} that are not its own", index.0, word.base, word.base.saturating_add(word.count))]
    Slots { index: PortIndex, word: Word },
}

/// What was found in the maps and no service has taken over.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    ports: BTreeMap<PortIndex, AdoptedPort>,
    /// Ports that may be wiped by now. A start has as many ports as services, and asks after each of its pieces.
    touched: BTreeSet<PortIndex>,
    /// Whether the start found a frontend.
    found_any: bool,
}

impl Adopted {
    pub(super) fn get(&self, index: PortIndex) -> Option<&AdoptedPort> {
        self.ports.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: PortIndex) -> Option<&mut AdoptedPort> {
        let port = self.ports.get_mut(&index);
        self.touched.extend(port.is_some().then_some(index));
        port
    }

    fn add(&mut self, index: PortIndex, family: Family, realized: RealizedPort) {
        let port = AdoptedPort { family, realized, frontends: BTreeSet::new(), has_left: false };
        self.ports.insert(index, port);
        self.touched.insert(index);
    }

    /// Notes that a frontend points elsewhere than to this port now, or nowhere.
    pub(super) fn leave(&mut self, index: PortIndex, key: &FrontendKey) {
        if let Some(port) = self.get_mut(index) {
            port.has_left |= port.frontends.remove(key);
        }
    }

    /// Forgets the ports that are wiped, and returns their indices.
    pub(super) fn forget_wiped(&mut self) -> Vec<PortIndex> {
        let is_over = |port: &AdoptedPort| port.frontends.is_empty() && port.realized.is_wiped();
        let touched = core::mem::take(&mut self.touched);
        work::done(touched.len());
        let wiped: Vec<_> =
            touched.into_iter().filter(|index| self.ports.get(index).is_some_and(is_over)).collect();
        wiped.iter().for_each(|index| drop(self.ports.remove(index)));
        wiped
    }
}

/// A list that was found in the maps, and the place of the remembered port to which its frontends belong.
type FoundList = (PortIndex, Scope, Option<usize>);

/// A port that was found in the maps.
#[derive(Debug)]
pub(super) struct AdoptedPort {
    pub(super) family: Family,
    pub(super) realized: RealizedPort,
    frontends: BTreeSet<FrontendKey>,
    /// A frontend has left it, and clients on their way from there may not have read the word yet: no other service's
    /// lists may come here.
    has_left: bool,
}

impl AdoptedPort {
    /// Whether it has the same backends as these rows.
    fn has_list_of(&self, rows: &Rows, scope: Scope) -> bool {
        let found = match scope {
            Scope::Cluster => &self.realized.cluster.rows,
            Scope::Local => &self.realized.local.rows,
        };
        work::done(usize::try_from(rows.len(scope)).unwrap_or(usize::MAX));
        rows.list(scope).map(|row| row.backend()).eq(found.list(scope).map(|row| row.backend()))
    }

    /// The rows of its longer list, as a whole block.
    fn rows(&self) -> u32 {
        let RealizedPort { cluster, local, .. } = &self.realized;
        cluster.rows.len(Scope::Cluster).max(local.rows.len(Scope::Local)).next_power_of_two()
    }

    /// The same as a port of no service, so that it is wiped like any other.
    fn as_port(&self) -> Port {
        let key = PortKey { name: Arc::from(""), transport: Transport::Tcp, family: self.family };
        Port { realized: self.realized.clone(), ..Port::new(key, &Arc::default()) }
    }
}

impl World {
    /// Takes what the maps hold as realized, and returns what cannot be right in it, which is written anew.
    pub(crate) fn adopt(&mut self, dump: &Dump) -> Vec<AdoptError> {
        let mut errors = Vec::new();
        let shares: BTreeMap<_, _> =
            dump.frontends.iter().map(|(_, value)| (value.port, value.share)).collect();
        for port in &dump.ports {
            let share = shares.get(&port.index).copied().unwrap_or_default();
            self.adopt_port(port, share, &mut errors);
        }
        for index in &dump.orphans {
            self.adopt_orphan(*index);
        }
        self.adopted.found_any = !dump.frontends.is_empty();
        for (key, value) in &dump.frontends {
            self.owners.frontends.adopt(*key, *value);
            self.tables.number_found(value.share);
            self.demand.found(Kind::Frontends, value.share, 1);
            if value.kind.is_chosen() {
                self.demand.found(Kind::Chosen, value.share, 1);
            }
            if let Some(port) = self.adopted.get_mut(value.port) {
                port.frontends.insert(*key);
            }
        }
        for (member, state) in &dump.members {
            if let Some(port) = self.adopted.get_mut(member.port) {
                port.realized.members.insert((member.membership, member.backend), *state);
            }
        }
        for (index, port) in &self.adopted.ports {
            let share = shares.get(index).copied().unwrap_or_default();
            self.space.members.found(*index, share, &port.realized);
            self.demand.found(Kind::Rows, share, port.rows());
        }
        for source in dump.sources.iter().flatten() {
            if let Some(port) = self.adopted.get_mut(source.port) {
                port.realized.sources.insert(source.range);
            }
        }
        self.node.realized = dump.node_addresses.iter().copied().collect();
        errors
    }

    /// Lets the namespace of a service keep the number that a start found at an address of the service. The address has
    /// to be one that was given out, and found as such: any service may name any external IP.
    pub(super) fn recognise(&mut self, facts: &ServiceFacts) {
        let namespace = facts.key.name.namespace();
        if self.tables.is_numbered(namespace) {
            return;
        }
        let found = |(key, kind): (FrontendKey, FrontendType)| {
            work::done(1);
            let realized = self.owners.frontends.get(&key)?.realized?;
            (realized.owner.is_none() && realized.value.kind == kind).then_some(realized.value.share)
        };
        if let Some(share) = given_out(facts).find_map(found) {
            self.tables.had_number(namespace, share);
        }
    }

    /// Whether a start found frontends in the maps, which serve clients since.
    pub(super) const fn has_found_any(&self) -> bool {
        self.adopted.found_any
    }

    /// Whether the maps hold just what is remembered of a service. If not, they are newer: a former process writes to
    /// them first, and to the disk afterwards, which may have been full for days.
    pub(super) fn is_as_found(&self, id: ServiceId, view: &ServiceView) -> bool {
        let is_found = |((index, scope, _), rows): (&FoundList, &&Arc<Rows>)| {
            self.adopted.get(*index).is_some_and(|port| port.has_list_of(rows, *scope))
        };
        self.lists_found(id, view).is_some_and(|lists| lists.iter().all(is_found))
    }

    /// The lists in the maps that frontends of a view lead to, and what is remembered of each. A list is there once,
    /// however many frontends lead to it; of a frontend that the service has taken over, there is none. `None`: a
    /// frontend is not in the maps, or is another service's.
    fn lists_found<'v>(
        &self,
        id: ServiceId,
        view: &'v ServiceView,
    ) -> Option<BTreeMap<FoundList, &'v Arc<Rows>>> {
        let mut lists = BTreeMap::new();
        for row in &view.frontends {
            let (Some(rows), Some(transport)) = (view.rows(row), row.protocol.transport()) else { continue };
            let key = FrontendKey { address: row.address, port: row.port, transport };
            let realized = self.owners.frontends.get(&key)?.realized?;
            work::done(1);
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

    fn adopt_port(&mut self, port: &DumpPort, share: Share, errors: &mut Vec<AdoptError>) {
        self.space.indices.reserve(port.index, share);
        let mut list = |scope, (word, slots): &(Word, Vec<Slot>)| {
            let own = word.count == 0 || self.space.slots(port.family).reserve(word.base, word.count);
            if own {
                let rows = Arc::new(Rows::from_slots(slots, scope));
                if let Some(range) = word.range(port.family) {
                    let is_table = range.count > rows.len(scope);
                    let Space { tables, lists, .. } = &mut self.space;
                    let family = range.family;
                    let charges = if is_table { tables.charges(family) } else { part_mut(lists, family) };
                    charges.charge(range.base, share, range.count.next_power_of_two());
                }
                // What stands in another order than this version writes is written anew.
                let uncertain = !rows.placed(scope, word.count).eq(slots.iter().copied());
                return RealizedList { word: *word, rows, uncertain, ..RealizedList::default() };
            }
            errors.push(AdoptError::Slots { index: port.index, word: *word });
            RealizedList { uncertain: true, ..RealizedList::default() }
        };
        let cluster = list(Scope::Cluster, &port.cluster);
        let local = list(Scope::Local, &port.local);
        let realized = RealizedPort { cluster, local, facts: Some(port.facts), ..RealizedPort::default() };
        self.adopted.add(port.index, port.family, realized);
    }

    /// No client dials an orphan; it only has to be wiped before its index is used again.
    fn adopt_orphan(&mut self, index: PortIndex) {
        self.space.indices.reserve(index, Share::default());
        let unknown = || RealizedList { uncertain: true, ..RealizedList::default() };
        let realized = RealizedPort { cluster: unknown(), local: unknown(), ..RealizedPort::default() };
        self.adopted.add(index, Family::V4, realized);
    }

    /// Gives a port that has no index the one that its frontends point to already, if that is wholly its own.
    pub(super) fn take_over(&mut self, id: ServiceId, position: usize) -> Option<PortIndex> {
        if self.adopted.ports.is_empty() {
            return None;
        }
        let service = self.services.get(id)?;
        let port = service.ports.get(position)?;
        let family = port.key.family;
        let policy = port.flags(Scope::Cluster).policy();
        let mut own: Vec<_> =
            service.desired_of(position).filter_map(|it| Some((it.key()?, it.kind))).collect();
        own.sort_unstable();
        // A frontend has to be of the same kind too: until it is written anew, it reads the lists as its old kind does.
        let is_own = |key: &FrontendKey| {
            work::done(1);
            let entry = self.owners.frontends.get(key).filter(|entry| entry.winner() == Some(id));
            let realized = entry.and_then(|entry| entry.realized);
            realized.is_some_and(|realized| own.binary_search(&(*key, realized.value.kind)).is_ok())
        };
        let mut tried = BTreeSet::new();
        let mut index_of = |key: &FrontendKey| {
            let index = self.owners.frontends.get(key)?.realized?.value.port;
            let adopted = self.adopted.get(index).filter(|_| tried.insert(index))?;
            // Under another policy the two words could not be replaced without a moment that fits neither.
            let alike = adopted.family == family && adopted.realized.cluster.word.flags.policy() == policy;
            let whole = alike && !adopted.has_left;
            (whole && adopted.frontends.iter().all(is_own)).then_some(index)
        };
        let index = own.iter().find_map(|(key, _)| index_of(key))?;
        let adopted = self.adopted.ports.remove(&index)?;
        for key in &adopted.frontends {
            self.owners.frontends.update(*key, |entry| {
                if let Some(realized) = &mut entry.realized {
                    realized.owner = Some(id);
                }
            });
        }
        let service = self.services.get_mut(id)?;
        adopted.frontends.iter().for_each(|key| service.frontends.insert(*key));
        let port = service.ports.get_mut(position)?;
        port.index = Some(index);
        port.realized = adopted.realized;
        self.space.indices.put(index, position);
        Some(index)
    }

    /// Ops that remove what a restart found and no service has taken over, once every source has delivered. What a
    /// service asks for that is still to be decided stays.
    pub(crate) fn plan_leftovers(&self, ops: &mut Vec<Op>) {
        if !self.tables.is_synced() {
            return;
        }
        let owner = Owner::Nobody;
        let strays = self.owners.frontends.strays.iter().filter(|key| self.is_unwanted(key));
        ops.extend(strays.map(|key| Op { owner, action: Action::RemoveFrontend(*key) }));
        for (index, adopted) in &self.adopted.ports {
            let left = adopted.frontends.iter().filter(|key| self.is_unwanted(key));
            ops.extend(left.map(|key| Op { owner, action: Action::RemoveFrontend(*key) }));
            // A frontend with a new owner is replaced by it, and until then its clients keep this list, as do clients
            // that are on their way from a frontend that has gone.
            if adopted.frontends.is_empty() && !self.space.freed.leads_to_found(*index) {
                plan_wipe(&adopted.as_port(), *index, &mut |action| ops.push(Op { owner, action }));
            }
        }
    }

    /// Whether no service claims a frontend or is about to, or its owner leaves it to the real balancer.
    fn is_unwanted(&self, key: &FrontendKey) -> bool {
        let winner = self.owners.frontends.winner(key).and_then(|id| self.services.get(id));
        let is_free = || !self.queue.undecided.asks_for(key) && !self.is_of_absent(key);
        winner.map_or_else(is_free, |service| service.passes(key))
    }

    /// Whether a frontend may be one of a ServiceImport that nothing has told of yet.
    fn is_of_absent(&self, key: &FrontendKey) -> bool {
        let realized = self.owners.frontends.get(key).and_then(|entry| entry.realized);
        let is_of_import = realized.is_some_and(|it| it.value.kind == FrontendType::ClusterSetIp);
        is_of_import && self.tables.is_absent(Source::ClusterSet)
    }

    /// Forgets leftovers that are wiped, and frees their indices.
    pub(super) fn forget_leftovers(&mut self) {
        self.space.freed.now.indices.append(&mut self.adopted.forget_wiped());
    }
}

/// The frontends of a service that its author cannot simply have written down, each with the kind that it has in the
/// maps.
fn given_out(facts: &ServiceFacts) -> impl Iterator<Item = (FrontendKey, FrontendType)> {
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
