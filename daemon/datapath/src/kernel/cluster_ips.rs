//! The set of cluster IPs, so that programs refuse clients at ports that such an address does not have.
//!
//! Invariant: an address is in the maps only while it has a frontend, and from the first look after that frontend's
//! insertion. Thus a client of a service that is still being written is not refused at a port that is written next. A
//! former daemon's address is removed only if it is wrong.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use holdfast_core::keys::FrontendKey;
use holdfast_core::op::{FrontendType, FrontendValue};
use libbpf_rs::{MapCore, MapHandle};

use crate::abi;
use crate::error::StartError;
use crate::map::{self, Map, MapHandles, find_handle};
use crate::table;

/// The value of each key; only the key matters.
const PRESENT: u32 = 1;

const MAPS: [Map; 2] = [Map::ClusterIps4, Map::ClusterIps6];

/// The frontends at cluster IPs, and the maps that programs read.
#[derive(Debug, Default)]
pub(super) struct ClusterIps {
    frontends: HashSet<FrontendKey>,
    counts: HashMap<IpAddr, u32>,
    // Addresses added since the last look.
    fresh: BTreeSet<IpAddr>,
    maps: Option<MapHandles>,
}

impl ClusterIps {
    /// Starts with the frontends found in the maps, which are not fresh.
    pub(super) fn from_frontends(found: &[(FrontendKey, FrontendValue)]) -> Self {
        let mut all = Self::default();
        found.iter().for_each(|(key, value)| all.note_inserted(key, *value));
        all.fresh.clear();
        all
    }

    /// Writes the addresses into these maps from now on.
    pub(super) fn attach_maps(&mut self, given: &MapHandles) -> Result<(), StartError> {
        let maps = map::clone_handles(MAPS.iter().filter_map(|map| given.get_key_value(map)))?;
        for which in MAPS {
            let map = find_handle(&maps, which)?;
            let stale = map.keys().filter(|key| !self.is_known(key)).collect::<Vec<_>>();
            stale.iter().for_each(|key| drop(map.delete(key)));
        }
        self.maps = Some(maps);
        self.write_addresses(self.counts.keys().copied().filter(|address| !self.fresh.contains(address)));
        Ok(())
    }

    fn is_known(&self, key: &[u8]) -> bool {
        abi::decode_node_address(key).is_some_and(|address| self.counts.contains_key(&address))
    }

    /// Notes that a frontend was inserted or has changed its type.
    pub(super) fn note_inserted(&mut self, key: &FrontendKey, value: FrontendValue) {
        if value.kind != FrontendType::ClusterIp {
            return self.note_removed([key]);
        }
        if self.frontends.insert(*key) {
            let count = self.counts.entry(key.address).or_default();
            if *count == 0 {
                self.fresh.insert(key.address);
            }
            *count += 1;
        }
    }

    /// Notes that frontends are removed, or about to be.
    pub(super) fn note_removed<'a>(&mut self, keys: impl IntoIterator<Item = &'a FrontendKey>) {
        let mut gone = AddressKeys::default();
        for key in keys {
            if self.frontends.remove(key) && self.uncount_frontend(key.address) {
                self.fresh.remove(&key.address);
                gone.add_address(key.address);
            }
        }
        self.maps.iter().for_each(|maps| gone.for_each_in(maps, table::delete_many));
    }

    /// Uncounts a frontend of an address. `true`: it was the last one.
    fn uncount_frontend(&mut self, address: IpAddr) -> bool {
        let Entry::Occupied(mut count) = self.counts.entry(address) else { return false };
        *count.get_mut() = count.get().saturating_sub(1);
        let is_last = *count.get() == 0;
        if is_last {
            count.remove();
        }
        is_last
    }

    /// Writes the addresses that are older than the last look.
    pub(super) fn publish_fresh(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        self.write_addresses(fresh.into_iter());
    }

    /// Writes addresses into the maps. If a map is full, packets to an unlisted port of the address pass unchanged.
    fn write_addresses(&self, addresses: impl Iterator<Item = IpAddr>) {
        let Some(maps) = &self.maps else { return };
        let mut keys = AddressKeys::default();
        addresses.for_each(|address| keys.add_address(address));
        keys.for_each_in(maps, |map, keys| table::put_many(map, keys, &PRESENT.to_ne_bytes()));
    }
}

