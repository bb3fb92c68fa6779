//! The endpoints of one port, merged and chosen: rows, and the two lists that are read off them.
//!
//! Invariant: rows are sorted by address and port, each pair once. A list is the rows with its bit; so a list and what
//! was not chosen for it can never disagree.

mod columns;
mod last_list;
mod row;

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use self::columns::Columns;
pub use self::last_list::LastList;
pub use self::row::Row;
use crate::facts::{Conditions, Timestamp};
use crate::maglev;
use crate::weights::{BackendWeights, Weight};

/// Which of a port's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Scope {
    /// Backends anywhere in the cluster.
    Cluster,
    /// Backends on this node.
    Local,
}

impl Scope {
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];
}

/// Why a backend is in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotState {
    Active,
    /// Serving and terminating, chosen because nothing is ready.
    Draining,
}

/// One place in a list, as the datapath keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The backend's address.
    pub address: IpAddr,
    /// The backend's port.
    pub port: NonZeroU16,
    /// Why it is there.
    pub state: SlotState,
}

impl Slot {
    /// Address and port.
    pub const fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port.get())
    }
}

/// All rows of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    rows: Columns,
    weights: BackendWeights,
    cluster: Summary,
    local: Summary,
}

/// Facts about a list that are needed once for each frontend that leads to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    len: u32,
    is_draining: bool,
    is_held: bool,
}

impl Summary {
    fn from_rows(rows: &[Row], scope: Scope) -> Self {
        let mut chosen = rows.iter().filter(|row| row.is_in(scope)).peekable();
        let is_held = chosen.peek().is_some_and(|row| row.is_held());
        let mut len = 0_u32;
        let mut is_draining = chosen.peek().is_some();
        for row in chosen {
            len = len.saturating_add(1);
            is_draining &= row.state() == SlotState::Draining;
        }
        Self { len, is_draining, is_held }
    }
}

impl Rows {
    /// Takes rows that are sorted and unique; keeps the time of those that did not change.
    pub fn new(mut rows: Vec<Row>, before: &Self, now: Timestamp) -> Self {
        let now = u32::try_from(now.0).unwrap_or(u32::MAX);
        let mut old = before.rows.iter().peekable();
        for row in &mut rows {
            while old.next_if(|old| old.position() < row.position()).is_some() {}
            let same = old.peek().is_some_and(|old| old.equals_except_age(row));
            row.since = if same { old.peek().map_or(now, |old| old.since) } else { now };
        }
        Self::with_summaries(&rows)
    }

    /// Rows that a former process wrote down. `None`: they are not sorted, or not unique.
    pub fn restore(rows: &[Row]) -> Option<Self> {
        let sorted = rows.is_sorted_by(|a, b| a.position() < b.position());
        sorted.then(|| Self::with_summaries(rows))
    }

    /// The rows of a list that was found in the maps: chosen, with nothing else known. In a table backends stand more
    /// than once.
    pub(crate) fn from_slots(slots: &[Slot], scope: Scope) -> Self {
        let mut slots = slots.to_vec();
        slots.sort_unstable();
        slots.dedup_by_key(|slot| slot.backend());
        let row = |slot: &Slot| {
            let ready = slot.state == SlotState::Active;
            let conditions = Conditions { ready, serving: true, terminating: false };
            let mut row = Row::new(slot.address, slot.port, conditions, 0, 0);
            row.choose(scope);
            row
        };
        Self::with_summaries(&slots.iter().map(row).collect::<Vec<_>>())
    }

    fn with_summaries(rows: &[Row]) -> Self {
        let of = |scope| Summary::from_rows(rows, scope);
        let (cluster, local) = (of(Scope::Cluster), of(Scope::Local));
        Self { rows: Columns::from_rows(rows), weights: BackendWeights::default(), cluster, local }
    }

    /// The same rows with these weights.
    #[must_use]
    pub fn with_weights(self, weights: BackendWeights) -> Self {
        Self { weights, ..self }
    }

    /// The weights of its backends.
    pub const fn weights(&self) -> &BackendWeights {
        &self.weights
    }

    /// How many new clients the backend gets beside others.
    pub fn weight(&self, backend: SocketAddr) -> Weight {
        self.weights.weight(backend)
    }

