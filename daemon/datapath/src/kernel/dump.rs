//! Reads everything back that the maps hold.
//!
//! What cannot be read as an entry of ours is left out; the engine judges the rest.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::list::Scope;
use holdfast_core::op::{Dump, DumpPort, Entry, FrontendValue, PortIndex, Share};

use super::KernelMaps;
use crate::abi;
use crate::generation::Generation;
use holdfast_core::maps::MapError;

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
pub(super) fn shares(generation: &Generation) -> BTreeMap<PortIndex, Share> {
    let found = frontends(generation).unwrap_or_default();
    found.into_iter().map(|(_, value)| (value.port, value.share)).collect()
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
            frontends.iter().map(|(key, value)| (value.port, Family::of(key.address))).collect();
        let sources = self.sources.read(self.limits.ports)?;
        let told = self.generation.said().chain(members.iter().map(|(member, _)| member.port));
        let told = told.chain(sources.iter().flatten().map(|source| source.port));
        let orphans: BTreeSet<_> = told.filter(|index| !families.contains_key(index)).collect();
        Ok(Dump {
            frontends,
            ports: families.iter().map(|(index, family)| self.read_port(*index, *family)).collect(),
            orphans: orphans.into_iter().collect(),
            members,
            sources,
            node_addresses: self.node_addresses()?,
        })
    }

    /// Looks one frontend up, as the programs do.
    pub(super) fn read_one(&self, key: &FrontendKey) -> Option<Entry> {
        let family = Family::of(key.address);
        let wanted = abi::FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(wanted.key())?;
        let (_, value) = abi::frontend_of(family, wanted.key(), &found)?;
        let is_known = value.port.0 < self.generation.shape.ports;
        is_known.then(|| Entry { value, port: self.read_port(value.port, family) })
    }

    fn read_port(&self, index: PortIndex, family: Family) -> DumpPort {
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
