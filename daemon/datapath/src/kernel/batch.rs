//! Inserts or removes many frontends by one system call.
//!
//! Invariant: frontends that cannot go in a batch go one by one, so kernels without batches, full maps and refused
//! frontends need no extra rules. Existing frontends are not batched: the kernel would not report which they are.

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::op::{Action, FrontendValue, Op};

use super::KernelMaps;
use crate::abi::FrontendBytes;
use crate::shape::{family_index, is_full};
use crate::table::BATCH_KEYS_MAX;

impl KernelMaps {
    /// Inserts the first ops that fit a batch, and returns how many the kernel accepted.
    pub(super) fn insert_batch(&mut self, inserts: &[Op]) -> usize {
        let Some(family) =
            inserts.first().and_then(as_insert).map(|(key, _)| Family::from_address(key.address))
        else {
            return 0;
        };
        if self.ensure_frontend_capacity(family).is_err() {
            // The caller then inserts the first frontend alone, which reports why the map cannot grow.
            return 0;
        }
        let mut keys = Vec::new();
        let mut values = Vec::new();
        let together: Vec<_> =
            inserts.iter().map_while(as_insert).take(self.batch_capacity(family)).collect();
        for (key, value) in together.iter().take_while(|entry| self.fits_batch(family, entry)) {
            let bytes = FrontendBytes::new(key);
            keys.extend_from_slice(bytes.key());
            values.extend_from_slice(&bytes.value_bytes(*value));
        }
        let accepted = self.generation.frontends_mut(family).put_new(&keys, &values);
        for (key, value) in together.iter().take(accepted) {
            self.high_water.ports = self.high_water.ports.max(value.port.0.saturating_add(1));
            self.note_inserted(key, *value);
        }
        accepted
    }

    /// Removes the first ops that fit a batch, and returns how many are certainly gone.
    pub(super) fn remove_batch(&mut self, removals: &[Op]) -> usize {
        let Some(family) = removals.first().and_then(as_removal).map(|key| Family::from_address(key.address))
        else {
            return 0;
        };
        let is_same_family = |key: &&FrontendKey| Family::from_address(key.address) == family;
        let together =
            || removals.iter().map_while(as_removal).take_while(is_same_family).take(BATCH_KEYS_MAX);
        self.cluster_ips.note_removed(together());
        if let (Some(stale), Some(op)) = (&mut self.stale, removals.first()) {
            stale.record_action(&op.action);
        }
        let mut keys = Vec::new();
        together().for_each(|key| keys.extend_from_slice(FrontendBytes::new(key).key()));
        let gone = self.generation.frontends_mut(family).remove_many(&keys);
        together().take(gone).for_each(|key| self.shared.note_removed(key));
        gone
    }

    /// How many frontends of a family fit before their map must grow, at most [`BATCH_KEYS_MAX`].
    fn batch_capacity(&self, family: Family) -> usize {
        let [v4, v6] = self.generation.shape.frontends;
        let entries = if family_index(family) == 0 { v4 } else { v6 };
        let used = self.generation.frontends(family).used();
        let fits = |more: &u32| !is_full(used.saturating_add(*more), entries);
        (0..).take(BATCH_KEYS_MAX).take_while(fits).count()
    }

    fn fits_batch(&self, family: Family, (key, value): &(&FrontendKey, FrontendValue)) -> bool {
        Family::from_address(key.address) == family && value.port.0 < self.generation.shape.ports
    }
}

fn as_insert(op: &Op) -> Option<(&FrontendKey, FrontendValue)> {
    if let Action::InsertFrontend(key, value) = &op.action { Some((key, *value)) } else { None }
}

fn as_removal(op: &Op) -> Option<&FrontendKey> {
    if let Action::RemoveFrontend(key) = &op.action { Some(key) } else { None }
}
