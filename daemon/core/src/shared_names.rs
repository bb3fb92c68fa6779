//! An index from names to services that is cheap to clone.
//!
//! Invariant: a clone never sees a later change. Names with the same hash share a bucket, so a caller must compare the
//! names of the services that it finds. The seed keeps authors of objects from choosing names for one bucket. Without a
//! seed all names share one, which is correct and slow.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::index::Seed;
use crate::keys::ObjectName;
use crate::op::ServiceId;
use crate::shared_vec::SharedVec;
use crate::work;

/// With the maximum number of services a bucket has 256 ids, which a change copies.
const BUCKETS: u64 = 1 << 12;

/// Maps names to ids, each id once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedNames {
    ids: SharedVec<Arc<[ServiceId]>>,
    seed: Option<Seed>,
}

impl SharedNames {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { ids: SharedVec::default(), seed: Some(seed) }
    }

    /// The ids of the services of this name, sorted, and possibly of others.
    pub(crate) fn candidate_ids(&self, name: &ObjectName) -> &[ServiceId] {
        self.ids_at(self.bucket(name))
    }

    pub(crate) fn add(&mut self, name: &ObjectName, id: ServiceId) {
        let place = self.bucket(name);
        let mut ids: Vec<ServiceId> = self.other_ids(place, id).collect();
        ids.push(id);
        ids.sort_unstable();
        self.ids.set(place, Some(ids.into()));
    }

    pub(crate) fn remove(&mut self, name: &ObjectName, id: ServiceId) {
        let place = self.bucket(name);
        let ids: Vec<ServiceId> = self.other_ids(place, id).collect();
        self.ids.set(place, (!ids.is_empty()).then(|| ids.into()));
    }

    fn ids_at(&self, place: usize) -> &[ServiceId] {
        self.ids.get(place).map_or(&[], AsRef::as_ref)
    }

    fn other_ids(&self, place: usize, id: ServiceId) -> impl Iterator<Item = ServiceId> {
        let ids = self.ids_at(place);
        work::count_work(ids.len());
        ids.iter().copied().filter(move |it| *it != id)
    }

    fn bucket(&self, name: &ObjectName) -> usize {
        let hash = self.seed.map_or(0, |seed| seed.hash(name));
        usize::try_from(hash % BUCKETS).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_services_leaves_no_entry() {
        let mut names = SharedNames::new(Seed(7));
        let name = ObjectName::new("default", "web").unwrap();
        let ids = [ServiceId(9), ServiceId(2)];
        ids.into_iter().for_each(|id| names.add(&name, id));
        let before = names.clone();
        ids.into_iter().for_each(|id| names.remove(&name, id));
        assert_eq!(
            before.candidate_ids(&name),
            [ServiceId(2), ServiceId(9)],
            "sorted, whatever changes later"
        );
        assert_eq!((names.candidate_ids(&name).len(), names.ids.iter().count()), (0, 0));
    }
}
