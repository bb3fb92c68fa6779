//! What others say of a load balancer: Events by their meaning, and whether its controller is alive.
//!
//! Invariant: the order of Events makes no difference, and no time in an Event can make anything older than it is or
//! lie ahead. Events that were not read have said nothing, which does not mean that there were none.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::facts::Timestamp;

/// What an Event about a load balancer means. Only the reader of Events knows their words; here there are only
/// meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meaning {
    /// A controller begins to bring the balancer in line with the Service.
    Ensuring,
    /// The balancer is in line with the Service.
    Ensured,
    /// A balancer is being made.
    Creating,
    /// A balancer is made.
    Created,
    /// The balancer knows the nodes as they are.
    Updated,
    /// The balancer could not be told of the nodes as they are.
    UpdateFailed,
    /// The balancer could not be made or changed, or no address could be had for it.
    SyncFailed,
    /// The balancer is being removed.
    Deleting,
    /// The balancer is removed.
    Deleted,
    /// The balancer could not be removed, whatever the Event was called.
    DeleteFailed,
    /// No node or no helper is there that could take its traffic.
    NoNodes,
    /// An address was chosen.
    AddressAssigned,
    /// A controller said something else about it, so a controller is there.
    Other,
}

impl Meaning {
    /// All of them.
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

/// One Event about a Service, as far as it is about the load balancer. It must be about this very object: the reader of
/// Events leaves out those of a former one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerEvent {
    pub meaning: Meaning,
    /// When it was said first and last, by the clock of the Event's writer.
    pub first: Timestamp,
    pub last: Timestamp,
    /// How often it was said; 0, which no apiserver writes, is once.
    pub count: u32,
    /// Nothing that was said later has ended it.
    pub is_open: bool,
    /// Why, by an id that means something to the reader that knows the words.
    pub cause: Option<Arc<str>>,
    /// Whether a deletion with this cause may leave something at the provider, because that is still in use or a
    /// permission is missing.
    pub strands: bool,
}

/// What Events say.
#[derive(Clone, Copy, Debug)]
pub enum EventReading<'a> {
    /// They were not read, or may not be.
    NotRead,
    /// These and no others were there. Events live for an hour; their reader bounds how many.
    All(&'a [BalancerEvent]),
}

/// Whether the controller of load balancers is alive, by its Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerLiveness {
    /// No Lease was read, or none says so.
    #[default]
    Unknown,
    /// It has renewed its Lease.
    Alive,
    /// Its Lease has run out.
    Silent,
}

/// Seconds from a time in an Event until now; `None`: the Event says none. A time that lies ahead counts as now.
fn event_age(at: Timestamp, now: Timestamp) -> Option<i64> {
    (at.0 > 0).then(|| now.0.saturating_sub(at.0).max(0))
}

/// One Event with its ages. Without a time it is older than all that have one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgedEvent<'a> {
    pub(super) event: &'a BalancerEvent,
    /// Since it was said last.
    pub(super) age: Option<i64>,
    /// Since it was said first.
    pub(super) oldest: Option<i64>,
}

impl AgedEvent<'_> {
    /// Whether it was said later than the other; `None`: there is no other.
    pub(super) fn is_after(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.recency() < other.recency())
    }

    /// Whether it was said later than the other, or at the same time.
    pub(super) fn is_not_before(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.recency() <= other.recency())
    }

    fn recency(&self) -> i64 {
        self.age.unwrap_or(i64::MAX)
    }
}

/// All that was told, each kind looked up by what it means.
#[derive(Clone, Debug)]
pub(super) struct EventLog<'a> {
    /// `None`: Events were not read.
    all: Option<Vec<AgedEvent<'a>>>,
}

impl<'a> EventLog<'a> {
    pub(super) fn new(heard: EventReading<'a>, now: Timestamp) -> Self {
        let EventReading::All(told) = heard else { return Self { all: None } };
        let aged = |told: &'a BalancerEvent| {
            let last = event_age(told.last, now);
            // A first time after the last one is as wrong as one that lies ahead.
            let oldest = event_age(told.first, now).max(last);
            AgedEvent { event: told, age: last, oldest }
        };
        Self { all: Some(told.iter().map(aged).collect()) }
    }

    /// Whether Events were read and there was none at all.
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

    /// The latest with one of these meanings. Of several at the same time the one that tells most is taken, so that
    /// their order makes no difference.
    pub(super) fn latest_event(&self, meanings: &[Meaning]) -> Option<AgedEvent<'a>> {
        select_latest(self.iter().filter(|it| meanings.contains(&it.event.meaning)))
    }

    /// Like [`Self::latest`], among those that nothing has ended.
    pub(super) fn latest_open(&self, meanings: &[Meaning]) -> Option<AgedEvent<'a>> {
        select_latest(self.iter().filter(|it| it.event.is_open && meanings.contains(&it.event.meaning)))
    }

    /// How often the same thing was said, and for how long, over all Events that say it with this cause.
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
