//! The endpoints of one port, merged: rows, and the two lists that their bits select.
//!
//! Invariant: rows are sorted by address and port, each pair once. A list is the rows with its bit, so rows and lists
//! never disagree.

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
    /// Serving and terminating, selected because no endpoint is ready.
    Draining,
}

/// One slot of a list in the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub address: IpAddr,
    pub port: NonZeroU16,
    pub state: SlotState,
}

impl Slot {
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

/// Summary of a list, read once for each frontend that uses it.
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
    /// Takes sorted, unique rows, and keeps the timestamps of unchanged ones.
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

    /// Restores the rows of a former process. `None`: they are not sorted, or not unique.
    pub fn restore(rows: &[Row]) -> Option<Self> {
        let sorted = rows.is_sorted_by(|a, b| a.position() < b.position());
        sorted.then(|| Self::with_summaries(rows))
    }

    /// The rows of a list found in the maps; only their backends and states are known. Maglev tables repeat backends.
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

    #[must_use]
    pub fn with_weights(self, weights: BackendWeights) -> Self {
        Self { weights, ..self }
    }

    pub const fn weights(&self) -> &BackendWeights {
        &self.weights
    }

    /// The backend's share of new clients.
    pub fn weight(&self, backend: SocketAddr) -> Weight {
        self.weights.weight(backend)
    }

    /// Whether all backends of that list have the same weight.
    pub fn is_even(&self, scope: Scope) -> bool {
        let mut each = self.list(scope).map(|row| self.weight(row.backend()));
        self.weights.is_uniform() || each.next().is_none_or(|first| each.all(|weight| weight == first))
    }

    /// How many new clients of a list there are for each one that this backend of it gets, on average and rounded up.
    pub fn clients_per_share(&self, scope: Scope, backend: SocketAddr) -> u64 {
        if self.is_even(scope) {
            return u64::from(self.len(scope));
        }
        let weight = |backend| u64::from(self.weight(backend).number());
        let all: u64 = self.list(scope).map(|row| weight(row.backend())).sum();
        all.div_ceil(weight(backend).max(1))
    }

    const fn summary(&self, scope: Scope) -> &Summary {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }

    /// Whether a backend as fit as the listed ones is left out for its weight alone: its clients stay with it.
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

    /// Whether clients reach the backend, or would if the other backends of the cluster list were gone.
    pub(crate) fn is_member(&self, row: &Row) -> bool {
        row.is_chosen() || self.is_weighted_out(row, Scope::Cluster)
    }

    /// All endpoints that the slices list for this port.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row> + Clone {
        self.rows.iter()
    }

    pub fn get(&self, place: usize) -> Option<Row> {
        self.rows.get(place)
    }

    pub fn rows_at(&self, address: IpAddr) -> impl Iterator<Item = Row> {
        let begin = self.rows.partition_point(address);
        let here = (begin..self.rows.len()).map_while(move |place| self.rows.get(place));
        here.take_while(move |row| row.address == address)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes() + self.weights.bytes()
    }

    pub const fn len(&self, scope: Scope) -> u32 {
        self.summary(scope).len
    }

    pub const fn is_empty(&self, scope: Scope) -> bool {
        self.len(scope) == 0
    }

    pub const fn has_any_list(&self) -> bool {
        self.cluster.len > 0 || self.local.len > 0
    }

    pub fn list(&self, scope: Scope) -> impl Iterator<Item = Row> + Clone {
        self.rows.iter().filter(move |row| row.is_in(scope))
    }

    /// The slots of that list, in the order of the datapath.
    pub fn slots(&self, scope: Scope) -> impl Iterator<Item = Slot> {
        self.list(scope).map(Row::slot)
    }

    /// The slots of that list in a range of this length: each backend once, as many as fit, or a Maglev table if the
    /// range has a table's length.
    pub fn slots_in_range(&self, scope: Scope, places: u32) -> impl Iterator<Item = Slot> {
        let is_table = maglev::is_table(places, self.len(scope));
        let backends: Vec<_> = if is_table { self.slots(scope).collect() } else { Vec::new() };
        let weighted = backends.iter().map(|slot| (slot.backend(), self.weight(slot.backend()).number()));
        let numbers = if is_table { maglev::table(weighted, places) } else { Vec::new() };
        let table = numbers.into_iter().filter_map(move |number| backends.get(number as usize).copied());
        self.slots(scope).take(if is_table { 0 } else { places as usize }).chain(table)
    }

    /// The row of a backend, in a list or not.
    pub fn find(&self, backend: SocketAddr) -> Option<Row> {
        self.rows.get(self.rows.find_position((backend.ip(), backend.port()))?)
    }

    /// Whether the list has backends and all of them are draining.
    pub const fn is_draining(&self, scope: Scope) -> bool {
        self.summary(scope).is_draining
    }

    pub const fn is_held(&self, scope: Scope) -> bool {
        self.summary(scope).is_held
    }

    /// Whether both lists have the same backends in the same states with the same shares of new clients.
    pub fn has_same_list(&self, scope: Scope, other: &Self, other_scope: Scope) -> bool {
        let is_even = self.is_even(scope) && other.is_even(other_scope);
        let weight = |rows: &Self, row: &Row| (!is_even).then(|| rows.weight(row.backend()));
        let of = |rows: &Self, row: Row| (row.slot(), weight(rows, &row));
        let other_list = other.list(other_scope).map(|row| of(other, row));
        self.len(scope) == other.len(other_scope) && self.list(scope).map(|row| of(self, row)).eq(other_list)
    }
}
