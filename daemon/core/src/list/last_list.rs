//! A port's last list that was not empty.
//!
//! Invariant: the rows are those of that list; later only their terminating marks change. Its members are its backends
//! and those left out for their weight alone: each of them would make the list non-empty.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::{Row, Rows};
use crate::facts::{Conditions, Endpoints};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastList {
    rows: Option<Arc<Rows>>,
}

impl LastList {
    /// Restores the list that a former process wrote.
    pub const fn restore(rows: Option<Arc<Rows>>) -> Self {
        Self { rows }
    }

    /// The rows of that time, with the members marked that were seen terminating since.
    pub const fn rows(&self) -> Option<&Arc<Rows>> {
        self.rows.as_ref()
    }

    pub(crate) fn record_list(&mut self, now: &Arc<Rows>) {
        self.rows = Some(Arc::clone(now));
    }

    /// Marks members that are seen terminating while the list is empty. It unmarks none, because a member that is ready
    /// again makes the list non-empty.
    pub(crate) fn observe(&mut self, listed: &[Row]) {
        let (Some(last), false) = (&self.rows, listed.is_empty()) else { return };
        let terminating =
            |row: &Row| Row::find(listed, row).is_some_and(|other| other.conditions().terminating);
        let members = last.iter().enumerate().filter(|(_, row)| last.is_member(row));
        let marks = members.filter(|(_, row)| terminating(row)).map(|(at, _)| (at, true)).collect();
        self.mark_terminating(marks);
    }

    /// Applies a slice that no decision has used: marks members that it lists as terminating, and unmarks those that it
    /// lists as ready, because with them the list would not have been empty.
    pub(crate) fn observe_slice(&mut self, endpoints: &Endpoints, port: NonZeroU16) {
        let Some(last) = &self.rows else { return };
        let marks = |(address, marks): (IpAddr, Conditions)| {
            let at = last.rows.find_position((address, port.get()))?;
            let is_member = last.rows.get(at).is_some_and(|row| last.is_member(&row));
            (is_member && (marks.terminating || marks.ready)).then_some((at, marks.terminating))
        };
        let marks = endpoints.iter_brief().filter_map(marks).collect();
        self.mark_terminating(marks);
    }

    /// Marks which of the rows at these positions were seen terminating; copies nothing if nothing changes.
    fn mark_terminating(&mut self, marks: Vec<(usize, bool)>) {
        let Some(last) = &mut self.rows else { return };
        let is_news = |(at, ends): &(usize, bool)| {
            last.rows.get(*at).is_some_and(|row| row.was_seen_terminating() != *ends)
        };
        if !marks.iter().any(is_news) {
            return;
        }
        let rows = &mut Arc::make_mut(last).rows;
        for (at, ends) in marks {
            rows.get(at).into_iter().for_each(|row| rows.set_bits(at, row.with_terminating_seen(ends).bits));
        }
    }

    /// Whether a member has one of these sorted addresses.
    pub(crate) fn has_member_in(&self, sorted: &[IpAddr]) -> bool {
        !sorted.is_empty() && self.members().any(|row| sorted.binary_search(&row.address).is_ok())
    }

    /// Whether there ever was a non-empty list.
    pub(crate) const fn has_list(&self) -> bool {
        self.rows.is_some()
    }

    pub(crate) fn row_count(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.iter().len())
    }

    pub(crate) fn was_scaled_down(&self) -> bool {
        self.has_list() && self.members().all(|row| row.was_seen_terminating())
    }

    /// Whether every member is one of these sorted endpoints or was seen terminating.
    pub(crate) fn is_accounted_for(&self, listed: &[Row]) -> bool {
        self.members().all(|row| row.was_seen_terminating() || Row::find(listed, &row).is_some())
    }

    fn members(&self) -> impl Iterator<Item = Row> {
        self.rows.iter().flat_map(|rows| rows.iter().filter(|row| rows.is_member(row)))
    }
}
