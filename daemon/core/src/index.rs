//! A hash index that can be asked, but not walked in its own order.
//!
//! Invariant: nothing that this crate computes depends on the order of a hash table, because there is no way to see
//! that order. Authors of objects choose the keys and may know this code, but they do not know the seed, so they cannot
//! choose keys that collide. The seed comes from the shell; it changes no result.
//!
//! The hash is SipHash-1-3, as in the standard library's tables. A hash whose constants are public is no substitute,
//! even with a random start: foldhash's `FixedState` multiplies with them, and there were addresses that made the
//! product zero for every start.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::siphash::SipHasher;
use crate::work;

/// The secret key of all hashes. There is no default: a key that is known protects nothing. The daemon draws it at
/// random at each start, and nothing that can be seen from outside follows from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u128);

/// Shows nothing of the key: what is formatted may end in a log.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Seed {
    /// A number for a value. It says nothing of the value's place in any order that is shown.
    #[inline]
    pub(crate) fn hash<Q: Hash + ?Sized>(self, value: &Q) -> u64 {
        let mut hasher = SipHasher::new(self.0);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// Exact key to value.
#[derive(Clone, Debug)]
pub struct Index<K, V> {
    entries: HashTable<(K, V)>,
    seed: Seed,
}

/// Whether an entry has exactly this key. Each entry that a search comes by is a step of it.
fn has_key<K: Borrow<Q>, V, Q: Eq + ?Sized>((own, _): &(K, V), key: &Q) -> bool {
    work::count_work(1);
    own.borrow() == key
}

impl<K: Hash + Eq, V> Index<K, V> {
    /// An empty index.
    pub fn new(seed: Seed) -> Self {
        Self { entries: HashTable::new(), seed }
    }

    /// The value of exactly this key.
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

    /// The value of exactly this key, to change.
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

    /// The value of exactly this key, made now if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let (_, value) = self.entry(&key).or_insert_with(|| (key, make())).into_mut();
        value
    }

    /// Changes the value of exactly this key, made now if there is none. It stays only if the change says so. One
    /// look-up does it all.
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

    /// Sets the value of exactly this key and gives the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.entry(&key) {
            Entry::Occupied(mut entry) => Some(core::mem::replace(&mut entry.get_mut().1, value)),
            Entry::Vacant(entry) => {
                entry.insert((key, value));
                None
            }
        }
    }

    /// Takes the value of exactly this key out.
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

    /// Makes room for so many more at once, where it is known that they come.
    pub fn reserve(&mut self, more: usize) {
        let Self { entries, seed } = self;
        entries.reserve(more, |(key, _)| seed.hash(key));
    }

    /// Gives back the room that no entry needs now.
    pub fn shrink(&mut self) {
        let Self { entries, seed } = self;
        entries.shrink_to_fit(|(key, _)| seed.hash(key));
    }

    /// Keeps the entries of which this says so.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K, &V) -> bool) {
        self.entries.retain(|(key, value)| is_kept(key, value));
    }

    /// Takes out the entries of which this says so, in the order of their keys.
    pub fn take_if(&mut self, mut is_meant: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)>
    where
        K: Ord,
    {
        let mut taken: Vec<_> = self.entries.extract_if(|(key, value)| is_meant(key, value)).collect();
        taken.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        taken
    }

    /// All entries in the order of their keys. They are sorted anew each time.
    pub fn iter_sorted(&self) -> impl Iterator<Item = (&K, &V)>
    where
        K: Ord,
    {
        let mut entries: Vec<_> = self.entries.iter().map(|(key, value)| (key, value)).collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
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
