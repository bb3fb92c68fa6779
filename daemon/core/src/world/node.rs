//! The node's own addresses that are in the maps.
//!
//! Invariant: an address that left the node is removed from the maps before anything else is written, and a new one is
//! added last, so that no address answers for a NodePort that is not meant for it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::op::{Action, Op, Owner};

/// The addresses that the maps have.
#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    pub(super) realized: BTreeSet<IpAddr>,
    /// Addresses that the maps may have or not, because an op failed.
    pub(super) uncertain: BTreeSet<IpAddr>,
}

impl NodeAddresses {
    /// Ops for addresses that are no longer the node's.
    pub(super) fn plan_removals(&self, wanted: &BTreeSet<IpAddr>, ops: &mut Vec<Op>) {
        for address in self.realized.union(&self.uncertain).filter(|it| !wanted.contains(it)) {
            ops.push(Op { owner: Owner::Node, action: Action::RemoveNodeAddress(*address) });
        }
    }

    /// Ops for new addresses of the node.
    pub(super) fn plan(&self, wanted: &BTreeSet<IpAddr>, ops: &mut Vec<Op>) {
        let known = |address| self.realized.contains(address) && !self.uncertain.contains(address);
        for address in wanted.iter().filter(|address| !known(address)) {
            ops.push(Op { owner: Owner::Node, action: Action::InsertNodeAddress(*address) });
        }
    }

    /// Notes that the maps accepted the op that adds or removes this address.
    pub(super) fn record_accepted(&mut self, address: IpAddr, is_there: bool) {
        self.uncertain.remove(&address);
        if is_there {
            self.realized.insert(address);
        } else {
            self.realized.remove(&address);
        }
    }

    /// Notes that the maps refused an op for this address, which may have had its effect all the same.
    pub(super) fn record_refused(&mut self, address: IpAddr) {
        self.uncertain.insert(address);
    }

    /// Doubts each address that is realized and not in the maps, or in the maps and not realized, except those in
    /// `but`. Returns the addresses that were not in doubt before.
    pub(super) fn mark_differences(
        &mut self,
        found: &BTreeSet<IpAddr>,
        but: &BTreeSet<IpAddr>,
    ) -> Vec<IpAddr> {
        let differing: Vec<_> = self.realized.symmetric_difference(found).copied().collect();
        differing.into_iter().filter(|it| !but.contains(it) && self.uncertain.insert(*it)).collect()
    }
}
