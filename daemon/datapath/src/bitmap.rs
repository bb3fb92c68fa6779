//! Bits in an array of the kernel that spare programs a search.
//!
//! Invariant: a set bit stays set, for programs too, until this module clears it. [`Bitmap::repair`] undoes changes
//! from outside. The bitmap's owner defines what a bit means.

use std::sync::atomic::Ordering;

use crate::mapped_array::MappedArray;

#[derive(Debug)]
pub(crate) struct Bitmap {
    view: MappedArray,
    desired: Vec<u64>,
    // Bits that were set at the start beyond the desired ones. They stay until the owner drops them.
    adopted: Vec<u64>,
}

impl Bitmap {
    /// Sets these bits in addition to those already set. A bit that was set already never reads as clear.
    pub(crate) fn adopt(view: MappedArray, bits: impl Iterator<Item = u32>) -> Self {
        let adopted: Vec<u64> = view.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let mut desired = vec![0; view.len()];
        for (at, mask) in bits.map(locate_bit) {
            if let Some(word) = desired.get_mut(at) {
                *word |= mask;
            }
        }
        let bitmap = Self { view, desired, adopted };
        bitmap.repair();
        bitmap
    }

    /// Sets all bits for now if none is set. Nothing else says which bits were set, and an extra bit only costs a
    /// search.
    pub(crate) fn set_all_if_empty(&mut self) {
        if self.adopted.iter().all(|word| *word == 0) {
            self.adopted.fill(u64::MAX);
            self.repair();
        }
    }

    /// Clears the adopted bits that no call has set since.
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

    /// Restores words that something else changed. `true`: there were such words.
    pub(crate) fn repair(&self) -> bool {
        let words = self.view.iter().zip(self.expected_words());
        let changed = words.filter(|(word, expected)| word.load(Ordering::Relaxed) != *expected);
        changed.map(|(word, expected)| word.store(expected, Ordering::Release)).count() > 0
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

const fn locate_bit(bit: u32) -> (usize, u64) {
    (bit as usize / 64, 1 << (bit % 64))
}