/// Keys for each of the two maps, concatenated.
#[derive(Default)]
struct AddressKeys([Vec<u8>; 2]);

impl AddressKeys {
    fn add_address(&mut self, address: IpAddr) {
        let Self([v4, v6]) = self;
        let keys = if address.is_ipv4() { v4 } else { v6 };
        keys.extend_from_slice(&abi::encode_node_address(address));
    }

    fn for_each_in(&self, maps: &MapHandles, act: impl Fn(&MapHandle, &[u8])) {
        for (keys, map) in self.0.iter().zip(MAPS) {
            maps.get(&map).into_iter().for_each(|map| act(map, keys));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use holdfast_core::keys::Transport;
    use holdfast_core::op::{PortIndex, QuotaId};

    use super::*;

    fn key(address: &str, port: u16) -> FrontendKey {
        let port = NonZeroU16::new(port).unwrap();
        FrontendKey { address: address.parse().unwrap(), port, transport: Transport::Tcp }
    }

    fn value(kind: FrontendType) -> FrontendValue {
        FrontendValue { port: PortIndex(1), kind, quota: QuotaId::default() }
    }

    /// The addresses, fresh ones marked by a question mark.
    fn shown(all: &ClusterIps) -> Vec<String> {
        let mark = |address: &IpAddr| if all.fresh.contains(address) { "?" } else { "" };
        let mut known: Vec<_> = all.counts.keys().copied().collect();
        known.sort_unstable();
        known.iter().map(|address| format!("{address}{}", mark(address))).collect()
    }

    #[test]
    fn an_address_is_published_after_a_look_until_its_last_port_goes() {
        let mut all = ClusterIps::default();
        all.note_inserted(&key("10.96.0.1", 80), value(FrontendType::ClusterIp));
        all.note_inserted(&key("10.96.0.1", 81), value(FrontendType::ClusterIp));
        all.note_inserted(&key("fd00::1", 80), value(FrontendType::ClusterIp));
        all.note_inserted(&key("192.0.2.1", 80), value(FrontendType::LoadBalancer));
        assert_eq!(shown(&all), ["10.96.0.1?", "fd00::1?"]);
        all.publish_fresh();
        assert_eq!(shown(&all), ["10.96.0.1", "fd00::1"]);
        all.note_removed([&key("10.96.0.1", 80)]);
        all.note_removed([&key("10.96.0.1", 80)]);
        assert_eq!(shown(&all), ["10.96.0.1", "fd00::1"]);
        all.note_removed([&key("10.96.0.1", 81)]);
        assert_eq!(shown(&all), ["fd00::1"]);
    }

    /// An import's author may choose any address; another host may have the address's other ports.
    #[test]
    fn an_imports_address_is_not_published_as_a_cluster_ip() {
        let mut all = ClusterIps::default();
        all.note_inserted(&key("10.200.0.1", 80), value(FrontendType::ClusterSetIp));
        all.publish_fresh();
        assert_eq!(shown(&all), Vec::<String>::new());
    }

    #[test]
    fn a_frontend_that_changes_its_type_leaves_the_cluster_ips() {
        let mut all = ClusterIps::from_frontends(&[(key("10.96.0.1", 80), value(FrontendType::ClusterIp))]);
        assert_eq!(shown(&all), ["10.96.0.1"], "found frontends are not fresh");
        all.note_inserted(&key("10.96.0.1", 80), value(FrontendType::ExternalIp));
        assert_eq!(shown(&all), Vec::<String>::new());
    }
}
