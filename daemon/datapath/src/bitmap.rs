//! Bits that spare programs a search, in an array of the kernel.
//!
//! Invariant: a bit that was set is set until it is cleared here, for programs too, once [`Bitmap::repair`] has looked.
//! What a bit stands for, its owner knows.

use std::sync::atomic::Ordering;

use crate::view::View;

/// The bits, and what they should be.
#[derive(Debug)]
pub(crate) struct Bitmap {
    view: View,
    wanted: Vec<u64>,
}

impl Bitmap {
    /// Sets exactly these, whatever was found; none of them is clear meanwhile that was not.
    pub(crate) fn new(view: View, bits: impl Iterator<Item = u32>) -> Self {
        let mut wanted = vec![0; view.len()];
        for (at, mask) in bits.map(locate) {
            if let Some(word) = wanted.get_mut(at) {
                *word |= mask;
            }
        }
        let bitmap = Self { view, wanted };
        bitmap.repair();
        bitmap
    }

    pub(crate) fn set(&mut self, bit: u32) {
        let (at, mask) = locate(bit);
        if let Some(word) = self.wanted.get_mut(at).filter(|word| **word & mask == 0) {
            *word |= mask;
            self.write(at);
        }
    }

    pub(crate) fn clear(&mut self, bit: u32) {
        let (at, mask) = locate(bit);
        if let Some(word) = self.wanted.get_mut(at) {
            *word &= !mask;
            self.write(at);
        }
    }

    /// Writes again what somebody else changed. `true`: there was something.
    pub(crate) fn repair(&self) -> bool {
        let words = self.view.iter().zip(&self.wanted);
        let changed = words.filter(|(word, wanted)| word.load(Ordering::Relaxed) != **wanted);
        changed.map(|(word, wanted)| word.store(*wanted, Ordering::Release)).count() > 0
    }

    fn write(&self, at: usize) {
        if let (Some(word), Some(wanted)) = (self.view.get(at), self.wanted.get(at)) {
            word.store(*wanted, Ordering::Release);
        }
    }
}

/// The word of a bit, and its mask there.
const fn locate(bit: u32) -> (usize, u64) {
    (bit as usize / 64, 1 << (bit % 64))
}
