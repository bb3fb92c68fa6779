//! Places the lists of a port in the maps: where they are, in another range, or as Maglev tables.
//!
//! Invariant: an unchanged list keeps its range. A list without capacity for its table is served plain, and gets its
//! table later. A changed list that needs no larger block finds one, however few slots are left; new and growing lists
//! leave slots to other namespaces. A list that cannot grow, for want of slots or members, follows its backends
//! nevertheless, with as many as its block holds.

use alloc::vec::Vec;

use super::family_pair::{by_family, by_family_mut};
use super::members::OutOfMembers;
use super::space::Space;
use crate::keys::Family;
use crate::limits;
use crate::list::Scope;
use crate::op::{PortIndex, QuotaId, SlotRange, Word, WordFlags};
use crate::service::Port;
use crate::slot_allocator::OutOfSlots;
use crate::work;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlacementError {
    #[error(transparent)]
    Slots(#[from] OutOfSlots),
    #[error(
        "this namespace has reached its quota: its lists take {own} slots and leave {left} to all others; raise \
             `datapath.limits.backends`"
    )]
    Quota { own: u32, left: u32 },
    #[error(transparent)]
    Members(#[from] OutOfMembers),
    /// A word has 20 bits for the length of its list.
    #[error("a list of {0} backends is longer than the {max} that the datapath can count; spread them over services", max = limits::BACKENDS_PER_LIST_MAX)]
    List(u32),
}

#[derive(Debug)]
pub(super) struct ListPlacement {
    pub(super) scope: Scope,
    pub(super) word: Word,
    /// The range to write first; `None`: the word points where it did, or nowhere.
    pub(super) range: Option<SlotRange>,
}

impl ListPlacement {
    fn keep_range(port: &Port, scope: Scope, is_table: bool) -> Self {
        let flags = port.transitional_flags(scope).without(WordFlags::TABLE).with(WordFlags::TABLE, is_table);
        let word = Word { flags, ..port.realized.list(scope).word };
        Self { scope, word, range: None }
    }

    fn move_to(port: &Port, scope: Scope, range: SlotRange) -> Self {
        let is_table = range.count > port.rows.len(scope);
        let flags = port.transitional_flags(scope).without(WordFlags::TABLE).with(WordFlags::TABLE, is_table);
        let word = Word { base: range.base, count: range.count, flags };
        Self { scope, word, range: Some(range) }
    }
}

impl Space {
    /// Places the lists of a port in publishing order, and stops at one that does not fit even in part. The error says
    /// why a list is not whole.
    pub(super) fn place_lists(
        &mut self,
        port: &mut Port,
        index: PortIndex,
        quota: QuotaId,
    ) -> (Vec<ListPlacement>, Result<(), PlacementError>) {
        let (mut lists, mut lacks) = (Vec::with_capacity(Scope::ALL.len()), Ok(()));
        let before = self.members.port_members(index);
        let few_members = self.members.allocate_members(port, index, quota).err();
        if let Some(error) = few_members.filter(|_| port.truncated_members() > before) {
            return (lists, Err(error.into()));
        }
        for scope in publishing_order(port) {
            port.set_member_end(scope, None);
            let grows = port.rows.len(scope) > port.realized_block(scope);
            let placed = match few_members.filter(|_| grows) {
                Some(error) => Err(error.into()),
                None => self.place_list(port, scope, quota),
            };
            match placed {
                Ok(placed) => {
                    port.set_table(scope, placed.word.flags.contains(WordFlags::TABLE));
                    lists.push(placed);
                }
                Err(error) => {
                    let Some(part) = self.place_part(port, scope, quota) else {
                        // A list that stays needs no more members than the longer one that has no place.
                        let taken = if lists.is_empty() { 0 } else { self.members.port_members(index) };
                        self.members.set_members(index, quota, taken.max(before));
                        return (lists, lacks.and(Err(error)));
                    };
                    port.set_table(scope, false);
                    port.set_member_end(scope, few_members.map(|_| part.word.count));
                    lists.push(part);
                    lacks = lacks.and(Err(error));
                }
            }
        }
        (lists, lacks)
    }

    /// Places as much of a list as fits in a block of its current size, when the whole list has no place: otherwise the
    /// list would point to removed backends forever.
    fn place_part(&mut self, port: &Port, scope: Scope, quota: QuotaId) -> Option<ListPlacement> {
        let (family, realized) = (port.key.family, port.realized.list(scope));
        let before = realized.word.range(family)?;
        let count = port.realized_block(scope);
        if count == 0 || count >= port.rows.len(scope) {
            return None;
        }
        if port.is_realized_in(scope, count) {
            return Some(ListPlacement::keep_range(port, scope, false));
        }
        let base = self.allocate_plain((family, count), Some(before), quota).ok()?;
        by_family_mut(&mut self.lists, family).charge(base, quota, count);
        Some(ListPlacement::move_to(port, scope, SlotRange { family, base, count }))
    }

