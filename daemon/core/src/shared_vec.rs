//! A vector that is cheap to clone; a change copies one chunk and the table of chunks.
//!
//! Invariant: a clone never sees a later change. The engine keeps one and gives readers a clone with each batch.
//! Removing an element leaves its position empty: nothing moves.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// One change copies this many pointers, and the table of chunks, which has as many for 64 thousand elements.
const CHUNK: usize = 256;

/// Positions with or without an element.
#[derive(Debug)]
pub struct SharedVec<T> {
    chunks: Arc<Vec<Arc<Vec<Option<T>>>>>,
}

impl<T> Clone for SharedVec<T> {
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks) }
    }
}

impl<T> Default for SharedVec<T> {
    fn default() -> Self {
        Self { chunks: Arc::default() }
    }
}

impl<T> SharedVec<T> {
    /// Whether one is an unchanged clone of the other. Two other vectors may still have equal elements.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunks, &other.chunks)
    }
}

impl<T: Clone> SharedVec<T> {
    pub fn get(&self, position: usize) -> Option<&T> {
        self.chunks.get(position / CHUNK)?.get(position % CHUNK)?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().flatten())
    }

    /// All elements with their positions, in order.
    pub fn iter_indexed(&self) -> impl Iterator<Item = (usize, &T)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(|(number, chunk)| {
            let places = (number * CHUNK..).zip(chunk.iter());
            places.filter_map(|(place, element)| Some((place, element.as_ref()?)))
        })
    }

    /// Sets or clears a position.
    pub fn set(&mut self, position: usize, element: Option<T>) {
        let chunks = Arc::make_mut(&mut self.chunks);
        while chunks.len() <= position / CHUNK {
            chunks.push(Arc::default());
        }
        let Some(chunk) = chunks.get_mut(position / CHUNK).map(Arc::make_mut) else { return };
        if chunk.len() <= position % CHUNK {
            chunk.resize(position % CHUNK + 1, None);
        }
        if let Some(slot) = chunk.get_mut(position % CHUNK) {
            *slot = element;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_never_sees_a_later_change() {
        let mut shared_vec = SharedVec::default();
        shared_vec.set(700, Some('a'));
        let before = shared_vec.clone();
        shared_vec.set(700, Some('b'));
        shared_vec.set(3, Some('c'));
        assert_eq!(before.iter().collect::<Vec<_>>(), [&'a']);
        assert_eq!(shared_vec.iter().collect::<Vec<_>>(), [&'c', &'b']);
        assert_eq!(
            (shared_vec.get(700), shared_vec.get(699), shared_vec.get(9999)),
            (Some(&'b'), None, None)
        );
    }

    #[test]
    fn a_clone_is_the_same_until_one_of_them_changes() {
        let mut shared_vec = SharedVec::default();
        shared_vec.set(3, Some(1));
        let clone = shared_vec.clone();
        assert!(shared_vec.is_same(&clone));
        shared_vec.set(3, Some(1));
        assert!(!shared_vec.is_same(&clone));
    }

    #[test]
    fn a_cleared_position_is_empty() {
        let mut shared_vec = SharedVec::default();
        shared_vec.set(300, Some(1));
        shared_vec.set(300, None);
        assert_eq!(shared_vec.iter().count(), 0);
    }
}
