//! The node's own addresses, as far as the maps have them.
//!
//! Invariant: an address that left the node is gone from the maps before anything else is written, and a new one comes
//! last, so that none of them answers for a NodePort that is not meant for it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::op::{Action, Op, Owner};

/// The addresses that the maps have.
#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    pub(super) realized: BTreeSet<IpAddr>,
    /// An op failed, so the maps may have them or not.
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

    /// The maps accepted that this address is there, or gone.
    pub(super) fn accepted(&mut self, address: IpAddr, is_there: bool) {
        self.uncertain.remove(&address);
        if is_there {
            self.realized.insert(address);
        } else {
            self.realized.remove(&address);
        }
    }

    /// The maps refused an op for this address, which may have had its effect all the same.
    pub(super) fn refused(&mut self, address: IpAddr) {
        self.uncertain.insert(address);
    }

    /// Doubts each address that only the maps have, or that only they lack, but for those in `but`. Gives the addresses
    /// that were not in doubt before.
    pub(super) fn compare(&mut self, found: &BTreeSet<IpAddr>, but: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let differing: Vec<_> = self.realized.symmetric_difference(found).copied().collect();
        differing.into_iter().filter(|it| !but.contains(it) && self.uncertain.insert(*it)).collect()
    }
}
