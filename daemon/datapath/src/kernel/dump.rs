//! Reads everything back that the maps hold.
//!
//! What cannot be read as an entry of ours is left out; the engine judges the rest.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::list::Scope;
use holdfast_core::op::{Dump, DumpPort, FrontendValue, PortIndex, QuotaId};

use super::KernelMaps;
use crate::abi;
use crate::generation::Generation;
use crate::table::Walk;
use holdfast_core::maps::MapError;

/// A part of what the maps hold, to be read in pieces.
#[derive(Debug)]
pub(super) enum Part {
    Frontends(Family, Walk),
    Members(Walk),
    Sources,
    NodeAddresses,
}

#[allow(clippy::needless_pass_by_value)] // The shape that `map_err` wants.
fn unreadable(error: std::io::Error) -> MapError {
    MapError::Refused { op: "read the maps", cause: error.to_string() }
}

/// Every frontend of both families, sorted.
pub(super) fn frontends(
    generation: &Generation,
) -> Result<Vec<(FrontendKey, FrontendValue)>, std::io::Error> {
    let mut frontends = Vec::new();
    for family in Family::ALL {
        let entries = generation.frontends(family).entries()?;
        frontends.extend(entries.iter().filter_map(|(key, value)| abi::frontend_of(family, key, value)));
    }
    frontends.sort_unstable();
    Ok(frontends)
}

/// The share of each port with a frontend; no share of any port, if the frontends cannot be read.
pub(super) fn shares(generation: &Generation) -> BTreeMap<PortIndex, QuotaId> {
    let found = frontends(generation).unwrap_or_default();
    found.into_iter().map(|(_, value)| (value.port, value.quota)).collect()
}

impl KernelMaps {
    pub(super) fn read_back(&self) -> Result<Dump, MapError> {
        let mut frontends = frontends(&self.generation).map_err(unreadable)?;
        frontends.retain(|(_, value)| value.port.0 < self.generation.shape.ports);
        let members = self.generation.members.entries().map_err(unreadable)?;
        let mut members: Vec<_> =
            members.iter().filter_map(|(key, state)| abi::member_of(key, state)).collect();
        members.sort_unstable();
        let families: BTreeMap<_, _> =
            frontends.iter().map(|(key, value)| (value.port, Family::from_address(key.address))).collect();
        let sources = self.sources.read(self.limits.ports)?;
        let told = self.generation.said().chain(members.iter().map(|(member, _)| member.port));
        let told = told.chain(sources.iter().flatten().map(|source| source.port));
        let orphans: BTreeSet<_> = told.filter(|index| !families.contains_key(index)).collect();
        Ok(Dump {
            frontends,
            ports: families.iter().map(|(index, family)| self.port_at(*index, *family)).collect(),
            orphans: orphans.into_iter().collect(),
            members,
            sources,
            node_addresses: self.node_addresses()?,
        })
    }

    /// The first piece of everything if `anew`, or else the next one; no piece has ports.
    pub(super) fn read_back_on(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        if anew {
            self.reading = self.parts()?;
        }
        while let Some(part) = self.reading.pop() {
            if let Some((found, rest)) = self.read_part(part)? {
                self.reading.extend(rest);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// All parts; the last one comes first.
    fn parts(&self) -> Result<Vec<Part>, MapError> {
        let mut parts = vec![Part::NodeAddresses, Part::Sources];
        parts.push(Part::Members(self.generation.members.walk().map_err(unreadable)?));
        for family in Family::ALL {
            let walk = self.generation.frontends(family).walk().map_err(unreadable)?;
            parts.push(Part::Frontends(family, walk));
        }
        Ok(parts)
    }

    /// A piece of a part, and what is left of the part. `None`: the part has come to its end.
    fn read_part(&self, part: Part) -> Result<Option<(Dump, Option<Part>)>, MapError> {
        let mut found = Dump::default();
        let rest = match part {
            Part::Frontends(family, mut walk) => {
                let ports = self.generation.shape.ports;
                let is_known = |(_, value): &(FrontendKey, FrontendValue)| value.port.0 < ports;
                let each = |key: &[u8], value: &[u8]| {
                    found.frontends.extend(abi::frontend_of(family, key, value).filter(is_known));
                };
                walk.some(each).map_err(unreadable)?.then_some(Part::Frontends(family, walk))
            }
            Part::Members(mut walk) => {
                let each = |key: &[u8], state: &[u8]| found.members.extend(abi::member_of(key, state));
                walk.some(each).map_err(unreadable)?.then_some(Part::Members(walk))
            }
            Part::Sources => {
                found.sources = self.sources.read(self.limits.ports)?;
                return Ok(Some((found, None)));
            }
            Part::NodeAddresses => {
                found.node_addresses = self.node_addresses()?;
                return Ok(Some((found, None)));
            }
        };
        Ok(rest.map(|rest| (found, Some(rest))))
    }

    /// What a frontend leads to, as the programs look it up.
    pub(super) fn value_of(&self, key: &FrontendKey) -> Option<FrontendValue> {
        let family = Family::from_address(key.address);
        let wanted = abi::FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(wanted.key())?;
        let (_, value) = abi::frontend_of(family, wanted.key(), &found)?;
        (value.port.0 < self.generation.shape.ports).then_some(value)
    }

    pub(super) fn port_at(&self, index: PortIndex, family: Family) -> DumpPort {
        let list = |scope| {
            let word = self.generation.word(index, scope);
            (word, self.generation.list(family, word))
        };
        DumpPort {
            index,
            family,
            facts: self.generation.facts(index),
            cluster: list(Scope::Cluster),
            local: list(Scope::Local),
        }
    }

    /// The addresses at which node ports are answered, sorted.
    pub fn node_addresses(&self) -> Result<Vec<std::net::IpAddr>, MapError> {
        let mut addresses = Vec::new();
        for table in self.shared.addresses() {
            let entries = table.entries().map_err(unreadable)?;
            addresses.extend(entries.iter().filter_map(|(key, _)| abi::node_address_of(key)));
        }
        addresses.sort_unstable();
        Ok(addresses)
    }
}
