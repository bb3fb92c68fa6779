//! Finds what another writer changed in the maps.
//!
//! Invariant: what differs from realized is marked uncertain and its owner planned again, so the ordinary plan repairs
//! it. What is uncertain already is left to the plan under way, and what was written since the maps were read is left
//! to the next comparison. A comparison is made in pieces.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::World;
use crate::keys::{FrontendKey, PortKey, ServiceKey};
use crate::limits;
use crate::list::{Scope, Slot, SlotState};
use crate::op::{Action, Dump, DumpPort, FrontendValue, Membership, Op, Owner, PortIndex, ServiceId, Word};
use crate::service::{Port, RealizedList, RealizedPort};
use crate::sources::SourceRange;

/// One thing in the maps that is not as the engine left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// A frontend is gone, or points elsewhere.
    Frontend(ServiceKey, FrontendKey),
    /// A frontend that the engine never wrote.
    Stray(FrontendKey),
    /// A port's list, word, facts, members or sources differ.
    Port(ServiceKey, PortKey),
    /// A node address is gone, or was added.
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

/// The members of a port.
type Members = BTreeMap<(Membership, SocketAddr), SlotState>;

/// What the maps say of a port.
struct Found<'a> {
    port: &'a DumpPort,
    members: Members,
    /// `None`: the maps keep no sources.
    sources: Option<BTreeSet<SourceRange>>,
}

/// A comparison under way.
#[derive(Debug)]
pub(super) struct Checking {
    dump: Dump,
    /// The next service, and the next frontend of the dump.
    service: usize,
    frontend: usize,
    drift: Vec<Drift>,
    /// Services that were written since the maps were read.
    services: BTreeSet<ServiceId>,
    frontends: BTreeSet<FrontendKey>,
    addresses: BTreeSet<IpAddr>,
}

impl Checking {
    /// Notes what an op may have changed since the maps were read.
    pub(super) fn note(&mut self, op: &Op) {
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

    fn found(&self, key: &FrontendKey) -> Option<FrontendValue> {
        let position = self.dump.frontends.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        self.dump.frontends.get(position).map(|(_, value)| *value)
    }

    fn port(&self, index: PortIndex) -> Option<Found<'_>> {
        let position = self.dump.ports.binary_search_by_key(&index, |port| port.index).ok()?;
        let begin = self.dump.members.partition_point(|(member, _)| member.port < index);
        let members = self.dump.members.iter().skip(begin).take_while(|(member, _)| member.port == index);
        let members = members.map(|(member, state)| ((member.membership, member.backend), *state)).collect();
        let sources = self.dump.sources.as_deref().map(|sources| {
            let begin = sources.partition_point(|source| source.port < index);
            let own = sources.iter().skip(begin).take_while(|source| source.port == index);
            own.map(|source| source.range).collect()
        });
        Some(Found { port: self.dump.ports.get(position)?, members, sources })
    }
}

impl World {
    /// Begins to compare realized with a dump of the maps, which was read this moment.
    pub(crate) fn begin_check(&mut self, dump: Dump) {
        self.checking = Some(Checking {
            dump,
            service: 0,
            frontend: 0,
            drift: Vec::new(),
            services: BTreeSet::new(),
            frontends: BTreeSet::new(),
            addresses: BTreeSet::new(),
        });
    }

    /// Compares as much as a piece takes. When the comparison ends, returns everything that differs; the engine's next
    /// piece writes it anew.
    pub(crate) fn check_some(&mut self) -> Option<Vec<Drift>> {
        let mut checking = self.checking.take()?;
        let mut left = self.most_work();
        while left > 0 && checking.service < self.services.len() {
            let id = ServiceId(u32::try_from(checking.service).unwrap_or(u32::MAX));
            checking.service += 1;
            left = left.saturating_sub(self.work_of(id));
            if !checking.services.contains(&id) {
                self.check_service(id, &mut checking);
            }
        }
        while left > 0 && checking.frontend < checking.dump.frontends.len() {
            left = left.saturating_sub(limits::FRONTEND_WORK);
            self.check_stray(&mut checking);
        }
        if left == 0 {
            self.checking = Some(checking);
            return None;
        }
        self.check_node_addresses(&mut checking);
        self.report.counters.drift += checking.drift.len() as u64;
        self.report.found = Some(checking.drift.len());
        Some(checking.drift)
    }

