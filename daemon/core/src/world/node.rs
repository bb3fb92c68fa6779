//! The node's own addresses in the maps.
//!
//! Invariant: removed addresses leave the maps before anything else is written, and new ones are added last, so that no
//! address serves a NodePort that is not meant for it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::op::{Action, Op, Owner};

#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    pub(super) realized: BTreeSet<IpAddr>,
    /// Addresses that the maps may or may not have, because an op failed.
    pub(super) uncertain: BTreeSet<IpAddr>,
}

impl NodeAddresses {
    pub(super) fn plan_removals(&self, wanted: &BTreeSet<IpAddr>, ops: &mut Vec<Op>) {
        for address in self.realized.union(&self.uncertain).filter(|it| !wanted.contains(it)) {
            ops.push(Op { owner: Owner::Node, action: Action::RemoveNodeAddress(*address) });
        }
    }

    pub(super) fn plan(&self, wanted: &BTreeSet<IpAddr>, ops: &mut Vec<Op>) {
        let known = |address| self.realized.contains(address) && !self.uncertain.contains(address);
        for address in wanted.iter().filter(|address| !known(address)) {
            ops.push(Op { owner: Owner::Node, action: Action::InsertNodeAddress(*address) });
        }
    }

    pub(super) fn record_accepted(&mut self, address: IpAddr, is_there: bool) {
        self.uncertain.remove(&address);
        if is_there {
            self.realized.insert(address);
        } else {
            self.realized.remove(&address);
        }
    }

    /// Records that the maps refused an op for this address, which may have taken effect nevertheless.
    pub(super) fn record_refused(&mut self, address: IpAddr) {
        self.uncertain.insert(address);
    }

    /// Marks each difference between realized and found addresses as uncertain, except those in `but`. Returns the
    /// addresses that were not uncertain before.
    pub(super) fn mark_differences(
        &mut self,
        found: &BTreeSet<IpAddr>,
        but: &BTreeSet<IpAddr>,
    ) -> Vec<IpAddr> {
        let differing: Vec<_> = self.realized.symmetric_difference(found).copied().collect();
        differing.into_iter().filter(|it| !but.contains(it) && self.uncertain.insert(*it)).collect()
    }
}
