//! The room for members: the backends of lists that are known by their address.
//!
//! Invariant: the members that a list needs are counted by the block that it has in the slots, and found by that in the
//! maps at a start, so a list that needs no larger block needs no more room for members either. The port counts until
//! its index is free. Backends that no list has, and that only keep the clients they have, are members where there is
//! room; no list waits for that, and none is kept from changing by them.

use super::charges::Charges;
use crate::index::Seed;
use crate::limits;
use crate::op::{PortIndex, QuotaId};
use crate::service::{Port, RealizedPort};

/// There is no room for the members that the lists of a port need, or the namespace has its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lists of this namespace by UDP or with affinity have room for {own} members and leave {left} to all others, \
         of which it may have a part; raise `datapath.limits.backends`"
)]
pub(crate) struct OutOfMembers {
    own: u32,
    left: u32,
}

impl OutOfMembers {
    /// Whether the namespace has any, so that more would be more than its part.
    pub(super) const fn is_quota_error(&self) -> bool {
        self.own > 0
    }
}

/// What the ports take of the room for members.
#[derive(Debug)]
pub(super) struct MemberSpace {
    most: u32,
    charges: Charges,
}

impl MemberSpace {
    /// The room of maps with so many slots of each family.
    pub(super) fn new(seed: Seed, slots: u32) -> Self {
        Self { most: limits::counted_members_max(slots), charges: Charges::new(seed) }
    }

    /// What all ports take.
    pub(super) const fn used(&self) -> u32 {
        self.charges.used()
    }

    /// What a port takes.
    pub(super) fn port_members(&self, index: PortIndex) -> u32 {
        self.charges.find_charge(index.0).map_or(0, |(_, members)| members)
    }

    /// Takes the room that the lists of a port need, and decides whether its other backends are members too.
    pub(super) fn allocate_members(
        &mut self,
        port: &mut Port,
        index: PortIndex,
        share: QuotaId,
    ) -> Result<(), OutOfMembers> {
        let before = self.port_members(index);
        let left = self.most.saturating_sub(self.used());
        let has_room =
            |members: u32| members <= before || self.charges.leaves_headroom(share, members - before, left);
        let listed = port.listed_members();
        let all = listed.saturating_add(port.other_members());
        port.has_other_members = has_room(all);
        if !port.has_other_members && !has_room(listed) {
            return Err(OutOfMembers { own: self.charges.used_by(share), left });
        }
        self.set_members(index, share, if port.has_other_members { all } else { listed });
        Ok(())
    }

    /// Counts what a start found of a port: no less than its lists need.
    pub(super) fn count_leftover(&mut self, index: PortIndex, share: QuotaId, port: &RealizedPort) {
        let found = u32::try_from(port.members.len()).unwrap_or(u32::MAX);
        self.set_members(index, share, port.listed_members().max(found));
    }

    pub(super) fn set_members(&mut self, index: PortIndex, share: QuotaId, members: u32) {
        match members {
            0 => self.charges.release(index.0),
            _ => self.charges.charge(index.0, share, members),
        }
    }

    pub(super) fn release(&mut self, index: PortIndex) {
        self.charges.release(index.0);
    }
}
