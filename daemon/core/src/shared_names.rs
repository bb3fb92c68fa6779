//! Which services have a given name, in a form that is cheap to copy.
//!
//! Invariant: a clone never sees a later change. Names with the same hash share a place, so a caller has to compare the
//! names of the services that it finds; the seed keeps authors of objects from choosing names that all share one place.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::index::{Seed, hash};
use crate::keys::ObjectName;
use crate::op::ServiceId;
use crate::shared_vec::SharedVec;

/// With as many services as there may be, a place has 256 ids, which is what a change copies.
const PLACES: u64 = 1 << 12;

/// Names to ids, each id once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedNames {
    ids: SharedVec<Arc<[ServiceId]>>,
    seed: Seed,
}

impl SharedNames {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { ids: SharedVec::default(), seed }
    }

    /// The ids of the services of this name, in their order, and perhaps of some with other names.
    pub(crate) fn near(&self, name: &ObjectName) -> &[ServiceId] {
        self.ids.get(self.place(name)).map_or(&[], AsRef::as_ref)
    }

    pub(crate) fn add(&mut self, name: &ObjectName, id: ServiceId) {
        let mut ids: Vec<ServiceId> = self.others(name, id).collect();
        ids.push(id);
        ids.sort_unstable();
        self.ids.set(self.place(name), Some(ids.into()));
    }

    pub(crate) fn remove(&mut self, name: &ObjectName, id: ServiceId) {
        let ids: Vec<ServiceId> = self.others(name, id).collect();
        self.ids.set(self.place(name), (!ids.is_empty()).then(|| ids.into()));
    }

    fn others(&self, name: &ObjectName, id: ServiceId) -> impl Iterator<Item = ServiceId> {
        self.near(name).iter().copied().filter(move |it| *it != id)
    }

    fn place(&self, name: &ObjectName) -> usize {
        usize::try_from(hash(self.seed, name) % PLACES).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_name_took_comes_back_when_its_last_service_goes() {
        let mut names = SharedNames::new(Seed(7));
        let name = ObjectName::new("default", "web").unwrap();
        let ids = [ServiceId(9), ServiceId(2)];
        ids.into_iter().for_each(|id| names.add(&name, id));
        let before = names.clone();
        ids.into_iter().for_each(|id| names.remove(&name, id));
        assert_eq!(before.near(&name), [ServiceId(2), ServiceId(9)], "in their order, whatever comes later");
        assert_eq!((names.near(&name).len(), names.ids.iter().count()), (0, 0));
    }
}
