//! Finds what another writer changed in the maps.
//!
//! Invariant: a difference from realized is marked uncertain and its owner replanned, so the ordinary plan repairs it.
//! The current plan handles what is already uncertain; the next comparison covers what was written since this one
//! began. Reading and comparing proceed in pieces, so no change waits longer than a piece.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::net::{IpAddr, SocketAddr};

use super::World;
use super::services::Services;
use crate::claims::Frontends;
use crate::keys::{FrontendKey, PortKey, ServiceKey};
use crate::limits;
use crate::list::{Scope, Slot, SlotState};
use crate::maps::{MapError, Maps};
use crate::op::{Action, Dump, DumpPort, Membership, Op, Owner, PortIndex, ServiceId, Word};
use crate::service::{Port, RealizedList, RealizedPort, Service};
use crate::source_ranges::SourceRange;
use crate::tables::Tables;

/// One map entry that differs from what the engine wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// A frontend is gone, or points elsewhere.
    Frontend(ServiceKey, FrontendKey),
    /// A frontend that the engine never wrote.
    Stray(FrontendKey),
    Port(ServiceKey, PortKey),
    NodeAddress(IpAddr),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(service, key) => {
                write!(f, "frontend {key} of {service} is gone or points elsewhere")
            }
            Self::Stray(key) => write!(f, "frontend {key} is in the maps, but holdfast did not write it"),
            Self::Port(service, port) => {
                write!(f, "the backends or sources of port {port} of {service} were changed")
            }
            Self::NodeAddress(address) => write!(f, "node address {address} was added or removed"),
        }
    }
}

type PortMembers = BTreeMap<(Membership, SocketAddr), SlotState>;

type PortSources = BTreeMap<PortIndex, BTreeSet<SourceRange>>;

#[derive(Debug, Default)]
pub(super) struct DriftCheck {
    is_begun: bool,
    /// Everything is read except what is looked up service by service.
    is_read: bool,
    members: BTreeMap<PortIndex, PortMembers>,
    /// `None`: the maps keep no sources.
    sources: Option<PortSources>,
    node_addresses: BTreeSet<IpAddr>,
    strays: Vec<Drift>,
    /// The next service, and its last frontend that was looked up.
    service: usize,
    after: Option<FrontendKey>,
    drift: Vec<Drift>,
    /// What was written since the comparison began.
    services: BTreeSet<ServiceId>,
    frontends: BTreeSet<FrontendKey>,
    addresses: BTreeSet<IpAddr>,
}

impl DriftCheck {
    /// Records what an op may have changed since the comparison began.
    pub(super) fn record_op(&mut self, op: &Op) {
        if let Owner::Service(id) = op.owner {
            self.services.insert(id);
        }
        match &op.action {
            Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => {
                self.frontends.insert(*key);
            }
            Action::InsertNodeAddress(address) | Action::RemoveNodeAddress(address) => {
                self.addresses.insert(*address);
            }
            _ => {}
        }
    }

    /// Collects a piece's members, sources and node addresses.
    fn absorb_piece(&mut self, piece: Dump) {
        for (member, state) in piece.members {
            let members = self.members.entry(member.port).or_default();
            members.insert((member.membership, member.backend), state);
        }
        if let Some(sources) = piece.sources {
            let all = self.sources.get_or_insert_default();
            for source in sources {
                all.entry(source.port).or_default().insert(source.range);
            }
        }
        self.node_addresses.extend(piece.node_addresses);
    }

    fn advance_service(&mut self) {
        self.service += 1;
        self.after = None;
    }

    /// Reads the next piece of the maps, finds frontends that no service put there, and returns the work done.
    fn find_strays(&mut self, frontends: &mut Frontends, maps: &mut dyn Maps) -> Result<u64, MapError> {
        let anew = !mem::replace(&mut self.is_begun, true);
        let Some(piece) = maps.read_piece(anew)? else {
            self.is_read = true;
            return Ok(0);
        };
        piece.frontends.iter().for_each(|(key, _)| self.check_stray(*key, frontends));
        let work = piece.frontends.len() as u64 * limits::FRONTEND_WORK + piece.members.len() as u64;
        self.absorb_piece(piece);
        Ok(work)
    }

    fn check_stray(&mut self, key: FrontendKey, frontends: &mut Frontends) {
        let known = |entry: &crate::claims::Frontend| entry.realized.is_some() || entry.uncertain;
        let is_known = self.frontends.contains(&key) || frontends.get(&key).is_some_and(known);
        if !is_known && frontends.strays.insert(key) {
            self.strays.push(Drift::Stray(key));
        }
    }

    /// Compares the next service, or as many of its frontends as fit, and returns the work done.
    fn check_next(
        &mut self,
        (tables, services, frontends): (&Tables, &mut Services, &mut Frontends),
        maps: &mut dyn Maps,
        left: u64,
    ) -> Result<u64, MapError> {
        let id = ServiceId(u32::try_from(self.service).unwrap_or(u32::MAX));
        if self.services.contains(&id) {
            self.advance_service();
            return Ok(1);
        }
        let before = self.drift.len();
        let most = left / limits::FRONTEND_WORK + 1;
        let known = tables.get(id).zip(services.get_mut(id));
        let Some((known, service)) = known else {
            self.advance_service();
            return Ok(1);
        };
        let looked_up = self.check_frontends((id, &known.key, &*service), frontends, maps, most)?;
        let mut work = looked_up * limits::FRONTEND_WORK + 1;
        if looked_up < most {
            work += self.check_ports((&known.key, service), maps)?;
            self.advance_service();
        }
        if self.drift.len() > before {
            services.retry(id, tables);
        }
        Ok(work)
    }

