//! The namespaces of the services that have room: how many each has, and the number by which it has its share of what
//! programs divide.
//!
//! Invariant: two namespaces have the same number only where there are more of them than numbers. The number follows
//! from the name, unless another namespace has it already: so it is the same after a restart, and no tenant gets the
//! number of another namespace by the choice of a name.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::digest;
use crate::limits;
use crate::op::Share;

#[derive(Debug)]
struct Resident {
    services: usize,
    share: Share,
}

#[derive(Debug, Default)]
pub(crate) struct Residents {
    namespaces: BTreeMap<Arc<str>, Resident>,
    /// How many namespaces have a number.
    taken: BTreeMap<Share, usize>,
}

impl Residents {
    /// A service of that namespace has room now.
    pub(crate) fn moved_in(&mut self, namespace: &str) -> Share {
        if let Some(resident) = self.namespaces.get_mut(namespace) {
            resident.services += 1;
            return resident.share;
        }
        let share = self.free_share(namespace);
        *self.taken.entry(share).or_default() += 1;
        self.namespaces.insert(namespace.into(), Resident { services: 1, share });
        share
    }

    /// A service of that namespace has given up its room.
    pub(crate) fn moved_out(&mut self, namespace: &str) {
        let Some(resident) = self.namespaces.get_mut(namespace) else { return };
        resident.services -= 1;
        if resident.services > 0 {
            return;
        }
        let share = resident.share;
        self.namespaces.remove(namespace);
        if let Some(count) = self.taken.get_mut(&share) {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(&share);
            }
        }
    }

    /// How many services of it have room.
    pub(crate) fn services(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |resident| resident.services)
    }

    /// The first free number from where the name begins; where all are taken, that one.
    fn free_share(&self, namespace: &str) -> Share {
        let begin = digest::of_namespace(namespace) % u64::from(limits::SHARES_MAX);
        let numbered = |step: u16| {
            let number = (begin + u64::from(step)) % u64::from(limits::SHARES_MAX);
            Share(u16::try_from(number).unwrap_or_default() + 1)
        };
        let mut all = (0..limits::SHARES_MAX).map(numbered);
        all.find(|share| !self.taken.contains_key(share)).unwrap_or_else(|| numbered(0))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn all_services_of_a_namespace_have_one_number_and_two_namespaces_have_two() {
        let mut residents = Residents::default();
        let own = residents.moved_in("prod");
        assert_eq!(residents.moved_in("prod"), own);
        assert_ne!(residents.moved_in("tenant"), own);
        assert_eq!(
            (residents.services("prod"), residents.services("tenant"), residents.services("-")),
            (2, 1, 0)
        );
    }

    #[test]
    fn a_number_is_the_same_again_after_all_have_gone() {
        let mut residents = Residents::default();
        let own = residents.moved_in("prod");
        residents.moved_out("prod");
        assert_eq!((residents.services("prod"), residents.taken.len()), (0, 0));
        residents.moved_in("tenant");
        assert_eq!(residents.moved_in("prod"), own);
    }

    #[test]
    fn as_many_namespaces_as_there_are_numbers_have_one_each_and_more_share() {
        let mut residents = Residents::default();
        let name = |number: u16| format!("n{number}");
        let shares: Vec<Share> = (0..limits::SHARES_MAX).map(|it| residents.moved_in(&name(it))).collect();
        assert_eq!(shares.iter().collect::<BTreeSet<_>>().len(), usize::from(limits::SHARES_MAX));
        assert!(shares.iter().all(|share| (1..=limits::SHARES_MAX).contains(&share.0)), "0 is of none");
        let another = residents.moved_in("another");
        assert!(shares.contains(&another));
        residents.moved_out("another");
        assert_eq!(residents.taken.get(&another), Some(&1));
    }
}
