//! A hash index with look-ups by key, but no iteration in hash order.
//!
//! Invariant: no result of this crate depends on the order of a hash table, because the index never shows that order.
//! Authors of objects choose the keys and may know this code, but without the seed they cannot choose keys that
//! collide. The seed comes from the agent; it changes no result.
//!
//! The hash is SipHash-1-3, as in the standard library's tables. A hash with public constants is no substitute, even
//! with a random start: foldhash's `FixedState` multiplies by them, and some addresses made the product zero for every
//! start.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::siphash::SipHasher;
use crate::work;

/// The secret key of all hashes. It has no default, because a known key protects nothing. The daemon draws it at random
/// at each start, and nothing visible from outside reveals it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u128);

/// Hides the key, because formatted text may end in a log.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Seed {
    /// Hashes a value. The hash tells nothing about the value's place in any visible order.
    #[inline]
    pub(crate) fn hash<Q: Hash + ?Sized>(self, value: &Q) -> u64 {
        let mut hasher = SipHasher::new(self.0);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// Maps exact keys to values.
#[derive(Clone, Debug)]
pub struct Index<K, V> {
    entries: HashTable<(K, V)>,
    seed: Seed,
}

/// Whether an entry has exactly this key. Each entry that a search visits counts as work.
fn has_key<K: Borrow<Q>, V, Q: Eq + ?Sized>((own, _): &(K, V), key: &Q) -> bool {
    work::count_work(1);
    own.borrow() == key
}

impl<K: Hash + Eq, V> Index<K, V> {
    pub fn new(seed: Seed) -> Self {
        Self { entries: HashTable::new(), seed }
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if self.is_empty() {
            return None;
        }
        let found = self.entries.find(self.seed.hash(key), |entry| has_key(entry, key));
        found.map(|(_, value)| value)
    }

    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if self.is_empty() {
            return None;
        }
        let found = self.entries.find_mut(self.seed.hash(key), |entry| has_key(entry, key));
        found.map(|(_, value)| value)
    }

    /// Returns the value of a key, inserting a new one if the key is missing.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let (_, value) = self.entry(&key).or_insert_with(|| (key, make())).into_mut();
        value
    }

    /// Changes the value of a key, or a new one if the key is missing, and keeps it only if `change` returns `true`.
    /// Takes one look-up.
    pub fn update(&mut self, key: K, make: impl FnOnce() -> V, change: impl FnOnce(&mut V) -> bool) {
        match self.entry(&key) {
            Entry::Occupied(mut entry) => {
                if !change(&mut entry.get_mut().1) {
                    entry.remove();
                }
            }
            Entry::Vacant(entry) => {
                let mut value = make();
                if change(&mut value) {
                    entry.insert((key, value));
                }
            }
        }
    }

    /// Sets the value of a key, and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.entry(&key) {
            Entry::Occupied(mut entry) => Some(core::mem::replace(&mut entry.get_mut().1, value)),
            Entry::Vacant(entry) => {
                entry.insert((key, value));
                None
            }
        }
    }

    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if self.is_empty() {
            return None;
        }
        let found = self.entries.find_entry(self.seed.hash(key), |entry| has_key(entry, key));
        found.ok().map(|entry| entry.remove().0.1)
    }

    /// Reserves space for `more` entries.
    pub fn reserve(&mut self, more: usize) {
        let Self { entries, seed } = self;
        entries.reserve(more, |(key, _)| seed.hash(key));
    }

    pub fn shrink(&mut self) {
        let Self { entries, seed } = self;
        entries.shrink_to_fit(|(key, _)| seed.hash(key));
    }

    pub fn retain(&mut self, mut is_kept: impl FnMut(&K, &V) -> bool) {
        self.entries.retain(|(key, value)| is_kept(key, value));
    }

    /// Removes the entries for which `is_meant` returns `true`, and returns them in the order of their keys.
    pub fn take_if(&mut self, mut is_meant: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)>
    where
        K: Ord,
    {
        let mut taken: Vec<_> = self.entries.extract_if(|(key, value)| is_meant(key, value)).collect();
        taken.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        taken
    }

    /// All entries in the order of their keys. Each call sorts them.
    pub fn iter_sorted(&self) -> impl Iterator<Item = (&K, &V)>
    where
        K: Ord,
    {
        let mut entries: Vec<_> = self.entries.iter().map(|(key, value)| (key, value)).collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&mut self, key: &K) -> Entry<'_, (K, V)> {
        let Self { entries, seed } = self;
        entries.entry(seed.hash(key), |entry| has_key(entry, key), |(key, _)| seed.hash(key))
    }
}

#[cfg(test)]
mod tests;
