//! Bits that spare programs a search, in an array of the kernel.
//!
//! Invariant: a bit that was set is set until it is cleared here, for programs too, once [`Bitmap::repair`] has looked.
//! The bitmap's owner knows what a bit stands for.

use std::sync::atomic::Ordering;

use crate::mapped_array::MappedArray;

/// The bits, and what they should be.
#[derive(Debug)]
pub(crate) struct Bitmap {
    view: MappedArray,
    desired: Vec<u64>,
    // The bits that were found beside the wanted ones, and stay for now.
    adopted: Vec<u64>,
}

impl Bitmap {
    /// Sets these bits beside those that were found. A bit of these that was set already is not clear meanwhile.
    pub(crate) fn adopt(view: MappedArray, bits: impl Iterator<Item = u32>) -> Self {
        let kept: Vec<u64> = view.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let mut wanted = vec![0; view.len()];
        for (at, mask) in bits.map(locate_bit) {
            if let Some(word) = wanted.get_mut(at) {
                *word |= mask;
            }
        }
        let bitmap = Self { view, desired: wanted, adopted: kept };
        bitmap.repair();
        bitmap
    }

    /// Sets all bits for now, where none were found: which of them were set is lost, and a bit too many only costs a
    /// search.
    pub(crate) fn set_all_if_empty(&mut self) {
        if self.adopted.iter().all(|word| *word == 0) {
            self.adopted.fill(u64::MAX);
            self.repair();
        }
    }

    /// Clears the bits that were found and have not been set since.
    pub(crate) fn clear_adopted(&mut self) {
        self.adopted.fill(0);
        self.repair();
    }

    pub(crate) fn set(&mut self, bit: u32) {
        let (at, mask) = locate_bit(bit);
        if let Some(word) = self.desired.get_mut(at).filter(|word| **word & mask == 0) {
            *word |= mask;
            self.write_word(at);
        }
    }

    pub(crate) fn clear(&mut self, bit: u32) {
        let (at, mask) = locate_bit(bit);
        if let Some(word) = self.desired.get_mut(at) {
            *word &= !mask;
        }
        if let Some(word) = self.adopted.get_mut(at) {
            *word &= !mask;
        }
        self.write_word(at);
    }

    /// Restores the words that were changed from outside. `true`: there were such words.
    pub(crate) fn repair(&self) -> bool {
        let words = self.view.iter().zip(self.expected_words());
        let changed = words.filter(|(word, due)| word.load(Ordering::Relaxed) != *due);
        changed.map(|(word, due)| word.store(due, Ordering::Release)).count() > 0
    }

    fn expected_words(&self) -> impl Iterator<Item = u64> {
        self.desired.iter().zip(&self.adopted).map(|(wanted, kept)| wanted | kept)
    }

    fn write_word(&self, at: usize) {
        if let (Some(word), Some(due)) = (self.view.get(at), self.expected_words().nth(at)) {
            word.store(due, Ordering::Release);
        }
    }
}

/// The word of a bit, and its mask there.
const fn locate_bit(bit: u32) -> (usize, u64) {
    (bit as usize / 64, 1 << (bit % 64))
}
