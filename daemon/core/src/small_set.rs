//! A sorted set that nearly always has one element: a cluster has one per service, and a tree allocates eleven elements
//! for each.
//!
//! Invariant: the elements are sorted and unique in either form.

use alloc::collections::BTreeSet;
use core::ops::Bound;

/// A sorted set, without a tree for one element.
#[derive(Clone, Debug, Default)]
pub(crate) enum SmallSet<T> {
    #[default]
    None,
    One(T),
    Many(BTreeSet<T>),
}

impl<T: Ord + Copy> SmallSet<T> {
    pub(crate) fn insert(&mut self, element: T) {
        match self {
            Self::None => *self = Self::One(element),
            Self::One(one) if *one == element => {}
            Self::One(one) => *self = Self::Many([*one, element].into()),
            Self::Many(many) => {
                many.insert(element);
            }
        }
    }

    pub(crate) fn remove(&mut self, element: &T) {
        match self {
            Self::One(one) if one == element => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Many(many) => {
                many.remove(element);
                if many.is_empty() {
                    *self = Self::None;
                }
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.iter_after(None)
    }

    /// The elements after this one, or all.
    pub(crate) fn iter_after(&self, element: Option<T>) -> impl Iterator<Item = &T> {
        let begin = element.map_or(Bound::Unbounded, Bound::Excluded);
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many.range((begin, Bound::Unbounded)))),
        };
        let one = one.filter(|one| element.is_none_or(|element| **one > element));
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(many) => many.len(),
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_small_set_behaves_like_a_tree(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..4), 0..20),
            after in proptest::option::of(0_u8..4),
        ) {
            let (mut few, mut tree) = (SmallSet::default(), BTreeSet::new());
            for (inserts, element) in steps {
                if inserts {
                    few.insert(element);
                    tree.insert(element);
                } else {
                    few.remove(&element);
                    tree.remove(&element);
                }
                let all: Vec<_> = tree.iter().collect();
                prop_assert_eq!(few.iter().collect::<Vec<_>>(), all);
                prop_assert_eq!((few.len(), few.is_empty()), (tree.len(), tree.is_empty()));
                let behind = tree.iter().filter(|it| after.is_none_or(|after| **it > after));
                prop_assert_eq!(few.iter_after(after).collect::<Vec<_>>(), behind.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_set_of_one_element_has_no_tree() {
        let mut few = SmallSet::default();
        few.insert(7);
        assert!(matches!(few, SmallSet::One(7)));
        few.remove(&7);
        assert!(matches!(few, SmallSet::None));
    }
}
