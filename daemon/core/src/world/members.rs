//! The capacity for members: the backends of lists that the maps also key by address.
//!
//! Invariant: a list's members are charged by its block of slots, which a start finds in the maps, so a list that needs
//! no larger block needs no more members. The port is charged until its index is free. Backends outside all lists,
//! which only keep their clients, are members if capacity allows; no list waits or stays unchanged because of them.

use super::charges::Charges;
use crate::index::Seed;
use crate::limits;
use crate::op::{PortIndex, QuotaId};
use crate::service::{Port, RealizedPort};

/// There is no capacity for the members that a port's lists need, or the namespace has reached its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the UDP and affinity lists of this namespace have {own} members and leave {left} to all others, too few for this \
         list; raise `datapath.limits.backends`"
)]
pub(crate) struct OutOfMembers {
    own: u32,
    left: u32,
}

impl OutOfMembers {
    /// Whether the namespace has any members, so that more would exceed its quota.
    pub(super) const fn is_quota_error(&self) -> bool {
        self.own > 0
    }
}

#[derive(Debug)]
pub(super) struct MemberSpace {
    most: u32,
    charges: Charges,
}

impl MemberSpace {
    pub(super) fn new(seed: Seed, slots: u32) -> Self {
        Self { most: limits::counted_members_max(slots), charges: Charges::new(seed) }
    }

    pub(super) const fn used(&self) -> u32 {
        self.charges.used()
    }

    pub(super) fn port_members(&self, index: PortIndex) -> u32 {
        self.charges.find_charge(index.0).map_or(0, |(_, members)| members)
    }

    /// Charges the members that the port's lists need, and decides whether its other backends become members too.
    pub(super) fn allocate_members(
        &mut self,
        port: &mut Port,
        index: PortIndex,
        quota: QuotaId,
    ) -> Result<(), OutOfMembers> {
        let before = self.port_members(index);
        let left = self.most.saturating_sub(self.used());
        let fits =
            |members: u32| members <= before || self.charges.leaves_headroom(quota, members - before, left);
        let listed = port.listed_members();
        let all = listed.saturating_add(port.other_members());
        port.has_other_members = fits(all);
        if !port.has_other_members && !fits(listed) {
            return Err(OutOfMembers { own: self.charges.used_by(quota), left });
        }
        self.set_members(index, quota, if port.has_other_members { all } else { listed });
        Ok(())
    }

    /// Charges what a start found of a port: no less than its lists need.
    pub(super) fn count_leftover(&mut self, index: PortIndex, quota: QuotaId, port: &RealizedPort) {
        let found = u32::try_from(port.members.len()).unwrap_or(u32::MAX);
        self.set_members(index, quota, port.listed_members().max(found));
    }

    pub(super) fn set_members(&mut self, index: PortIndex, quota: QuotaId, members: u32) {
        match members {
            0 => self.charges.release(index.0),
            _ => self.charges.charge(index.0, quota, members),
        }
    }

    pub(super) fn release(&mut self, index: PortIndex) {
        self.charges.release(index.0);
    }
}
