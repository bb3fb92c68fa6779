//! A hash index that can be asked, but not walked in its own order.
//!
//! Invariant: nothing that this crate computes depends on the order of a hash table, because there is no way to see
//! that order. The seed comes from the shell, so that no author of objects can choose names that collide; it changes no
//! result.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// What the hash starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(pub u64);

/// Exact key to value.
#[derive(Clone, Debug)]
pub struct Index<K, V> {
    entries: HashMap<K, V, Hasher>,
}

#[derive(Clone, Debug)]
struct Hasher(FixedState);

impl BuildHasher for Hasher {
    type Hasher = <FixedState as BuildHasher>::Hasher;

    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

/// A number for a value. It says nothing of the value's place in any order that is shown.
pub(crate) fn hash(seed: Seed, value: &impl Hash) -> u64 {
    FixedState::with_seed(seed.0).hash_one(value)
}

impl<K: Hash + Eq, V> Index<K, V> {
    /// An empty index.
    pub fn new(seed: Seed) -> Self {
        Self { entries: HashMap::with_hasher(Hasher(FixedState::with_seed(seed.0))) }
    }

    /// The value of exactly this key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key)
    }

    /// The value of exactly this key, to change.
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.entries.get_mut(key)
    }

    /// The value of exactly this key, made now if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.entries.entry(key).or_insert_with(make)
    }

    /// Changes the value of exactly this key, made now if there is none. It stays only if the change says so. One
    /// look-up does it all.
    pub fn update(&mut self, key: K, make: impl FnOnce() -> V, change: impl FnOnce(&mut V) -> bool) {
        match self.entries.entry(key) {
            Entry::Occupied(mut entry) => {
                if !change(entry.get_mut()) {
                    entry.remove();
                }
            }
            Entry::Vacant(entry) => {
                let mut value = make();
                if change(&mut value) {
                    entry.insert(value);
                }
            }
        }
    }

    /// Sets the value of exactly this key and gives the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.entries.insert(key, value)
    }

    /// Takes the value of exactly this key out.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key)
    }

    /// Makes room for so many more at once, where it is known that they come.
    pub fn reserve(&mut self, more: usize) {
        self.entries.reserve(more);
    }

    /// Gives back the room that no entry needs now.
    pub fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Keeps the entries of which this says so.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K, &V) -> bool) {
        self.entries.retain(|key, value| is_kept(key, value));
    }

    /// Takes out the entries of which this says so, in the order of their keys.
    pub fn take_if(&mut self, mut is_meant: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)>
    where
        K: Ord,
    {
        let mut taken: Vec<_> = self.entries.extract_if(|key, value| is_meant(key, value)).collect();
        taken.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        taken
    }

    /// All entries in the order of their keys. They are sorted anew each time.
    pub fn sorted(&self) -> impl Iterator<Item = (&K, &V)>
    where
        K: Ord,
    {
        let mut entries: Vec<_> = self.entries.iter().collect();
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
}
