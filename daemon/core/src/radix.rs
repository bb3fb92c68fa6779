//! A vector whose copy is cheap and whose change copies only one chunk.
//!
//! Invariant: a clone never sees a later change. The engine keeps one and gives a clone to the readers with each batch.
//! Deliberately absent: removal that moves elements; a place is emptied and stays.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// One change copies this many pointers; so does finding a chunk in a table of 64 thousand.
const CHUNK: usize = 256;

/// Places with or without an element.
#[derive(Debug)]
pub struct Radix<T> {
    chunks: Arc<Vec<Arc<Vec<Option<T>>>>>,
}

impl<T> Clone for Radix<T> {
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks) }
    }
}

impl<T> Default for Radix<T> {
    fn default() -> Self {
        Self { chunks: Arc::default() }
    }
}

impl<T> Radix<T> {
    /// Whether nothing was changed between the two. `false` says nothing.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunks, &other.chunks)
    }
}

impl<T: Clone> Radix<T> {
    /// The element at a place.
    pub fn get(&self, place: usize) -> Option<&T> {
        self.chunks.get(place / CHUNK)?.get(place % CHUNK)?.as_ref()
    }

    /// All elements, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().flatten())
    }

    /// Sets or empties a place.
    pub fn set(&mut self, place: usize, element: Option<T>) {
        let chunks = Arc::make_mut(&mut self.chunks);
        while chunks.len() <= place / CHUNK {
            chunks.push(Arc::default());
        }
        let Some(chunk) = chunks.get_mut(place / CHUNK).map(Arc::make_mut) else { return };
        if chunk.len() <= place % CHUNK {
            chunk.resize(place % CHUNK + 1, None);
        }
        if let Some(slot) = chunk.get_mut(place % CHUNK) {
            *slot = element;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_never_sees_a_later_change() {
        let mut radix = Radix::default();
        radix.set(700, Some('a'));
        let before = radix.clone();
        radix.set(700, Some('b'));
        radix.set(3, Some('c'));
        assert_eq!(before.iter().collect::<Vec<_>>(), [&'a']);
        assert_eq!(radix.iter().collect::<Vec<_>>(), [&'c', &'b']);
        assert_eq!((radix.get(700), radix.get(699), radix.get(9999)), (Some(&'b'), None, None));
    }

    #[test]
    fn a_clone_is_the_same_until_one_of_them_changes() {
        let mut radix = Radix::default();
        radix.set(3, Some(1));
        let clone = radix.clone();
        assert!(radix.is_same(&clone));
        radix.set(3, Some(1));
        assert!(!radix.is_same(&clone));
    }

    #[test]
    fn an_emptied_place_is_empty() {
        let mut radix = Radix::default();
        radix.set(300, Some(1));
        radix.set(300, None);
        assert_eq!(radix.iter().count(), 0);
    }
}
