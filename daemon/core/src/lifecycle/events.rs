//! The Events of a load balancer by their meaning, and whether its controller is alive.
//!
//! Invariant: the order of Events makes no difference, and no time in an Event can make anything older than it is or
//! lie in the future. Unread Events count as unknown, not as absent.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::facts::Timestamp;

/// The meaning of an Event about a load balancer. Only the reader of Events parses their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meaning {
    /// A controller starts to reconcile the balancer with the Service.
    Ensuring,
    /// The balancer matches the Service.
    Ensured,
    Creating,
    Created,
    /// The balancer has the current nodes.
    Updated,
    /// The balancer could not be updated with the current nodes.
    UpdateFailed,
    /// The balancer could not be created or changed, or there was no address for it.
    SyncFailed,
    Deleting,
    Deleted,
    /// The balancer could not be removed, whatever the Event's name.
    DeleteFailed,
    /// No node or helper can take its traffic.
    NoNodes,
    AddressAssigned,
    /// A controller wrote another Event about it, so a controller exists.
    Other,
}

impl Meaning {
    pub const ALL: [Self; 13] = [
        Self::Ensuring,
        Self::Ensured,
        Self::Creating,
        Self::Created,
        Self::Updated,
        Self::UpdateFailed,
        Self::SyncFailed,
        Self::Deleting,
        Self::Deleted,
        Self::DeleteFailed,
        Self::NoNodes,
        Self::AddressAssigned,
        Self::Other,
    ];
}

/// One Event about a Service's load balancer. It must be about this very object: the reader of Events skips those of an
/// earlier object of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerEvent {
    pub meaning: Meaning,
    /// The first and the last occurrence, by the clock of the Event's writer.
    pub first: Timestamp,
    pub last: Timestamp,
    /// The number of occurrences; 0, which no apiserver writes, counts as 1.
    pub count: u32,
    /// No later Event has ended it.
    pub is_open: bool,
    /// An id of the cause, defined by the reader of Events.
    pub cause: Option<Arc<str>>,
    /// Whether a failed deletion with this cause may leave resources at the provider, because they are still in use or
    /// a permission is missing.
    pub strands: bool,
}

/// The Events as read.
#[derive(Clone, Copy, Debug)]
pub enum EventReading<'a> {
    /// They were not read, or access is denied.
    NotRead,
    /// All Events that exist. Events live for an hour; their reader limits the number.
    All(&'a [BalancerEvent]),
}

/// Whether the controller of load balancers is alive, by its Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerLiveness {
    /// No Lease was read, or none shows it.
    #[default]
    Unknown,
    /// It renewed its Lease.
    Alive,
    /// Its Lease has expired.
    Silent,
}

/// Seconds from a time in an Event until now; `None`: the Event has no time. A future time counts as now.
fn event_age(at: Timestamp, now: Timestamp) -> Option<i64> {
    (at.0 > 0).then(|| now.0.saturating_sub(at.0).max(0))
}

/// One Event with its ages. Without a time it is older than all that have one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgedEvent<'a> {
    pub(super) event: &'a BalancerEvent,
    /// Since the last occurrence.
    pub(super) age: Option<i64>,
    /// Since the first occurrence.
    pub(super) oldest: Option<i64>,
}

impl AgedEvent<'_> {
    /// Whether it is later than the other; `None`: there is no other.
    pub(super) fn is_after(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.recency() < other.recency())
    }

    /// Whether it is not earlier than the other.
    pub(super) fn is_not_before(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.recency() <= other.recency())
    }

    fn recency(&self) -> i64 {
        self.age.unwrap_or(i64::MAX)
    }
}

/// All Events, looked up by their meaning.
#[derive(Clone, Debug)]
pub(super) struct EventLog<'a> {
    /// `None`: Events were not read.
    all: Option<Vec<AgedEvent<'a>>>,
}

impl<'a> EventLog<'a> {
    pub(super) fn new(reading: EventReading<'a>, now: Timestamp) -> Self {
        let EventReading::All(events) = reading else { return Self { all: None } };
        let aged = |event: &'a BalancerEvent| {
            let last = event_age(event.last, now);
            // A first time after the last one is as wrong as a future one.
            let oldest = event_age(event.first, now).max(last);
            AgedEvent { event, age: last, oldest }
        };
        Self { all: Some(events.iter().map(aged).collect()) }
    }

    /// Whether Events were read and none exists.
    pub(super) fn has_none(&self) -> bool {
        self.all.as_ref().is_some_and(Vec::is_empty)
    }

    pub(super) const fn was_read(&self) -> bool {
        self.all.is_some()
    }

    pub(super) fn has_any(&self) -> bool {
        self.iter().next().is_some()
    }

    fn iter(&self) -> impl Iterator<Item = AgedEvent<'a>> {
        self.all.iter().flatten().copied()
    }

    /// The latest Event with one of these meanings. Among several at the same time it takes the most informative, so
    /// that their order makes no difference.
    pub(super) fn latest_event(&self, meanings: &[Meaning]) -> Option<AgedEvent<'a>> {
        select_latest(self.iter().filter(|it| meanings.contains(&it.event.meaning)))
    }

    /// Like [`Self::latest_event`], among the Events that nothing has ended.
    pub(super) fn latest_open(&self, meanings: &[Meaning]) -> Option<AgedEvent<'a>> {
        select_latest(self.iter().filter(|it| it.event.is_open && meanings.contains(&it.event.meaning)))
    }

    /// The occurrences of open Events with these meanings and this cause, and the age of the oldest.
    pub(super) fn count_repeats(&self, meanings: &[Meaning], cause: Option<&str>) -> (u32, Option<i64>) {
        let same = |it: &AgedEvent<'_>| {
            it.event.is_open && meanings.contains(&it.event.meaning) && it.event.cause.as_deref() == cause
        };
        self.iter().filter(same).fold((0, None), |(count, oldest), it| {
            (u32::saturating_add(count, it.event.count.max(1)), oldest.max(it.oldest))
        })
    }
}

fn select_latest<'a>(among: impl Iterator<Item = AgedEvent<'a>>) -> Option<AgedEvent<'a>> {
    among.min_by(|a, b| {
        let rest = |it: &AgedEvent<'a>| (it.event.count, it.oldest, it.event.meaning, it.event.strands);
        let last = a.recency().cmp(&b.recency());
        last.then_with(|| rest(b).cmp(&rest(a))).then_with(|| a.event.cause.cmp(&b.event.cause))
    })
}
