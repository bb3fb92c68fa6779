//! Random numbers from a seed, the same on every machine.

/// A sequence of numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below the bound, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.number() % bound).unwrap_or(0)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: usize) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns one of these.
    pub fn pick<T: Copy + Default>(&mut self, from: &[T]) -> T {
        let position = self.below(from.len());
        from.get(position).copied().unwrap_or_default()
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for position in (1..all.len()).rev() {
            let other = self.below(position + 1);
            all.swap(position, other);
        }
    }
}
