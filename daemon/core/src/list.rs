//! The endpoints of one port, merged and chosen: rows, and the two lists that are read off them.
//!
//! Invariant: rows are sorted by address and port, each pair once. A list is the rows with its bit; so a list and what
//! was not chosen for it can never disagree.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use crate::facts::{Conditions, Endpoints, Timestamp};
use crate::maglev;
use crate::weights::{OfBackends, Weight};

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

/// One endpoint of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Row {
    pub address: IpAddr,
    pub port: NonZeroU16,
    bits: u8,
    /// The place of its slice among the service's slices.
    pub slice: u16,
    /// Its place in that slice.
    pub endpoint: u16,
    since: u32,
}

const READY: u8 = 1;
const SERVING: u8 = 1 << 1;
const TERMINATING: u8 = 1 << 2;
const IN_CLUSTER: u8 = 1 << 3;
const IN_LOCAL: u8 = 1 << 4;
const SEEN_TERMINATING: u8 = 1 << 5;
const HELD: u8 = 1 << 6;
/// Another slice says that the endpoint serves; the slice that counts says that it does not.
const SERVES_ELSEWHERE: u8 = 1 << 7;

const fn scope_bit(scope: Scope) -> u8 {
    match scope {
        Scope::Cluster => IN_CLUSTER,
        Scope::Local => IN_LOCAL,
    }
}

impl Row {
    /// A row that is in no list yet.
    pub fn new(address: IpAddr, port: NonZeroU16, conditions: Conditions, slice: u16, endpoint: u16) -> Self {
        let bits = u8::from(conditions.ready) * READY
            + u8::from(conditions.serving) * SERVING
            + u8::from(conditions.terminating) * (TERMINATING + SEEN_TERMINATING);
        Self { address, port, bits, slice, endpoint, since: 0 }
    }

    /// Ready, serving, terminating.
    pub const fn conditions(&self) -> Conditions {
        Conditions {
            ready: self.bits & READY != 0,
            serving: self.bits & SERVING != 0,
            terminating: self.bits & TERMINATING != 0,
        }
    }

    /// Whether this row is in that list.
    pub const fn is_in(&self, scope: Scope) -> bool {
        self.bits & scope_bit(scope) != 0
    }

    /// Whether the row is in any list.
    pub const fn is_chosen(&self) -> bool {
        self.bits & (IN_CLUSTER | IN_LOCAL) != 0
    }

    /// Whether the row is in a list only because the list is held.
    pub const fn is_held(&self) -> bool {
        self.bits & HELD != 0
    }

    /// Whether sockets may stay with the backend: it serves in any slice of its service, whatever else is said of it,
    /// or is held, or clients are or may be led to it all the same: a ready one that does not serve is published, and
    /// may be out of the lists for its weight alone.
    pub const fn is_kept(&self) -> bool {
        self.bits & (READY | SERVING | SERVES_ELSEWHERE | HELD | IN_CLUSTER | IN_LOCAL) != 0
    }

    /// Ready rows are active; a chosen row that is not ready came in by the fall-back rule. A held backend gets traffic
    /// as if nothing had happened.
    pub const fn state(&self) -> SlotState {
        if self.bits & (READY | HELD) != 0 { SlotState::Active } else { SlotState::Draining }
    }

    /// When the row changed last.
    pub fn since(&self) -> Timestamp {
        Timestamp(i64::from(self.since))
    }

    /// Whether it was terminating when last seen, or at any time since it was last ready.
    pub const fn was_seen_terminating(&self) -> bool {
        self.bits & SEEN_TERMINATING != 0
    }

