//! Publishes lists to running programs: first the slots, then the word that points to them.
//!
//! Invariant: one aligned store replaces a word, ordered after the slots, so a reader of the word finds the whole list.
//! The code works on any 64-bit cells, so the tests run it with cells that show stores in every order that another
//! processor may see.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_core::list::Slot;
use holdfast_core::op::{SlotRange, Word};

use crate::abi;

/// 64 bits that programs read.
pub(crate) trait Cell {
    /// Replaces all 64 bits at once.
    fn store(&self, word: u64, order: Ordering);
}

impl Cell for AtomicU64 {
    fn store(&self, word: u64, order: Ordering) {
        self.store(word, order);
    }
}

/// Writes a range that no word points to, and clears its remaining slots.
pub(crate) fn fill_range<C: Cell>(array: &[C], range: SlotRange, mut slots: impl Iterator<Item = Slot>) {
    let words = abi::slot_words(range.family);
    let from = range.base as usize * words;
    let cells = array.get(from..from + range.count as usize * words);
    for slot in cells.unwrap_or_default().chunks_exact(words) {
        let words = slots.next().and_then(|slot| abi::encode_slot(range.family, &slot)).unwrap_or_default();
        slot.iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
    }
}

/// Publishes a word: programs see the old list or the new one. A program that sees the word sees all that was written
/// before it.
pub(crate) fn publish_word<C: Cell>(cell: &C, word: Word) {
    cell.store(abi::encode_word(word), Ordering::Release);
}

#[cfg(test)]
mod tests;
