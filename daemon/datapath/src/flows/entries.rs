//! The entries that lead to flows.
//!
//! Invariant: an entry is deleted only if it leads to the given flow. If another flow has replaced the entry meanwhile,
//! it stays or is inserted again at once.

use std::collections::VecDeque;
use std::io;

use holdfast_core::keys::Family;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::abi::flow::EntryKey;
use crate::table::MapWalk;

#[derive(Debug)]
pub(super) struct FlowEntries([MapHandle; 2]);

impl FlowEntries {
    /// `maps` starts with the map of IPv4.
    pub(super) fn new(maps: [MapHandle; 2]) -> Self {
        Self(maps)
    }

    fn family_map(&self, key: &EntryKey) -> &MapHandle {
        let [v4, v6] = &self.0;
        if key.family() == Family::V4 { v4 } else { v6 }
    }

    /// The number of the flow that an entry leads to.
    pub(super) fn get(&self, key: &EntryKey) -> Result<Option<u32>, libbpf_rs::Error> {
        Ok(decode_number(self.family_map(key).lookup(key.bytes(), MapFlags::ANY)?))
    }

    /// Begins a search for all entries that lead to a flow.
    pub(super) fn search_entries(&self, to: u32) -> Result<EntrySearch, libbpf_rs::Error> {
        let [v4, v6] = &self.0;
        let walks = [(Family::V4, MapWalk::new(v4)?), (Family::V6, MapWalk::new(v6)?)];
        Ok(EntrySearch { to, left: walks.into() })
    }

    /// Inserts an entry. `false`: it exists already.
    pub(super) fn insert(&self, key: &EntryKey, to: u32) -> Result<bool, libbpf_rs::Error> {
        match self.family_map(key).update(key.bytes(), &to.to_ne_bytes(), MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes an entry that leads to that flow. `true`: this call deleted it.
    pub(super) fn remove(&self, key: &EntryKey, to: u32) -> Result<bool, libbpf_rs::Error> {
        if self.get(key)? != Some(to) {
            return Ok(false);
        }
        match self.family_map(key).lookup_and_delete(key.bytes()) {
            Ok(found) => match decode_number(found) {
                Some(other) if other != to => self.insert(key, other).map(|_| false),
                found => Ok(found.is_some()),
            },
            // Before Linux 5.14 a hash map does not return the deleted value.
            Err(_) => self.delete(key),
        }
    }

    fn delete(&self, key: &EntryKey) -> Result<bool, libbpf_rs::Error> {
        match self.family_map(key).delete(key.bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A search for the entries that lead to one number, in pieces, because a map holds up to millions.
#[derive(Debug)]
pub(super) struct EntrySearch {
    to: u32,
    left: VecDeque<(Family, MapWalk)>,
}

impl EntrySearch {
    /// Searches one piece and calls back with each match. `false`: the search is complete.
    pub(super) fn search_piece(&mut self, mut found: impl FnMut(EntryKey)) -> io::Result<bool> {
        let Some((family, walk)) = self.left.front_mut() else { return Ok(false) };
        let is_match = |value: &[u8]| *value == self.to.to_ne_bytes();
        let has_more = walk.visit_piece(|key, value| {
            EntryKey::from_bytes(*family, key).filter(|_| is_match(value)).into_iter().for_each(&mut found);
        })?;
        if !has_more {
            self.left.pop_front();
        }
        Ok(true)
    }
}

fn decode_number(value: Option<Vec<u8>>) -> Option<u32> {
    Some(u32::from_ne_bytes(value?.try_into().ok()?))
}
