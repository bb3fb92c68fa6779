//! The namespaces of the services that have room: how many services each namespace has, and the number by which it has
//! its share of what programs divide.
//!
//! Invariant: two namespaces have the same number only where there are more of them than numbers. A client is counted
//! under the number that the namespace had when the client came, however long it stays. So a namespace keeps its number
//! over restarts, because the maps say which one it was, and gets it again when it comes back. A number that a
//! namespace had goes to another one only when no new number is left, and then the one that has been free for longest
//! goes first.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::digest;
use crate::limits;
use crate::op::Share;

#[derive(Debug)]
struct Resident {
    services: usize,
    /// `None` before the object of one of its services has come.
    share: Option<Share>,
}

/// A number that a namespace has or had.
#[derive(Debug, Default)]
struct Number {
    /// How many namespaces have it.
    residents: usize,
    /// The namespace that had it last, if it is known.
    former: Option<Arc<str>>,
    /// How many numbers had come free when this one did; 0 if a start found it.
    freed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Residents {
    namespaces: BTreeMap<Arc<str>, Resident>,
    numbers: BTreeMap<Share, Number>,
    /// The number that each of these namespaces gets again when it comes back.
    formers: BTreeMap<Arc<str>, Share>,
    freed: u64,
}

impl Residents {
    /// Notes that a service of that namespace has room now.
    pub(crate) fn moved_in(&mut self, namespace: &str) {
        match self.namespaces.get_mut(namespace) {
            Some(resident) => resident.services += 1,
            None => drop(self.namespaces.insert(namespace.into(), Resident { services: 1, share: None })),
        }
    }

    /// Notes that a service of that namespace has given up its room.
    pub(crate) fn moved_out(&mut self, namespace: &str) {
        let Some(resident) = self.namespaces.get_mut(namespace) else { return };
        resident.services -= 1;
        if resident.services > 0 {
            return;
        }
        if let Some((name, Resident { share: Some(share), .. })) = self.namespaces.remove_entry(namespace) {
            self.free(name, share);
        }
    }

    /// How many services of it have room.
    pub(crate) fn services(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |resident| resident.services)
    }

    /// The number of a namespace that has room, given now if it has none.
    pub(crate) fn share(&mut self, namespace: &str) -> Share {
        let share = self.namespaces.get(namespace).and_then(|resident| resident.share);
        let former = || self.formers.get(namespace).copied();
        let share = share.or_else(former).unwrap_or_else(|| self.free_share(namespace));
        match self.namespaces.get_mut(namespace) {
            Some(resident) if resident.share.is_none() => resident.share = Some(share),
            _ => return share,
        }
        let number = self.numbers.entry(share).or_default();
        number.residents += 1;
        if let Some(former) = number.former.take() {
            self.formers.remove(&former);
        }
        share
    }

    /// Notes that a start has found that number in the maps, so that some namespace had it.
    pub(crate) fn found(&mut self, share: Share) {
        if (1..=limits::SHARES_MAX).contains(&share.0) {
            self.numbers.entry(share).or_default();
        }
    }

    /// Notes which namespace had a number that a start has found.
    pub(crate) fn had(&mut self, namespace: &str, share: Share) {
        if self.is_numbered(namespace) {
            return;
        }
        let free = |number: &&mut Number| number.residents == 0 && number.former.is_none();
        if let Some(number) = self.numbers.get_mut(&share).filter(free) {
            let name: Arc<str> = namespace.into();
            number.former = Some(Arc::clone(&name));
            self.formers.insert(name, share);
        }
    }

    /// Whether it is known which number that namespace has or gets again.
    pub(crate) fn is_numbered(&self, namespace: &str) -> bool {
        let resident = self.namespaces.get(namespace);
        resident.is_some_and(|it| it.share.is_some()) || self.formers.contains_key(namespace)
    }

    fn free(&mut self, namespace: Arc<str>, share: Share) {
        let Some(number) = self.numbers.get_mut(&share) else { return };
        number.residents -= 1;
        if number.residents == 0 {
            self.freed += 1;
            number.freed = self.freed;
            number.former = Some(Arc::clone(&namespace));
            self.formers.insert(namespace, share);
        }
    }

