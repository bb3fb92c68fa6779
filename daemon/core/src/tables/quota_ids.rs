//! The namespaces of admitted services: how many services each has, and the number under which the programs count its
//! quota.
//!
//! Invariant: two namespaces share a number only if there are more namespaces than numbers. The programs count a client
//! under its namespace's number at its first packet for as long as it stays. So a namespace keeps its number over
//! restarts, which find it in the maps, and gets it again when it returns. A freed number goes to another namespace
//! only if no new one is left, the longest free one first.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::digest;
use crate::limits;
use crate::op::QuotaId;

#[derive(Debug)]
struct NamespaceUsage {
    services: usize,
    /// `None` until the object of one of its services arrives.
    quota: Option<QuotaId>,
}

#[derive(Debug, Default)]
struct QuotaIdUsage {
    namespace_count: usize,
    /// The namespace that had it last, if known.
    last_namespace: Option<Arc<str>>,
    /// The value of the `freed` counter when it came free; 0 if a start found it.
    freed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct QuotaIds {
    namespaces: BTreeMap<Arc<str>, NamespaceUsage>,
    numbers: BTreeMap<QuotaId, QuotaIdUsage>,
    /// The number that each of these namespaces gets again when it returns.
    former_ids: BTreeMap<Arc<str>, QuotaId>,
    freed: u64,
}

impl QuotaIds {
    pub(crate) fn add_service(&mut self, namespace: &str) {
        match self.namespaces.get_mut(namespace) {
            Some(usage) => usage.services += 1,
            None => {
                self.namespaces.insert(namespace.into(), NamespaceUsage { services: 1, quota: None });
            }
        }
    }

    pub(crate) fn remove_service(&mut self, namespace: &str) {
        let Some(usage) = self.namespaces.get_mut(namespace) else { return };
        usage.services -= 1;
        if usage.services > 0 {
            return;
        }
        if let Some((name, NamespaceUsage { quota: Some(quota), .. })) =
            self.namespaces.remove_entry(namespace)
        {
            self.free_id(name, quota);
        }
    }

    pub(crate) fn service_count(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |usage| usage.services)
    }

    /// The number of a namespace with an admitted service, assigned if it has none.
    pub(crate) fn assign_id(&mut self, namespace: &str) -> QuotaId {
        let quota = self.namespaces.get(namespace).and_then(|usage| usage.quota);
        let former = || self.former_ids.get(namespace).copied();
        let quota = quota.or_else(former).unwrap_or_else(|| self.pick_id(namespace));
        match self.namespaces.get_mut(namespace) {
            Some(usage) if usage.quota.is_none() => usage.quota = Some(quota),
            _ => return quota,
        }
        let number = self.numbers.entry(quota).or_default();
        number.namespace_count += 1;
        if let Some(former) = number.last_namespace.take() {
            self.former_ids.remove(&former);
        }
        quota
    }

    /// Reserves a number that a start found in the maps, because some namespace had it.
    pub(crate) fn reserve_id(&mut self, quota: QuotaId) {
        if (1..=limits::QUOTA_IDS_MAX).contains(&quota.0) {
            self.numbers.entry(quota).or_default();
        }
    }

    /// Records the namespace of a number that a start found.
    pub(crate) fn record_owner(&mut self, namespace: &str, quota: QuotaId) {
        if self.has_id(namespace) {
            return;
        }
        let free =
            |number: &&mut QuotaIdUsage| number.namespace_count == 0 && number.last_namespace.is_none();
        if let Some(number) = self.numbers.get_mut(&quota).filter(free) {
            let name: Arc<str> = namespace.into();
            number.last_namespace = Some(Arc::clone(&name));
            self.former_ids.insert(name, quota);
        }
    }

    /// Whether that namespace has or would get again a known number.
    pub(crate) fn has_id(&self, namespace: &str) -> bool {
        let usage = self.namespaces.get(namespace);
        usage.is_some_and(|it| it.quota.is_some()) || self.former_ids.contains_key(namespace)
    }

    fn free_id(&mut self, namespace: Arc<str>, quota: QuotaId) {
        let Some(number) = self.numbers.get_mut(&quota) else { return };
        number.namespace_count -= 1;
        if number.namespace_count == 0 {
            self.freed += 1;
            number.freed = self.freed;
            number.last_namespace = Some(Arc::clone(&namespace));
            self.former_ids.insert(namespace, quota);
        }
    }

