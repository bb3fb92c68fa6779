//! SipHash-1-3 over whole words.
//!
//! Invariant: without the key, colliding values cannot be chosen. Two values of one type give different words: each
//! number is a word of its own, and a text writes its length first.

use core::hash::Hasher;

/// The state of a hash as in the paper: <https://www.aumasson.jp/siphash/siphash.pdf>.
#[derive(Clone, Copy)]
pub(crate) struct SipHasher {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
    words: u64,
}

impl SipHasher {
    #[inline]
    pub(crate) fn new(key: u128) -> Self {
        let [low, high] =
            [key, key >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or_default());
        Self {
            v0: low ^ 0x736f_6d65_7073_6575,
            v1: high ^ 0x646f_7261_6e64_6f6d,
            v2: low ^ 0x6c79_6765_6e65_7261,
            v3: high ^ 0x7465_6462_7974_6573,
            words: 0,
        }
    }

    #[inline]
    const fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.mix();
        self.v0 ^= word;
        self.words += 1;
    }

    #[inline]
    const fn mix(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}

impl Hasher for SipHasher {
    #[inline]
    fn finish(&self) -> u64 {
        let mut end = *self;
        // The last word ends with the number of bytes, modulo 256.
        end.absorb(self.words << 59);
        end.v2 ^= 0xff;
        (0..3).for_each(|_| end.mix());
        end.v0 ^ end.v1 ^ end.v2 ^ end.v3
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.absorb(bytes.len() as u64);
        write_text(bytes, self);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.absorb(number.into());
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.absorb(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.absorb(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.absorb(number);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.absorb(number as u64);
    }
}

/// Writes a text in words; the last one may overlap the one before. The caller writes the length.
#[inline]
pub(crate) fn write_text(text: &[u8], state: &mut impl Hasher) {
    let (words, rest) = text.as_chunks();
    words.iter().for_each(|word| state.write_u64(u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        state.write_u64(text.last_chunk().map_or_else(|| short_word(rest), |last| u64::from_le_bytes(*last)));
    }
}

/// The word of a text with less than 8 bytes.
#[inline]
fn short_word(text: &[u8]) -> u64 {
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => half(first) << 32 | half(last),
        _ => text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use std::hash::DefaultHasher;

    use super::*;

    fn hash(key: u128, write: impl FnOnce(&mut SipHasher)) -> u64 {
        let mut hasher = SipHasher::new(key);
        write(&mut hasher);
        hasher.finish()
    }

    /// The standard library's hasher has a key of zero.
    #[test]
    fn words_hash_as_in_the_standard_library() {
        for length in 0..40_u64 {
            let words: Vec<u64> =
                (0..length).map(|at| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let mut other = DefaultHasher::new();
            words.iter().for_each(|word| other.write_u64(*word));
            let own = hash(0, |hasher| words.iter().for_each(|word| hasher.write_u64(*word)));
            assert_eq!(own, other.finish(), "{length} words");
        }
    }

    /// The key of the paper, the bytes 0 to 15, and the results of the standard library's own tests.
    #[test]
    fn a_known_key_gives_the_known_hashes() {
        let key = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
        assert_eq!(hash(key, |_| ()).to_le_bytes(), [0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]);
        let eight = hash(key, |hasher| hasher.write_u64(0x0706_0504_0302_0100));
        assert_eq!(eight.to_le_bytes(), [0x8e, 0x9a, 0x29, 0x8d, 0x11, 0x95, 0x90, 0x36]);
    }

    #[test]
    fn different_texts_and_numbers_hash_differently() {
        let text = |text: &'static str| hash(7, move |hasher| hasher.write(text.as_bytes()));
        let texts =
            ["", "a", "a\0", "\0", "1234", "12344", "123412344", "12345678", "123456789", "12345678\0"]
                .map(text);
        let two = |one: u8, other: u8| {
            hash(7, move |hasher| {
                hasher.write_u8(one);
                hasher.write_u8(other);
            })
        };
        let numbers = [two(1, 2), two(2, 1), two(0, 0), hash(7, |hasher| hasher.write_u16(0x0201))];
        let all: std::collections::BTreeSet<u64> = texts.into_iter().chain(numbers).collect();
        assert_eq!(all.len(), 14);
    }
}
