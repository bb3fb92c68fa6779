//! What somebody else changed in the maps.
//!
//! Invariant: what differs from realized is doubted, and its owner planned again, so the ordinary plan repairs it; what is
//! in doubt already is left to the plan that is under way. Deliberately absent: reading the maps, and when to look.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::World;
use crate::keys::{FrontendKey, PortKey, ServiceKey};
use crate::list::{Scope, Slot, SlotState};
use crate::op::{Dump, DumpPort, PortIndex, ServiceId, Word};
use crate::program::{Port, RealizedList};

/// One thing in the maps that is not as the engine left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// A frontend is gone, or points elsewhere.
    Frontend(ServiceKey, FrontendKey),
    /// A frontend that nobody wrote.
    Stray(FrontendKey),
    /// A list, its word, its facts or its members.
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
            Self::Stray(key) => write!(f, "frontend {key} is in the maps, and nobody wrote it"),
            Self::Port(service, port) => write!(f, "the backends of port {port} of {service} were changed"),
            Self::NodeAddress(address) => write!(f, "node address {address} was added or removed"),
        }
    }
}

/// The ports of a dump, by index, with their members.
type Found<'a> = BTreeMap<PortIndex, (&'a DumpPort, BTreeMap<(Scope, SocketAddr), SlotState>)>;

impl World {
    /// Compares what is realized with what the maps hold. Whatever differs is written anew by the next batch.
    pub fn check(&mut self, dump: &Dump) -> Vec<Drift> {
        let mut drift = Vec::new();
        let found = by_index(dump);
        let ids: Vec<ServiceId> = self.tables.ids().collect();
        for id in ids {
            let before = drift.len();
            self.check_frontends(id, dump, &mut drift);
            self.check_ports(id, &found, &mut drift);
            if drift.len() > before {
                self.retry(id);
            }
        }
        self.check_strays(dump, &mut drift);
        self.check_node_addresses(dump, &mut drift);
        self.counters.drift += drift.len() as u64;
        self.found = Some(drift.len());
        drift
    }

    fn check_frontends(&mut self, id: ServiceId, dump: &Dump, drift: &mut Vec<Drift>) {
        let (Some(known), Some(program)) = (self.tables.get(id), self.programs.get(id.0 as usize)) else {
            return;
        };
        for key in &program.frontends {
            let certain = self.frontends.get(key).filter(|entry| !entry.uncertain);
            let Some(realized) = certain.and_then(|it| it.realized).filter(|it| it.owner == Some(id)) else {
                continue;
            };
            let place = dump.frontends.binary_search_by(|(other, _)| other.cmp(key)).ok();
            let found = place.and_then(|place| dump.frontends.get(place)).map(|(_, value)| *value);
            if found != Some(realized.value) {
                self.frontends.update(*key, |entry| entry.uncertain = true);
                drift.push(Drift::Frontend(known.key.clone(), *key));
            }
        }
    }

    fn check_ports(&mut self, id: ServiceId, found: &Found<'_>, drift: &mut Vec<Drift>) {
        let Some(known) = self.tables.get(id) else { return };
        let Some(program) = self.programs.get_mut(id.0 as usize) else { return };
        for port in &mut program.ports {
            // A port without a frontend is in no dump; when its frontends are back, the next look sees it.
            let Some((there, members)) = port.index.and_then(|index| found.get(&index)) else { continue };
            if check_port(port, there, members) {
                drift.push(Drift::Port(known.key.clone(), port.key.clone()));
            }
        }
    }

    fn check_strays(&mut self, dump: &Dump, drift: &mut Vec<Drift>) {
        for (key, _) in &dump.frontends {
            let known = |entry: &crate::claims::Frontend| entry.realized.is_some() || entry.uncertain;
            if !self.frontends.get(key).is_some_and(known) && self.strays.insert(*key) {
                drift.push(Drift::Stray(*key));
            }
        }
    }

    fn check_node_addresses(&mut self, dump: &Dump, drift: &mut Vec<Drift>) {
        let found = dump.node_addresses.iter().copied().collect();
        let differing: Vec<_> = self.node_addresses.symmetric_difference(&found).copied().collect();
        for address in differing {
            if self.uncertain_addresses.insert(address) {
                drift.push(Drift::NodeAddress(address));
            }
        }
    }
}

fn by_index(dump: &Dump) -> Found<'_> {
    let mut found: Found<'_> = dump.ports.iter().map(|port| (port.index, (port, BTreeMap::new()))).collect();
    for (member, state) in &dump.members {
        if let Some((_, members)) = found.get_mut(&member.port) {
            members.insert((member.scope, member.backend), *state);
        }
    }
    found
}

/// Doubts whatever differs; gives whether anything does.
fn check_port(port: &mut Port, there: &DumpPort, members: &BTreeMap<(Scope, SocketAddr), SlotState>) -> bool {
    let realized = &mut port.realized;
    let mut differs = doubt_list(&mut realized.cluster, &there.cluster, Scope::Cluster);
    differs |= doubt_list(&mut realized.local, &there.local, Scope::Local);
    if realized.facts.is_some_and(|facts| facts != there.facts) {
        realized.facts = None;
        differs = true;
    }
    let places = realized.members.keys().chain(members.keys());
    let changed = |place: &&(Scope, SocketAddr)| realized.members.get(place) != members.get(place);
    let doubted: Vec<_> = places.filter(changed).copied().collect();
    differs | doubted.into_iter().fold(false, |any, place| realized.uncertain_members.insert(place) | any)
}

fn doubt_list(list: &mut RealizedList, (word, slots): &(Word, Vec<Slot>), scope: Scope) -> bool {
    let same = list.word == *word && (word.count == 0 || list.rows.slots(scope).eq(slots.iter().copied()));
    let differs = !same && !list.uncertain;
    list.uncertain |= differs;
    differs
}
