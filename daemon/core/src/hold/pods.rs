//! The pods that an apiserver reports at a held address, and what they prove.
//!
//! Invariant: an object that lists a held address proves nothing. But kubelet, and no tenant, writes which address a
//! pod has, so an address leaves a hold if a pod runs there and the held endpoint's pod does not.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::held_list::{HeldBackend, Hold};
use super::judge::Bound;
use crate::facts::Target;
use crate::facts::endpoints::UidText;
use crate::snapshot::Reason;

/// The kind of targets with pod addresses.
const POD: &str = "Pod";

/// The pods that run at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsAt {
    pub address: IpAddr,
    /// Their uids, without pods in the host network, which have no address of their own.
    pub uids: Vec<Arc<str>>,
}

impl PodsAt {
    /// Whether another pod runs at this target's address.
    fn has_replaced(&self, target: Target<'_>) -> bool {
        let is_target = |uid: &Arc<str>| UidText::parse(uid) == target.uid;
        is_pod(target) && !self.uids.is_empty() && !self.uids.iter().any(is_target)
    }
}

fn is_pod(target: Target<'_>) -> bool {
    target.kind == POD && !target.uid.is_empty()
}

impl Hold {
    /// The held addresses that another object lists too, for a query to the apiserver.
    pub fn disputed_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let is_disputed = |it: &&HeldBackend| it.lost.is_none() && it.is_claimed;
        let has_pod = |it: &&HeldBackend| self.target(&it.row).is_some_and(is_pod);
        let is_bound = self.bound != Bound::Unlimited;
        let left = self.backends.iter().filter(is_disputed).filter(has_pod);
        left.filter(move |_| is_bound).map(|it| it.row.address)
    }

    /// Drops the backends at this address if another pod has it. `true`: one was dropped.
    pub(crate) fn drop_reused(hold: &mut Arc<Self>, pods: &PodsAt) -> bool {
        let is_left = |it: &HeldBackend| {
            let target = hold.target(&it.row);
            it.lost.is_none()
                && it.row.address == pods.address
                && target.is_some_and(|it| pods.has_replaced(it))
        };
        let left: Vec<bool> = hold.backends.iter().map(is_left).collect();
        // Readers share the hold, so it is copied only if it changes.
        if hold.bound == Bound::Unlimited || !left.contains(&true) {
            return false;
        }
        let backends = Arc::make_mut(hold).backends.iter_mut().zip(left);
        for (backend, _) in backends.filter(|(_, is_left)| *is_left) {
            backend.lost = Some(Reason::AddressReused);
        }
        true
    }
}
