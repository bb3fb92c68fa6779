//! A set of services that is cheap to clone: a bit for each id.
//!
//! Invariant: a clone never sees a later change. A change copies one chunk of words, and only if a bit changes.

use crate::op::ServiceId;
use crate::shared_vec::SharedVec;

#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSet {
    words: SharedVec<u64>,
}

impl SharedSet {
    /// Adds an id to the set or removes it.
    pub(crate) fn set(&mut self, id: ServiceId, is_in: bool) {
        let (place, bit) = (id.0 / u64::BITS, 1 << (id.0 % u64::BITS));
        let place = place as usize;
        let before = self.words.get(place).copied().unwrap_or_default();
        let after = if is_in { before | bit } else { before & !bit };
        if after != before {
            self.words.set(place, (after != 0).then_some(after));
        }
    }

    /// All ids in order. It reads one word for every 64 possible ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ServiceId> {
        self.words.iter_indexed().flat_map(|(place, word)| {
            let first = u32::try_from(place).unwrap_or_default().saturating_mul(u64::BITS);
            let bits = (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| ServiceId(first.saturating_add(bit)))
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn a_set_holds_its_ids_and_a_clone_never_changes() {
        let mut set = SharedSet::default();
        let ids = [0, 63, 64, 70_000, 1 << 20].map(ServiceId);
        ids.into_iter().rev().for_each(|id| set.set(id, true));
        let before = set.clone();
        set.set(ServiceId(64), false);
        set.set(ServiceId(5), false);
        assert_eq!(before.iter().collect::<Vec<_>>(), ids, "sorted");
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 70_000, 1 << 20].map(ServiceId));
        ids.into_iter().for_each(|id| set.set(id, false));
        assert_eq!((set.iter().count(), set.words.iter().count()), (0, 0), "nothing is left behind");
    }
}