    /// Whether all backends of that list get as many new clients.
    pub fn is_even(&self, scope: Scope) -> bool {
        let mut each = self.list(scope).map(|row| self.weight(row.backend()));
        self.weights.is_uniform() || each.next().is_none_or(|first| each.all(|weight| weight == first))
    }

    const fn summary(&self, scope: Scope) -> &Summary {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }

    /// Whether a backend that is as fit as those of the list is out of it for its weight: clients that have it keep it.
    pub fn is_weighted_out(&self, row: &Row, scope: Scope) -> bool {
        let conditions = row.conditions();
        let is_fit = if self.is_draining(scope) {
            conditions.serving && conditions.terminating
        } else {
            conditions.ready
        };
        let is_listed = row.is_in(scope) || self.is_empty(scope);
        is_fit && !is_listed && self.weight(row.backend()) == Weight::NONE
    }

    /// Whether clients are led to the backend, or would be if the others of the cluster list were gone.
    pub(crate) fn is_member(&self, row: &Row) -> bool {
        row.is_chosen() || self.is_weighted_out(row, Scope::Cluster)
    }

    /// All endpoints that the slices list for this port.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row> + Clone {
        self.rows.iter()
    }

    /// The row at a place among all.
    pub fn get(&self, place: usize) -> Option<Row> {
        self.rows.get(place)
    }

    /// The rows of that address.
    pub fn rows_at(&self, address: IpAddr) -> impl Iterator<Item = Row> {
        let begin = self.rows.partition_point(address);
        let here = (begin..self.rows.len()).map_while(move |place| self.rows.get(place));
        here.take_while(move |row| row.address == address)
    }

    /// How much memory they take.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes() + self.weights.bytes()
    }

    /// How many backends that list has.
    pub const fn len(&self, scope: Scope) -> u32 {
        self.summary(scope).len
    }

    /// Whether that list has no backend.
    pub const fn is_empty(&self, scope: Scope) -> bool {
        self.len(scope) == 0
    }

    /// Whether any of the lists has a backend.
    pub const fn has_any_list(&self) -> bool {
        self.cluster.len > 0 || self.local.len > 0
    }

    /// The backends of that list.
    pub fn list(&self, scope: Scope) -> impl Iterator<Item = Row> + Clone {
        self.rows.iter().filter(move |row| row.is_in(scope))
    }

    /// The slots of that list, in the order of the datapath.
    pub fn slots(&self, scope: Scope) -> impl Iterator<Item = Slot> {
        self.list(scope).map(Row::slot)
    }

    /// The slots of that list as they stand in a range of so many: each backend once, as many as the range holds or,
    /// where there are as many slots as tables have, as a table.
    pub fn slots_in_range(&self, scope: Scope, places: u32) -> impl Iterator<Item = Slot> {
        let is_table = maglev::is_table(places, self.len(scope));
        let backends: Vec<_> = if is_table { self.slots(scope).collect() } else { Vec::new() };
        let weighted = backends.iter().map(|slot| (slot.backend(), self.weight(slot.backend()).number()));
        let numbers = if is_table { maglev::table(weighted, places) } else { Vec::new() };
        let table = numbers.into_iter().filter_map(move |number| backends.get(number as usize).copied());
        self.slots(scope).take(if is_table { 0 } else { places as usize }).chain(table)
    }

    /// The row of a backend, chosen or not.
    pub fn find(&self, backend: SocketAddr) -> Option<Row> {
        self.rows.get(self.rows.find_position((backend.ip(), backend.port()))?)
    }

    /// Whether the list has backends and all of them are draining.
    pub const fn is_draining(&self, scope: Scope) -> bool {
        self.summary(scope).is_draining
    }

    /// Whether the list is one that is held.
    pub const fn is_held(&self, scope: Scope) -> bool {
        self.summary(scope).is_held
    }

    /// Whether both are the same list of the same backends in the same states, which clients get in the same shares.
    pub fn has_same_list(&self, scope: Scope, other: &Self, other_scope: Scope) -> bool {
        let is_even = self.is_even(scope) && other.is_even(other_scope);
        let weight = |rows: &Self, row: &Row| (!is_even).then(|| rows.weight(row.backend()));
        let of = |rows: &Self, row: Row| (row.slot(), weight(rows, &row));
        let other_list = other.list(other_scope).map(|row| of(other, row));
        self.len(scope) == other.len(other_scope) && self.list(scope).map(|row| of(self, row)).eq(other_list)
    }
}
