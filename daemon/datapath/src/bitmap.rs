//! Bits that spare programs a search, in an array of the kernel.
//!
//! Invariant: a bit that was set is set until it is cleared here, for programs too, once [`Bitmap::repair`] has looked.
//! Deliberately absent: what a bit stands for.

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
        for (at, mask) in bits.map(place) {
            if let Some(word) = wanted.get_mut(at) {
                *word |= mask;
            }
        }
        let bitmap = Self { view, wanted };
        bitmap.repair();
        bitmap
    }

    pub(crate) fn set(&mut self, bit: u32) {
        let (at, mask) = place(bit);
        if let Some(word) = self.wanted.get_mut(at).filter(|word| **word & mask == 0) {
            *word |= mask;
            self.write(at);
        }
    }

    pub(crate) fn clear(&mut self, bit: u32) {
        let (at, mask) = place(bit);
        if let Some(word) = self.wanted.get_mut(at) {
            *word &= !mask;
            self.write(at);
        }
    }

    /// Writes again what somebody else changed. `true`: there was something.
    pub(crate) fn repair(&self) -> bool {
        let places = self.view.iter().zip(&self.wanted);
        let changed = places.filter(|(place, wanted)| place.load(Ordering::Relaxed) != **wanted);
        changed.map(|(place, wanted)| place.store(*wanted, Ordering::Release)).count() > 0
    }

    fn write(&self, at: usize) {
        if let (Some(place), Some(wanted)) = (self.view.get(at), self.wanted.get(at)) {
            place.store(*wanted, Ordering::Release);
        }
    }
}

/// The word of a bit, and its place there.
const fn place(bit: u32) -> (usize, u64) {
    (bit as usize / 64, 1 << (bit % 64))
}