    /// Address and port.
    pub const fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port.get())
    }

    /// As the datapath keeps it.
    pub const fn slot(&self) -> Slot {
        Slot { address: self.address, port: self.port, state: self.state() }
    }

    /// Puts the row into that list.
    pub fn choose(&mut self, scope: Scope) {
        self.bits |= scope_bit(scope);
    }

    /// Takes notice of what another slice says of the same endpoint.
    pub(crate) const fn also(&mut self, other: &Self) {
        if self.bits & SERVING == 0 && other.bits & SERVING != 0 {
            self.bits |= SERVES_ELSEWHERE;
        }
    }

    pub(crate) const fn see_terminating(&mut self, is_seen: bool) {
        self.bits = self.bits & !SEEN_TERMINATING | if is_seen { SEEN_TERMINATING } else { 0 };
    }

    /// The row, taken out of the lists that are `false` here.
    pub(crate) const fn narrowed(self, cluster: bool, local: bool) -> Self {
        let cluster = if cluster { 0 } else { IN_CLUSTER };
        let local = if local { 0 } else { IN_LOCAL };
        Self { bits: self.bits & !(cluster | local), ..self }
    }

    /// The row as a hold keeps it.
    pub(crate) const fn held(self) -> Self {
        Self { bits: self.bits | HELD, ..self }
    }

    pub(crate) const fn position(&self) -> (IpAddr, u16) {
        (self.address, self.port.get())
    }

    fn shows_the_same(&self, other: &Self) -> bool {
        self.bits == other.bits && self.position() == other.position()
    }
}

/// All rows of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    rows: Box<[Row]>,
    weights: OfBackends,
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
    fn of(rows: &[Row], scope: Scope) -> Self {
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
            let same = old.peek().is_some_and(|old| old.shows_the_same(row));
            row.since = if same { old.peek().map_or(now, |old| old.since) } else { now };
        }
        Self::counted(rows.into())
    }

    /// Rows that a former process wrote down. `None`: they are not sorted, or not unique.
    pub fn remembered(rows: Vec<Row>) -> Option<Self> {
        let sorted = rows.is_sorted_by(|a, b| a.position() < b.position());
        sorted.then(|| Self::counted(rows.into()))
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
        Self::counted(slots.iter().map(row).collect())
    }

    fn counted(rows: Box<[Row]>) -> Self {
        let of = |scope| Summary::of(&rows, scope);
        Self { cluster: of(Scope::Cluster), local: of(Scope::Local), rows, weights: OfBackends::default() }
    }

    /// The same rows with these weights.
    #[must_use]
    pub fn weighted(self, weights: OfBackends) -> Self {
        Self { weights, ..self }
    }

    /// The weights of its backends.
    pub const fn weights(&self) -> &OfBackends {
        &self.weights
    }

    /// How many new clients the backend gets beside others.
    pub fn weight(&self, backend: SocketAddr) -> Weight {
        self.weights.of(backend)
    }

    /// Whether all backends of that list get as many new clients.
    pub fn is_even(&self, scope: Scope) -> bool {
        let mut each = self.list(scope).map(|row| self.weight(row.backend()));
        self.weights.is_none() || each.next().is_none_or(|first| each.all(|weight| weight == first))
    }

    const fn summary(&self, scope: Scope) -> &Summary {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }

    /// Whether a backend that is as fit as those of the list is out of it for its weight: clients that have it keep it.
    pub fn rests(&self, row: &Row, scope: Scope) -> bool {
        let conditions = row.conditions();
        let is_fit = if self.is_draining(scope) {
            conditions.serving && conditions.terminating
        } else {
            conditions.ready
        };
        let is_listed = row.is_in(scope) || self.is_empty(scope);
        is_fit && !is_listed && self.weight(row.backend()) == Weight::NONE
    }

    /// All endpoints that the slices list for this port.
    pub fn all(&self) -> &[Row] {
        &self.rows
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
    pub fn list(&self, scope: Scope) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.is_in(scope))
    }

    /// The slots of that list, in the order of the datapath.
    pub fn slots(&self, scope: Scope) -> impl Iterator<Item = Slot> {
        self.list(scope).map(Row::slot)
    }

    /// The slots of that list as they stand in a range of so many: each backend once or, where there are as many slots
    /// as tables have, as a table.
    pub fn placed(&self, scope: Scope, places: u32) -> impl Iterator<Item = Slot> {
        let is_table = maglev::is_table(places, self.len(scope));
        let backends: Vec<_> = if is_table { self.slots(scope).collect() } else { Vec::new() };
        let weighted = backends.iter().map(|slot| (slot.backend(), self.weight(slot.backend()).number()));
        let numbers = if is_table { maglev::table(weighted, places) } else { Vec::new() };
        let table = numbers.into_iter().filter_map(move |number| backends.get(number as usize).copied());
        self.slots(scope).filter(move |_| !is_table).chain(table)
    }

    /// The row of a backend, chosen or not.
    pub fn find(&self, backend: SocketAddr) -> Option<&Row> {
        let wanted = (backend.ip(), backend.port());
        let position = self.rows.binary_search_by(|row| row.position().cmp(&wanted)).ok()?;
        self.rows.get(position)
    }

    /// Whether the list has backends and all of them are draining.
    pub const fn is_draining(&self, scope: Scope) -> bool {
        self.summary(scope).is_draining
    }

    /// Whether the list is one that is held.
    pub const fn is_held(&self, scope: Scope) -> bool {
        self.summary(scope).is_held
    }

    /// Whether both are the same list of the same backends in the same states, with the same weights.
    pub fn same_list(&self, scope: Scope, other: &Self, other_scope: Scope) -> bool {
        let of = |rows: &Self, row: &Row| (row.slot(), rows.weight(row.backend()));
        let other_list = other.list(other_scope).map(|row| of(other, row));
        self.len(scope) == other.len(other_scope) && self.list(scope).map(|row| of(self, row)).eq(other_list)
    }
}