    /// Looks up the service's next frontends, and returns how many.
    fn check_frontends(
        &mut self,
        (id, key, service): (ServiceId, &ServiceKey, &Service),
        frontends: &mut Frontends,
        maps: &mut dyn Maps,
        most: u64,
    ) -> Result<u64, MapError> {
        let mut looked_up = 0;
        for frontend in service.frontends.iter_after(self.after) {
            if looked_up == most {
                break;
            }
            looked_up += 1;
            self.after = Some(*frontend);
            let certain = frontends.get(frontend).filter(|entry| !entry.uncertain);
            let realized = certain.and_then(|it| it.realized).filter(|it| it.owner == Some(id));
            let Some(realized) = realized.filter(|_| !self.frontends.contains(frontend)) else { continue };
            if maps.read_value(frontend)? != Some(realized.value) {
                frontends.update(*frontend, |entry| entry.uncertain = true);
                self.drift.push(Drift::Frontend(key.clone(), *frontend));
            }
        }
        Ok(looked_up)
    }

    fn check_ports(
        &mut self,
        (key, service): (&ServiceKey, &mut Service),
        maps: &mut dyn Maps,
    ) -> Result<u64, MapError> {
        let mut work = 0;
        for port in &mut service.ports {
            let Some(index) = port.index else { continue };
            work += limits::FRONTEND_WORK + port.work();
            // Maps may be unable to read a port without frontends; a later comparison covers it.
            let Some(found) = maps.read_port(index, port.key.family)? else { continue };
            let sources = self.sources.as_ref().map(|all| all.get(&index));
            if check_port(port, &found, self.members.get(&index), sources) {
                self.drift.push(Drift::Port(key.clone(), port.key.clone()));
            }
        }
        Ok(work)
    }
}

impl World {
    /// Reads and compares one piece. At the end it returns all differences; the engine's next piece rewrites them.
    /// Unreadable maps end the comparison too.
    pub(crate) fn continue_check(&mut self, maps: &mut dyn Maps) -> Result<Option<Vec<Drift>>, MapError> {
        let Self { realized, tables, services, owners, report, queue, .. } = self;
        let Some(mut checking) = realized.drift_check.take() else { return Ok(Some(Vec::new())) };
        let mut left = queue.most;
        while left > 0 && !checking.is_read {
            left = left.saturating_sub(checking.find_strays(&mut owners.frontends, maps)?);
        }
        while left > 0 && checking.service < services.len() {
            let parts = (&*tables, &mut *services, &mut owners.frontends);
            left = left.saturating_sub(checking.check_next(parts, maps, left)?);
        }
        if left == 0 {
            realized.drift_check = Some(checking);
            return Ok(None);
        }
        let DriftCheck { mut drift, strays, node_addresses, addresses, .. } = checking;
        let differing = realized.node.mark_differences(&node_addresses, &addresses);
        drift.extend(strays.into_iter().chain(differing.into_iter().map(Drift::NodeAddress)));
        report.counters.drift += drift.len() as u64;
        report.differences = Some(drift.len());
        Ok(Some(drift))
    }
}

/// Marks differences as uncertain, and returns whether there are any. `sources`: those in the maps, if they keep any.
fn check_port(
    port: &mut Port,
    found: &DumpPort,
    members: Option<&PortMembers>,
    sources: Option<Option<&BTreeSet<SourceRange>>>,
) -> bool {
    let realized = &mut port.realized;
    let mut differs = mark_list_uncertain(&mut realized.cluster, &found.cluster, Scope::Cluster);
    differs |= mark_list_uncertain(&mut realized.local, &found.local, Scope::Local);
    if realized.facts.is_some_and(|facts| facts != found.facts) {
        realized.facts = None;
        differs = true;
    }
    differs |= mark_members_uncertain(realized, members.unwrap_or(&PortMembers::new()));
    let nothing = BTreeSet::new();
    differs | sources.is_some_and(|found| mark_sources_uncertain(realized, found.unwrap_or(&nothing)))
}

fn mark_members_uncertain(realized: &mut RealizedPort, members: &PortMembers) -> bool {
    let all = realized.members.keys().chain(members.keys());
    let changed = |it: &&(Membership, SocketAddr)| realized.members.get(it) != members.get(it);
    let differing: Vec<_> = all.filter(changed).copied().collect();
    differing.into_iter().fold(false, |any, it| realized.uncertain_members.insert(it) | any)
}

fn mark_sources_uncertain(realized: &mut RealizedPort, sources: &BTreeSet<SourceRange>) -> bool {
    let differing: Vec<_> = realized.sources.symmetric_difference(sources).copied().collect();
    differing.into_iter().fold(false, |any, it| realized.uncertain_sources.insert(it) | any)
}

fn mark_list_uncertain(list: &mut RealizedList, (word, slots): &(Word, Vec<Slot>), scope: Scope) -> bool {
    let same = list.word == *word
        && (word.count == 0 || list.rows.slots_in_range(scope, word.count).eq(slots.iter().copied()));
    let differs = !same && !list.uncertain;
    list.uncertain |= differs;
    differs
}