    fn check_service(&mut self, id: ServiceId, checking: &mut Checking) {
        let before = checking.drift.len();
        self.check_frontends(id, checking);
        self.check_ports(id, checking);
        if checking.drift.len() > before {
            self.retry(id);
        }
    }

    fn check_frontends(&mut self, id: ServiceId, checking: &mut Checking) {
        let (Some(known), Some(service)) = (self.tables.get(id), self.services.get(id)) else {
            return;
        };
        for key in service.frontends.iter().filter(|key| !checking.frontends.contains(key)) {
            let certain = self.frontends.get(key).filter(|entry| !entry.uncertain);
            let Some(realized) = certain.and_then(|it| it.realized).filter(|it| it.owner == Some(id)) else {
                continue;
            };
            if checking.found(key) != Some(realized.value) {
                self.frontends.update(*key, |entry| entry.uncertain = true);
                checking.drift.push(Drift::Frontend(known.key.clone(), *key));
            }
        }
    }

    fn check_ports(&mut self, id: ServiceId, checking: &mut Checking) {
        let Some(known) = self.tables.get(id) else { return };
        let Some(service) = self.services.get_mut(id) else { return };
        for port in &mut service.ports {
            // A port without a frontend is in no dump; the next comparison sees it when its frontends are back.
            let Some(found) = port.index.and_then(|index| checking.port(index)) else { continue };
            if check_port(port, &found) {
                checking.drift.push(Drift::Port(known.key.clone(), port.key.clone()));
            }
        }
    }

    fn check_stray(&mut self, checking: &mut Checking) {
        let next = checking.dump.frontends.get(checking.frontend).map(|(key, _)| *key);
        checking.frontend += 1;
        let Some(key) = next.filter(|key| !checking.frontends.contains(key)) else { return };
        let known = |entry: &crate::claims::Frontend| entry.realized.is_some() || entry.uncertain;
        if !self.frontends.get(&key).is_some_and(known) && self.frontends.strays.insert(key) {
            checking.drift.push(Drift::Stray(key));
        }
    }

    fn check_node_addresses(&mut self, checking: &mut Checking) {
        let found = checking.dump.node_addresses.iter().copied().collect();
        let differing = self.node.compare(&found, &checking.addresses);
        checking.drift.extend(differing.into_iter().map(Drift::NodeAddress));
    }
}

/// Marks what differs as uncertain; returns whether anything does.
fn check_port(port: &mut Port, found: &Found<'_>) -> bool {
    let there = found.port;
    let realized = &mut port.realized;
    let mut differs = doubt_list(&mut realized.cluster, &there.cluster, Scope::Cluster);
    differs |= doubt_list(&mut realized.local, &there.local, Scope::Local);
    if realized.facts.is_some_and(|facts| facts != there.facts) {
        realized.facts = None;
        differs = true;
    }
    differs | doubt_members(realized, &found.members) | doubt_sources(realized, found.sources.as_ref())
}

fn doubt_members(realized: &mut RealizedPort, members: &Members) -> bool {
    let all = realized.members.keys().chain(members.keys());
    let changed = |it: &&(Membership, SocketAddr)| realized.members.get(it) != members.get(it);
    let doubted: Vec<_> = all.filter(changed).copied().collect();
    doubted.into_iter().fold(false, |any, it| realized.uncertain_members.insert(it) | any)
}

fn doubt_sources(realized: &mut RealizedPort, sources: Option<&BTreeSet<SourceRange>>) -> bool {
    let Some(sources) = sources else { return false };
    let doubted: Vec<_> = realized.sources.symmetric_difference(sources).copied().collect();
    doubted.into_iter().fold(false, |any, it| realized.uncertain_sources.insert(it) | any)
}

fn doubt_list(list: &mut RealizedList, (word, slots): &(Word, Vec<Slot>), scope: Scope) -> bool {
    let same = list.word == *word
        && (word.count == 0 || list.rows.placed(scope, word.count).eq(slots.iter().copied()));
    let differs = !same && !list.uncertain;
    list.uncertain |= differs;
    differs
}
