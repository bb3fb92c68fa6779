//! What leads to flows.
//!
//! Invariant: an entry is taken away only where it leads to the flow that is meant; one of another flow, put in its
//! place meanwhile, stays or is put back at once.

use std::io;

use holdfast_core::keys::Family;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::abi::flow::EntryKey;
use crate::table::Table;

/// The entries of both families.
#[derive(Debug)]
pub(super) struct Entries([MapHandle; 2]);

impl Entries {
    /// Those of IPv4 come first.
    pub(super) fn new(maps: [MapHandle; 2]) -> Self {
        Self(maps)
    }

    fn of(&self, key: &EntryKey) -> &MapHandle {
        let [v4, v6] = &self.0;
        if key.family() == Family::V4 { v4 } else { v6 }
    }

    /// The number of the flow that it leads to.
    pub(super) fn get(&self, key: &EntryKey) -> Result<Option<u32>, libbpf_rs::Error> {
        Ok(number(self.of(key).lookup(key.bytes(), MapFlags::ANY)?))
    }

    /// All that lead there, of what may be a million entries: for a start.
    pub(super) fn leading_to(&self, to: u32) -> io::Result<Vec<EntryKey>> {
        let mut found = Vec::new();
        for (map, family) in self.0.iter().zip([Family::V4, Family::V6]) {
            let map = MapHandle::try_from(map).map_err(|error| io::Error::other(format!("{error:#}")))?;
            let entries = Table::new(map).entries()?;
            let those = entries.iter().filter(|(_, value)| **value == to.to_ne_bytes());
            found.extend(those.filter_map(|(key, _)| EntryKey::of(family, key)));
        }
        Ok(found)
    }

    /// `false`: there is one already.
    pub(super) fn insert(&self, key: &EntryKey, to: u32) -> Result<bool, libbpf_rs::Error> {
        match self.of(key).update(key.bytes(), &to.to_ne_bytes(), MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// `true`: the entry led there, and this very call has deleted it.
    pub(super) fn remove(&self, key: &EntryKey, to: u32) -> Result<bool, libbpf_rs::Error> {
        if self.get(key)? != Some(to) {
            return Ok(false);
        }
        match self.of(key).lookup_and_delete(key.bytes()) {
            Ok(found) => match number(found) {
                Some(other) if other != to => self.insert(key, other).map(|_| false),
                found => Ok(found.is_some()),
            },
            // Before Linux 5.14 a hash map does not tell what it gives up.
            Err(_) => self.delete(key),
        }
    }

    fn delete(&self, key: &EntryKey) -> Result<bool, libbpf_rs::Error> {
        match self.of(key).delete(key.bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn number(value: Option<Vec<u8>>) -> Option<u32> {
    Some(u32::from_ne_bytes(value?.try_into().ok()?))
}
