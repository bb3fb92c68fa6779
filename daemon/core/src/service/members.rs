//! The members of a port: backends of its lists that the maps know by their address.
//!
//! Invariant: whoever is in a list whose clients are to find their backend again is a member; the members that lists
//! need follow from the blocks of these alone.

use super::{Port, RealizedPort};
use crate::list::{Row, Rows, Scope};
use crate::op::{Membership, WordFlags};

impl RealizedPort {
    /// The members that its lists need, as [`Port::listed_members`] of these lists.
    pub(crate) fn listed_members(&self) -> u32 {
        let flags = self.cluster.word.flags;
        let is_sticky = flags.has(WordFlags::AFFINITY) || self.local.word.flags.has(WordFlags::AFFINITY);
        let kinds = u32::from(is_sticky) + u32::from(flags.has(WordFlags::MEMBERS));
        members_of_blocks(&self.cluster.rows, &self.local.rows, kinds)
    }
}

/// So many members for each slot of the blocks of two lists.
fn members_of_blocks(cluster: &Rows, local: &Rows, kinds: u32) -> u32 {
    let block = |backends: u32| if backends == 0 { 0 } else { backends.next_power_of_two() };
    let slots = block(cluster.len(Scope::Cluster)).saturating_add(block(local.len(Scope::Local)));
    slots.saturating_mul(kinds)
}

impl Port {
    /// Whether the maps are to know the backend as such a member.
    pub(crate) fn is_member(&self, row: &Row, membership: Membership) -> bool {
        match membership {
            Membership::List(scope) if self.policy.affinity_timeout > 0 => {
                row.is_in(scope) || self.keeps_others && self.rows.rests(row, scope)
            }
            Membership::List(scope) => self.is_table(scope) && row.is_in(scope),
            Membership::Serving => {
                let is_kept = if self.keeps_others { row.is_kept() } else { row.is_chosen() };
                self.policy.keeps_members && is_kept
            }
        }
    }

    /// How many kinds of members the port has, beside those of tables.
    fn kinds_of_members(&self) -> u32 {
        u32::from(self.policy.affinity_timeout > 0) + u32::from(self.policy.keeps_members)
    }

    /// The members that its lists need, but for those of tables: as many of each kind as there are slots in their
    /// blocks.
    pub(crate) fn listed_members(&self) -> u32 {
        members_of_blocks(&self.rows, &self.rows, self.kinds_of_members())
    }

    /// The other backends that are members where there is room.
    pub(crate) fn other_members(&self) -> u32 {
        if self.kinds_of_members() == 0 {
            return 0;
        }
        let is_sticky = self.policy.affinity_timeout > 0;
        let others = |row: Row| {
            let rests = |scope: &Scope| is_sticky && self.rows.rests(&row, *scope);
            let serves_beside = self.policy.keeps_members && row.is_kept() && !row.is_chosen();
            Scope::ALL.iter().filter(|scope| rests(scope)).count() + usize::from(serves_beside)
        };
        u32::try_from(self.rows.all().map(others).sum::<usize>()).unwrap_or(u32::MAX)
    }
}