/// A port's memory of its last list that was not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastList {
    rows: Option<Arc<Rows>>,
}

impl LastList {
    /// The memory that a former process wrote down.
    pub const fn remembered(rows: Option<Arc<Rows>>) -> Self {
        Self { rows }
    }

    /// The rows as they were then, with the members that were seen terminating since.
    pub const fn rows(&self) -> Option<&Arc<Rows>> {
        self.rows.as_ref()
    }

    /// Takes a list that is not empty.
    pub(crate) fn keep(&mut self, now: &Arc<Rows>) {
        self.rows = Some(Arc::clone(now));
    }

    /// Takes notice of endpoints while the list is empty: marks the members that are seen terminating, and unmarks
    /// none, because a member that is ready again makes the list non-empty.
    pub(crate) fn observe(&mut self, listed: &[Row]) {
        let (Some(last), false) = (&mut self.rows, listed.is_empty()) else { return };
        let terminating = |row: &Row| {
            let found = listed.binary_search_by(|other| other.position().cmp(&row.position()));
            found
                .ok()
                .and_then(|position| listed.get(position))
                .is_some_and(|other| other.conditions().terminating)
        };
        for row in Arc::make_mut(last).rows.iter_mut().filter(|row| row.is_chosen()) {
            if terminating(row) {
                row.see_terminating(true);
            }
        }
    }

    /// Takes notice of the endpoints of a slice that no decision was made by: marks the members that the slice called
    /// terminating, and unmarks those that it called ready, because with them the list would not have been empty.
    pub(crate) fn observe_told(&mut self, endpoints: &Endpoints, port: NonZeroU16) {
        let Some(last) = &mut self.rows else { return };
        let told = |(address, told): (IpAddr, Conditions)| {
            let at = last.rows.binary_search_by(|row| row.position().cmp(&(address, port.get()))).ok()?;
            let is_member = last.rows.get(at).is_some_and(Row::is_chosen);
            (is_member && (told.terminating || told.ready)).then_some((at, told.terminating))
        };
        let told: Vec<_> = endpoints.iter_brief().filter_map(told).collect();
        let says_more = |(at, ends): &(usize, bool)| {
            last.rows.get(*at).is_some_and(|row| row.was_seen_terminating() != *ends)
        };
        if !told.iter().any(says_more) {
            return;
        }
        let rows = &mut Arc::make_mut(last).rows;
        for (at, ends) in told {
            rows.get_mut(at).into_iter().for_each(|row| row.see_terminating(ends));
        }
    }

    /// Whether a member of that list has one of these addresses.
    pub(crate) fn is_any_in(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        let members = self.rows.iter().flat_map(|rows| rows.rows.iter()).filter(|row| row.is_chosen());
        !addresses.is_empty() && members.into_iter().any(|row| addresses.contains(&row.address))
    }

    /// Whether there ever was a list with a backend in it.
    pub(crate) const fn is_some(&self) -> bool {
        self.rows.is_some()
    }

    /// Whether every member of that list was seen terminating.
    pub(crate) fn was_scaled_down(&self) -> bool {
        let Some(rows) = &self.rows else { return false };
        rows.rows.iter().filter(|row| row.is_chosen()).all(Row::was_seen_terminating)
    }
}