    pub(super) fn place_list(
        &mut self,
        port: &Port,
        scope: Scope,
        quota: QuotaId,
    ) -> Result<ListPlacement, PlacementError> {
        let (plain, wanted) = (port.rows.len(scope), port.desired_places(scope));
        work::count_work(wanted as usize);
        if wanted as usize > limits::BACKENDS_PER_LIST_MAX {
            return Err(PlacementError::List(wanted));
        }
        // Clients of a removed frontend may still read the list; the removals empty it.
        if !port.uses_list(scope) {
            let is_table = port.realized.list(scope).word.flags.contains(WordFlags::TABLE);
            return Ok(ListPlacement::keep_range(port, scope, is_table));
        }
        if port.is_realized_in(scope, wanted) {
            return Ok(ListPlacement::keep_range(port, scope, wanted > plain));
        }
        if let Some(range) = self.allocate_table(port, scope, quota) {
            return Ok(ListPlacement::move_to(port, scope, range));
        }
        if port.is_realized_in(scope, plain) {
            return Ok(ListPlacement::keep_range(port, scope, false));
        }
        self.place_plain(port, scope, quota)
    }

    fn place_plain(
        &mut self,
        port: &Port,
        scope: Scope,
        quota: QuotaId,
    ) -> Result<ListPlacement, PlacementError> {
        let (family, count) = (port.key.family, port.rows.len(scope));
        if count == 0 {
            let flags = port.transitional_flags(scope).without(WordFlags::TABLE);
            let word = Word { flags, ..Word::EMPTY };
            return Ok(ListPlacement { scope, word, range: None });
        }
        let before = port.realized.list(scope).word.range(family);
        let slots = count.next_power_of_two();
        let base = self.allocate_plain((family, count), before, quota)?;
        let range = SlotRange { family, base, count };
        by_family_mut(&mut self.lists, family).charge(base, quota, slots);
        Ok(ListPlacement::move_to(port, scope, range))
    }

    /// Slots for a plain list. One that leaves a block of the same size may take a spare block.
    fn allocate_plain(
        &mut self,
        (family, count): (Family, u32),
        before: Option<SlotRange>,
        quota: QuotaId,
    ) -> Result<u32, PlacementError> {
        let slots = count.next_power_of_two();
        let is_no_larger = before.is_some_and(|before| slots <= before.count.next_power_of_two());
        self.refill_spares(family);
        if !is_no_larger {
            self.check_headroom(quota, family, slots)?;
        }
        let found = self.slots(family).allocate(count);
        match found {
            Err(no_room) if is_no_larger => self.spares(family).allocate_block(count).ok_or(no_room.into()),
            found => Ok(found?),
        }
    }

    /// Whether `slots` more for the namespace's lists leave enough to others.
    fn check_headroom(&self, quota: QuotaId, family: Family, slots: u32) -> Result<(), PlacementError> {
        let (lists, left) = (by_family(&self.lists, family), self.headroom(family));
        // Without any slots left, the allocator reports that instead.
        let may = left < slots || lists.leaves_headroom(quota, slots, left);
        may.then_some(()).ok_or(PlacementError::Quota { own: lists.used_by(quota), left })
    }

    /// A range for the list's Maglev table, if it should have one and the table fits.
    fn allocate_table(&mut self, port: &Port, scope: Scope, quota: QuotaId) -> Option<SlotRange> {
        let (family, count) = (port.key.family, port.desired_places(scope));
        let before = port.realized.list(scope).word.range(family);
        if count == port.rows.len(scope) || !self.tables.allows_table(quota, family, count, before) {
            return None;
        }
        self.refill_spares(family);
        let base = self.slots(family).allocate(count).ok()?;
        self.tables.charges(family).charge(base, quota, count.next_power_of_two());
        Some(SlotRange { family, base, count })
    }

    /// Whether a table of that port would fit now.
    pub(super) fn has_table_capacity(&self, port: &Port, quota: QuotaId) -> bool {
        let family = port.key.family;
        port.missing_tables().any(|(scope, places)| {
            let before = port.realized.list(scope).word.range(family);
            self.tables.allows_table(quota, family, places, before)
                && by_family(&self.slots, family).has_run(places)
        })
    }
}

/// The order in which a port's two words are published. The flags of the cluster word, stored together with its new
/// list, send readers to the local word. So it goes last when it starts to send them, because the local word must be
/// ready, and first when it stops. If one policy turns Local while the other turns Cluster, some clients read the new
/// local list too early: the old one may be long unused and point to removed backends.
fn publishing_order(port: &Port) -> [Scope; 2] {
    let before = port.realized.cluster.word.flags;
    let after = port.transitional_flags(Scope::Cluster);
    let lost = |of: WordFlags, by: WordFlags| {
        [WordFlags::INTERNAL_LOCAL, WordFlags::EXTERNAL_LOCAL]
            .into_iter()
            .any(|it| of.contains(it) && !by.contains(it))
    };
    let sends = lost(after, before);
    let takes_back = lost(before, after);
    if takes_back && !sends { [Scope::Cluster, Scope::Local] } else { [Scope::Local, Scope::Cluster] }
}