    /// The number for a namespace without one: the first that no namespace had yet, counted from a beginning that the
    /// name gives; else the one that has been free for longest; where all are taken, the one at that beginning.
    fn free_share(&self, namespace: &str) -> Share {
        let begin = digest::of_namespace(namespace) % u64::from(limits::SHARES_MAX);
        let numbered = |step: u16| {
            let number = (begin + u64::from(step)) % u64::from(limits::SHARES_MAX);
            Share(u16::try_from(number).unwrap_or_default() + 1)
        };
        let new = (0..limits::SHARES_MAX).map(numbered).find(|share| !self.numbers.contains_key(share));
        let free = || self.numbers.iter().filter(|(_, number)| number.residents == 0);
        let longest = || free().min_by_key(|(_, number)| number.freed).map(|(share, _)| *share);
        new.or_else(longest).unwrap_or_else(|| numbered(0))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    fn moved_in(residents: &mut Residents, namespace: &str) -> Share {
        residents.moved_in(namespace);
        residents.share(namespace)
    }

    #[test]
    fn all_services_of_a_namespace_have_one_number_and_two_namespaces_have_two() {
        let mut residents = Residents::default();
        let own = moved_in(&mut residents, "prod");
        assert_eq!(moved_in(&mut residents, "prod"), own);
        assert_ne!(moved_in(&mut residents, "tenant"), own);
        assert_eq!(
            (residents.services("prod"), residents.services("tenant"), residents.services("-")),
            (2, 1, 0)
        );
    }

    #[test]
    fn a_number_is_the_same_again_after_all_have_gone() {
        let mut residents = Residents::default();
        let own = moved_in(&mut residents, "prod");
        residents.moved_out("prod");
        assert_eq!(residents.services("prod"), 0);
        moved_in(&mut residents, "tenant");
        assert_eq!(moved_in(&mut residents, "prod"), own);
    }

    #[test]
    fn as_many_namespaces_as_there_are_numbers_have_one_each_and_more_share() {
        let mut residents = Residents::default();
        let name = |number: u16| format!("n{number}");
        let shares: Vec<Share> =
            (0..limits::SHARES_MAX).map(|it| moved_in(&mut residents, &name(it))).collect();
        assert_eq!(shares.iter().collect::<BTreeSet<_>>().len(), usize::from(limits::SHARES_MAX));
        assert!(shares.iter().all(|share| (1..=limits::SHARES_MAX).contains(&share.0)), "0 is of none");
        let another = moved_in(&mut residents, "another");
        assert!(shares.contains(&another));
        residents.moved_out("another");
        assert_eq!(residents.numbers[&another].residents, 1);
        assert!(residents.formers.is_empty(), "a number that somebody has is nobody else's");
    }

    /// Two names of namespaces that ask for the same number.
    fn alike() -> [alloc::string::String; 2] {
        let mut names = BTreeMap::new();
        let found = (0..).map(|it| format!("n-{it}")).find_map(|name| {
            let begin = digest::of_namespace(&name) % u64::from(limits::SHARES_MAX);
            names.insert(begin, name.clone()).map(|other| [other, name])
        });
        found.unwrap()
    }

    #[test]
    fn a_number_that_came_free_goes_to_no_other_namespace_while_there_are_new_ones() {
        let mut residents = Residents::default();
        let [gone, newcomer] = alike();
        let before = moved_in(&mut residents, &gone);
        residents.moved_out(&gone);
        assert_ne!(moved_in(&mut residents, &newcomer), before, "its flows may live on");
        assert_eq!(moved_in(&mut residents, &gone), before);
    }

    #[test]
    fn where_there_is_no_new_number_the_one_that_has_been_free_for_longest_comes_first() {
        let mut residents = Residents::default();
        let name = |number: u16| format!("n{number}");
        let shares: Vec<Share> =
            (0..limits::SHARES_MAX).map(|it| moved_in(&mut residents, &name(it))).collect();
        [7, 3, 5].into_iter().for_each(|number| residents.moved_out(&name(number)));
        assert_eq!(moved_in(&mut residents, "x"), shares[7]);
        assert_eq!(moved_in(&mut residents, "y"), shares[3]);
        assert_eq!(moved_in(&mut residents, &name(5)), shares[5], "whoever comes back has its own");
        assert!(!residents.is_numbered(&name(7)), "what is another's now is forgotten");
        assert!(shares.contains(&moved_in(&mut residents, &name(7))));
        assert!(residents.formers.is_empty());
    }

    #[test]
    fn a_number_that_a_start_found_is_of_the_one_who_had_it_and_of_others_last() {
        let mut residents = Residents::default();
        let [own, newcomer] = alike();
        let numbers = [own.as_str(), "b"].map(|name| moved_in(&mut Residents::default(), name));
        numbers
            .into_iter()
            .chain([Share(0), Share(limits::SHARES_MAX + 1)])
            .for_each(|it| residents.found(it));
        assert_eq!(residents.numbers.len(), 2, "no number is of none");
        let other = moved_in(&mut residents, &newcomer);
        assert!(!numbers.contains(&other));
        residents.had(&newcomer, numbers[1]);
        residents.had("b", numbers[1]);
        residents.had("c", numbers[1]);
        residents.had(&own, numbers[0]);
        assert_eq!(
            [newcomer.as_str(), &own, "b"].map(|name| moved_in(&mut residents, name)),
            [other, numbers[0], numbers[1]]
        );
        assert!(!residents.is_numbered("c") && residents.formers.is_empty());
    }
}
