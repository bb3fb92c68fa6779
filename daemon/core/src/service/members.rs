//! The members of a port: backends of its lists that the maps find by address.
//!
//! Invariant: if a list's clients must find a backend again, it is a member. The blocks of lists alone determine how
//! many members they need. If a grown list does not fit, exactly the backends in the part that fits are members.

use super::{Port, RealizedPort};
use crate::list::{Row, Rows, Scope};
use crate::op::{Membership, WordFlags};

impl RealizedPort {
    /// The members that its lists need, like [`Port::listed_members`].
    pub(crate) fn listed_members(&self) -> u32 {
        let flags = self.cluster.word.flags;
        let is_sticky =
            flags.contains(WordFlags::AFFINITY) || self.local.word.flags.contains(WordFlags::AFFINITY);
        let kinds = u32::from(is_sticky) + u32::from(flags.contains(WordFlags::MEMBERS));
        count_block_members(&self.cluster.rows, &self.local.rows, kinds)
    }
}

/// One member of each kind for each slot in the blocks of two lists.
fn count_block_members(cluster: &Rows, local: &Rows, kinds: u32) -> u32 {
    let slots = block_size(cluster.len(Scope::Cluster)).saturating_add(block_size(local.len(Scope::Local)));
    slots.saturating_mul(kinds)
}

const fn block_size(backends: u32) -> u32 {
    if backends == 0 { 0 } else { backends.next_power_of_two() }
}

impl Port {
    /// Whether the maps shall have the backend as such a member.
    pub(crate) fn is_member(&self, row: &Row, membership: Membership) -> bool {
        match membership {
            Membership::List(scope) if self.policy.affinity_timeout > 0 => {
                self.has_room_for(row, scope)
                    || self.has_other_members && self.rows.is_weighted_out(row, scope)
            }
            Membership::List(scope) => self.is_table(scope) && row.is_in(scope),
            Membership::Serving => {
                let is_kept = || Scope::ALL.into_iter().any(|scope| self.has_room_for(row, scope));
                self.policy.keeps_members
                    && if self.has_other_members { row.keeps_clients() } else { is_kept() }
            }
        }
    }

    /// Whether the row is in the list and within the members that fit.
    fn has_room_for(&self, row: &Row, scope: Scope) -> bool {
        let [cluster, local] = self.member_ends;
        let end = if scope == Scope::Cluster { cluster } else { local };
        row.is_in(scope) && end.is_none_or(|end| row.backend() <= end)
    }

    /// Sets how many members of the list fit; `None`: all.
    pub(crate) fn set_member_end(&mut self, scope: Scope, members: Option<u32>) {
        let last = |members: u32| self.rows.list(scope).nth(members.checked_sub(1)? as usize);
        let last = members.and_then(last).map(|row| row.backend());
        let [cluster, local] = &mut self.member_ends;
        *if scope == Scope::Cluster { cluster } else { local } = last;
    }

    /// The block of a list's backends in the maps, table or not.
    pub(crate) fn realized_block(&self, scope: Scope) -> u32 {
        let list = self.realized.list(scope);
        block_size(list.word.count.min(list.rows.len(scope)))
    }

    /// The members that its lists need if none takes a larger block than it has.
    pub(crate) fn truncated_members(&self) -> u32 {
        let part = |scope| block_size(self.rows.len(scope)).min(self.realized_block(scope));
        let slots = part(Scope::Cluster).saturating_add(part(Scope::Local));
        slots.saturating_mul(self.member_kinds())
    }

    /// How many kinds of members the port has, without those of tables.
    fn member_kinds(&self) -> u32 {
        u32::from(self.policy.affinity_timeout > 0) + u32::from(self.policy.keeps_members)
    }

    /// The members that its lists need, without those of tables: as many of each kind as there are slots in their
    /// blocks.
    pub(crate) fn listed_members(&self) -> u32 {
        count_block_members(&self.rows, &self.rows, self.member_kinds())
    }

    /// The other backends that become members if they fit.
    pub(crate) fn other_members(&self) -> u32 {
        if self.member_kinds() == 0 {
            return 0;
        }
        let is_sticky = self.policy.affinity_timeout > 0;
        let others = |row: Row| {
            let rests = |scope: &Scope| is_sticky && self.rows.is_weighted_out(&row, *scope);
            let serves_beside = self.policy.keeps_members && row.keeps_clients() && !row.is_chosen();
            Scope::ALL.iter().filter(|scope| rests(scope)).count() + usize::from(serves_beside)
        };
        u32::try_from(self.rows.iter().map(others).sum::<usize>()).unwrap_or(u32::MAX)
    }
}
