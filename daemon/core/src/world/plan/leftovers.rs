//! Removes what a restart found and no service has adopted.
//!
//! Invariant: nothing is removed before every source has synced, nor while a service that asks for it is undecided.

use alloc::vec::Vec;

use super::port::plan_wipe;
use crate::keys::{FrontendKey, Source};
use crate::op::{Action, FrontendType, Op, Owner};
use crate::world::World;

impl World {
    pub(crate) fn plan_leftovers(&self, ops: &mut Vec<Op>) {
        if !self.tables.is_synced() {
            return;
        }
        let owner = Owner::Nobody;
        let strays = self.owners.frontends.strays.iter().filter(|key| self.is_unwanted(key));
        ops.extend(strays.map(|key| Op { owner, action: Action::RemoveFrontend(*key) }));
        for (index, found) in &self.realized.leftovers.ports {
            let left = found.frontends.iter().filter(|key| self.is_unwanted(key));
            ops.extend(left.map(|key| Op { owner, action: Action::RemoveFrontend(*key) }));
            // A frontend's new owner replaces it. Until then its clients keep this list, and so do clients in flight
            // from removed frontends.
            if found.frontends.is_empty() && !self.space.freed.has_leftover_readers(*index) {
                plan_wipe(&found.as_port(), *index, &mut |action| ops.push(Op { owner, action }));
            }
        }
    }

    /// Whether no service claims a frontend or is about to, or its owner passes it to the real balancer. A
    /// ServiceImport's frontend may still be claimed while its source is absent.
    fn is_unwanted(&self, key: &FrontendKey) -> bool {
        let frontends = &self.owners.frontends;
        let is_absent = || {
            let realized = frontends.get(key).and_then(|entry| entry.realized);
            let is_of_import = realized.is_some_and(|it| it.value.kind == FrontendType::ClusterSetIp);
            is_of_import && self.tables.is_absent(Source::ClusterSet)
        };
        let winner = frontends.winner(key).and_then(|id| self.services.get(id));
        let is_free = || !self.queue.undecided.has_claim_for(key) && !is_absent();
        winner.map_or_else(is_free, |service| service.passes(key))
    }
}
