//! Reads back all that the maps hold.
//!
//! Entries that this daemon did not write are left out; the engine judges the rest.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::list::Scope;
use holdfast_core::op::{Dump, DumpPort, FrontendValue, PortIndex, QuotaId};

use super::KernelMaps;
use crate::abi;
use crate::generation::Generation;
use crate::table::MapWalk;
use holdfast_core::maps::MapError;

#[derive(Debug)]
pub(super) enum DumpPart {
    Frontends(Family, MapWalk),
    Members(MapWalk),
    Sources,
    NodeAddresses,
}

#[allow(clippy::needless_pass_by_value)] // The shape that `map_err` wants.
fn read_error(error: std::io::Error) -> MapError {
    MapError::Refused { op: "read the maps", cause: error.to_string() }
}

/// All frontends of both families, sorted.
pub(super) fn read_frontends(
    generation: &Generation,
) -> Result<Vec<(FrontendKey, FrontendValue)>, std::io::Error> {
    let mut frontends = Vec::new();
    for family in Family::ALL {
        let entries = generation.frontends(family).entries()?;
        frontends.extend(entries.iter().filter_map(|(key, value)| abi::decode_frontend(family, key, value)));
    }
    frontends.sort_unstable();
    Ok(frontends)
}

/// The quota of each port with a frontend; empty if the frontends cannot be read.
pub(super) fn read_quotas(generation: &Generation) -> BTreeMap<PortIndex, QuotaId> {
    let found = read_frontends(generation).unwrap_or_default();
    found.into_iter().map(|(_, value)| (value.port, value.quota)).collect()
}

impl KernelMaps {
    pub(super) fn dump_all(&self) -> Result<Dump, MapError> {
        let mut frontends = read_frontends(&self.generation).map_err(read_error)?;
        frontends.retain(|(_, value)| value.port.0 < self.generation.shape.ports);
        let members = self.generation.members.entries().map_err(read_error)?;
        let mut members: Vec<_> =
            members.iter().filter_map(|(key, state)| abi::decode_member(key, state)).collect();
        members.sort_unstable();
        let families: BTreeMap<_, _> =
            frontends.iter().map(|(key, value)| (value.port, Family::from_address(key.address))).collect();
        let sources = self.sources.read(self.limits.ports)?;
        let used = self.generation.iter_used_ports().chain(members.iter().map(|(member, _)| member.port));
        let used = used.chain(sources.iter().flatten().map(|source| source.port));
        let orphans: BTreeSet<_> = used.filter(|index| !families.contains_key(index)).collect();
        Ok(Dump {
            frontends,
            ports: families.iter().map(|(index, family)| self.dump_port(*index, *family)).collect(),
            orphans: orphans.into_iter().collect(),
            members,
            sources,
            node_addresses: self.node_addresses()?,
        })
    }

    /// Reads the first piece if `anew`, otherwise the next one; pieces contain no ports.
    pub(super) fn dump_piece(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        if anew {
            self.pending_parts = self.dump_parts()?;
        }
        while let Some(part) = self.pending_parts.pop() {
            if let Some((found, rest)) = self.read_part(part)? {
                self.pending_parts.extend(rest);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// All parts, the first one last.
    fn dump_parts(&self) -> Result<Vec<DumpPart>, MapError> {
        let mut parts = vec![DumpPart::NodeAddresses, DumpPart::Sources];
        parts.push(DumpPart::Members(self.generation.members.walk().map_err(read_error)?));
        for family in Family::ALL {
            let walk = self.generation.frontends(family).walk().map_err(read_error)?;
            parts.push(DumpPart::Frontends(family, walk));
        }
        Ok(parts)
    }

    /// Reads a piece of a part, and returns the rest of the part. `None`: the part is complete.
    fn read_part(&self, part: DumpPart) -> Result<Option<(Dump, Option<DumpPart>)>, MapError> {
        let mut found = Dump::default();
        let rest = match part {
            DumpPart::Frontends(family, mut walk) => {
                let ports = self.generation.shape.ports;
                let is_known = |(_, value): &(FrontendKey, FrontendValue)| value.port.0 < ports;
                let each = |key: &[u8], value: &[u8]| {
                    found.frontends.extend(abi::decode_frontend(family, key, value).filter(is_known));
                };
                walk.visit_piece(each).map_err(read_error)?.then_some(DumpPart::Frontends(family, walk))
            }
            DumpPart::Members(mut walk) => {
                let each = |key: &[u8], state: &[u8]| found.members.extend(abi::decode_member(key, state));
                walk.visit_piece(each).map_err(read_error)?.then_some(DumpPart::Members(walk))
            }
            DumpPart::Sources => {
                found.sources = self.sources.read(self.limits.ports)?;
                return Ok(Some((found, None)));
            }
            DumpPart::NodeAddresses => {
                found.node_addresses = self.node_addresses()?;
                return Ok(Some((found, None)));
            }
        };
        Ok(rest.map(|rest| (found, Some(rest))))
    }

    /// The value of a frontend, looked up as programs do.
    pub(super) fn frontend_value(&self, key: &FrontendKey) -> Option<FrontendValue> {
        let family = Family::from_address(key.address);
        let wanted = abi::FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(wanted.key())?;
        let (_, value) = abi::decode_frontend(family, wanted.key(), &found)?;
        (value.port.0 < self.generation.shape.ports).then_some(value)
    }

    pub(super) fn dump_port(&self, index: PortIndex, family: Family) -> DumpPort {
        let list = |scope| {
            let word = self.generation.word(index, scope);
            (word, self.generation.read_list(family, word))
        };
        DumpPort {
            index,
            family,
            facts: self.generation.facts(index),
            cluster: list(Scope::Cluster),
            local: list(Scope::Local),
        }
    }

    /// The addresses that serve node ports, sorted.
    pub fn node_addresses(&self) -> Result<Vec<std::net::IpAddr>, MapError> {
        let mut addresses = Vec::new();
        for table in self.shared.node_addresses() {
            let entries = table.entries().map_err(read_error)?;
            addresses.extend(entries.iter().filter_map(|(key, _)| abi::decode_node_address(key)));
        }
        addresses.sort_unstable();
        Ok(addresses)
    }
}