    /// Picks a number for a namespace without one: the first unused one from a hash of the name on, else the one free
    /// for longest, else the hash's own.
    fn pick_id(&self, namespace: &str) -> QuotaId {
        let begin = digest::hash_namespace(namespace) % u64::from(limits::QUOTA_IDS_MAX);
        let numbered = |step: u16| {
            let number = (begin + u64::from(step)) % u64::from(limits::QUOTA_IDS_MAX);
            QuotaId(u16::try_from(number).unwrap_or_default() + 1)
        };
        let new = (0..limits::QUOTA_IDS_MAX).map(numbered).find(|quota| !self.numbers.contains_key(quota));
        let free = || self.numbers.iter().filter(|(_, number)| number.namespace_count == 0);
        let longest = || free().min_by_key(|(_, number)| number.freed).map(|(quota, _)| *quota);
        new.or_else(longest).unwrap_or_else(|| numbered(0))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    fn moved_in(residents: &mut QuotaIds, namespace: &str) -> QuotaId {
        residents.add_service(namespace);
        residents.assign_id(namespace)
    }

    #[test]
    fn a_namespace_has_one_number_of_its_own() {
        let mut residents = QuotaIds::default();
        let own = moved_in(&mut residents, "prod");
        assert_eq!(moved_in(&mut residents, "prod"), own);
        assert_ne!(moved_in(&mut residents, "tenant"), own);
        assert_eq!(
            (
                residents.service_count("prod"),
                residents.service_count("tenant"),
                residents.service_count("-")
            ),
            (2, 1, 0)
        );
    }

    #[test]
    fn a_namespace_gets_its_number_again_after_leaving() {
        let mut residents = QuotaIds::default();
        let own = moved_in(&mut residents, "prod");
        residents.remove_service("prod");
        assert_eq!(residents.service_count("prod"), 0);
        moved_in(&mut residents, "tenant");
        assert_eq!(moved_in(&mut residents, "prod"), own);
    }

    #[test]
    fn namespaces_share_numbers_only_when_none_is_left() {
        let mut residents = QuotaIds::default();
        let name = |number: u16| format!("n{number}");
        let quotas: Vec<QuotaId> =
            (0..limits::QUOTA_IDS_MAX).map(|it| moved_in(&mut residents, &name(it))).collect();
        assert_eq!(quotas.iter().collect::<BTreeSet<_>>().len(), usize::from(limits::QUOTA_IDS_MAX));
        assert!(quotas.iter().all(|quota| (1..=limits::QUOTA_IDS_MAX).contains(&quota.0)), "0 is of none");
        let another = moved_in(&mut residents, "another");
        assert!(quotas.contains(&another));
        residents.remove_service("another");
        assert_eq!(residents.numbers[&another].namespace_count, 1);
        assert!(residents.former_ids.is_empty(), "a number in use is no namespace's former one");
    }

    /// Two namespaces with names that hash to the same number.
    fn alike() -> [alloc::string::String; 2] {
        let mut names = BTreeMap::new();
        let found = (0..).map(|it| format!("n-{it}")).find_map(|name| {
            let begin = digest::hash_namespace(&name) % u64::from(limits::QUOTA_IDS_MAX);
            names.insert(begin, name.clone()).map(|other| [other, name])
        });
        found.unwrap()
    }

    #[test]
    fn a_freed_number_is_not_reused_while_new_ones_are_left() {
        let mut residents = QuotaIds::default();
        let [gone, newcomer] = alike();
        let before = moved_in(&mut residents, &gone);
        residents.remove_service(&gone);
        assert_ne!(moved_in(&mut residents, &newcomer), before, "its flows may live on");
        assert_eq!(moved_in(&mut residents, &gone), before);
    }

    #[test]
    fn the_longest_free_number_is_reused_first() {
        let mut residents = QuotaIds::default();
        let name = |number: u16| format!("n{number}");
        let quotas: Vec<QuotaId> =
            (0..limits::QUOTA_IDS_MAX).map(|it| moved_in(&mut residents, &name(it))).collect();
        [7, 3, 5].into_iter().for_each(|number| residents.remove_service(&name(number)));
        assert_eq!(moved_in(&mut residents, "x"), quotas[7]);
        assert_eq!(moved_in(&mut residents, "y"), quotas[3]);
        assert_eq!(moved_in(&mut residents, &name(5)), quotas[5], "a returning namespace gets its own");
        assert!(!residents.has_id(&name(7)), "a reassigned number is forgotten");
        assert!(quotas.contains(&moved_in(&mut residents, &name(7))));
        assert!(residents.former_ids.is_empty());
    }

    #[test]
    fn a_number_that_a_start_found_goes_to_its_former_namespace() {
        let mut residents = QuotaIds::default();
        let [own, newcomer] = alike();
        let numbers = [own.as_str(), "b"].map(|name| moved_in(&mut QuotaIds::default(), name));
        numbers
            .into_iter()
            .chain([QuotaId(0), QuotaId(limits::QUOTA_IDS_MAX + 1)])
            .for_each(|it| residents.reserve_id(it));
        assert_eq!(residents.numbers.len(), 2, "no number is of none");
        let other = moved_in(&mut residents, &newcomer);
        assert!(!numbers.contains(&other));
        residents.record_owner(&newcomer, numbers[1]);
        residents.record_owner("b", numbers[1]);
        residents.record_owner("c", numbers[1]);
        residents.record_owner(&own, numbers[0]);
        assert_eq!(
            [newcomer.as_str(), &own, "b"].map(|name| moved_in(&mut residents, name)),
            [other, numbers[0], numbers[1]]
        );
        assert!(!residents.has_id("c") && residents.former_ids.is_empty());
    }
}
