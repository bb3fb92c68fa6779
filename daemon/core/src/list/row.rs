//! One endpoint of one port, and which lists it is in.
//!
//! Invariant: list membership, a hold and seen terminating are separate bits; none follows from another.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use super::{Scope, Slot, SlotState};
use crate::facts::{Conditions, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Row {
    pub address: IpAddr,
    pub port: NonZeroU16,
    pub(super) bits: u8,
    /// The position of its slice in the service.
    pub slice: u16,
    /// Its position in that slice.
    pub endpoint: u16,
    pub(super) since: u32,
}

const READY: u8 = 1;
const SERVING: u8 = 1 << 1;
const TERMINATING: u8 = 1 << 2;
const IN_CLUSTER: u8 = 1 << 3;
const IN_LOCAL: u8 = 1 << 4;
const SEEN_TERMINATING: u8 = 1 << 5;
const HELD: u8 = 1 << 6;
/// Another slice lists the endpoint as serving; the winning slice does not.
const SERVES_IN_OTHER_SLICE: u8 = 1 << 7;

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

    pub const fn conditions(&self) -> Conditions {
        Conditions {
            ready: self.bits & READY != 0,
            serving: self.bits & SERVING != 0,
            terminating: self.bits & TERMINATING != 0,
        }
    }

    pub const fn is_in(&self, scope: Scope) -> bool {
        self.bits & scope_bit(scope) != 0
    }

    pub const fn is_chosen(&self) -> bool {
        self.bits & (IN_CLUSTER | IN_LOCAL) != 0
    }

    /// Whether the row is in a list only because the list is held.
    pub const fn is_held(&self) -> bool {
        self.bits & HELD != 0
    }

    /// Whether sockets may stay with the backend: it is listed or held, or serves in any slice. A ready backend that
    /// does not serve is published too, and may be out of the lists for its weight alone.
    pub const fn keeps_clients(&self) -> bool {
        self.bits & (READY | SERVING | SERVES_IN_OTHER_SLICE | HELD | IN_CLUSTER | IN_LOCAL) != 0
    }

    /// Ready rows are active; a listed row that is not ready is there by fallback. A hold keeps its backends active.
    pub const fn state(&self) -> SlotState {
        if self.bits & (READY | HELD) != 0 { SlotState::Active } else { SlotState::Draining }
    }

    /// When the row last changed.
    pub fn since(&self) -> Timestamp {
        Timestamp(i64::from(self.since))
    }

    /// Whether it was terminating when last seen, or at any time since it was last ready.
    pub const fn was_seen_terminating(&self) -> bool {
        self.bits & SEEN_TERMINATING != 0
    }

    pub const fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port.get())
    }

    /// The row as a slot of the datapath.
    pub const fn slot(self) -> Slot {
        Slot { address: self.address, port: self.port, state: self.state() }
    }

    pub fn choose(&mut self, scope: Scope) {
        self.bits |= scope_bit(scope);
    }

    /// Records that another slice lists the endpoint as serving.
    pub(crate) const fn merge_serving(&mut self, other: &Self) {
        if self.bits & SERVING == 0 && other.bits & SERVING != 0 {
            self.bits |= SERVES_IN_OTHER_SLICE;
        }
    }

    pub(super) const fn with_terminating_seen(self, is_seen: bool) -> Self {
        let seen = if is_seen { SEEN_TERMINATING } else { 0 };
        Self { bits: self.bits & !SEEN_TERMINATING | seen, ..self }
    }

    /// Removes the row from the lists that are `false` here.
    pub(crate) const fn restrict_lists(self, cluster: bool, local: bool) -> Self {
        let cluster = if cluster { 0 } else { IN_CLUSTER };
        let local = if local { 0 } else { IN_LOCAL };
        Self { bits: self.bits & !(cluster | local), ..self }
    }

    /// The row as a hold keeps it.
    pub(crate) const fn as_held(self) -> Self {
        Self { bits: self.bits | HELD, ..self }
    }

    /// Finds the row of the same address and port among sorted rows.
    pub(crate) fn find<'a>(sorted: &'a [Self], row: &Self) -> Option<&'a Self> {
        let found = sorted.binary_search_by(|other| other.position().cmp(&row.position()));
        sorted.get(found.ok()?)
    }

    pub(crate) const fn position(&self) -> (IpAddr, u16) {
        (self.address, self.port.get())
    }

    pub(super) fn equals_except_age(&self, other: &Self) -> bool {
        self.bits == other.bits && self.position() == other.position()
    }
}
