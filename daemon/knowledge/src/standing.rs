//! Which Events about one object still say something about its present state.
//!
//! Invariant: within an hour only a later observation closes an Event. Silence for a while is no recovery: a component
//! that fails waits up to five minutes between two tries.

use std::collections::BTreeMap;

use crate::entry::EventType;
use crate::event::ClusterEvent;
use crate::limits::EVENT_LIFE_S;
use crate::recognise::Recognised;
use crate::rfc3339::Time;
use crate::store::Knowledge;

/// The object as it is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present<'a> {
    pub uid: Option<&'a str>,
    /// When its spec was changed last, where that is known.
    pub changed: Option<Time>,
}

/// Why an Event says nothing about the object's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It is about a former object of this name.
    FormerObject,
    /// The object was changed since.
    Changed,
    /// A later Event ends it.
    Resolved,
    /// It is too old, or has no time.
    Expired,
}

/// An Event, what was recognised in it, and whether it is closed.
#[derive(Clone, Debug)]
pub struct Standing<'k, 'e> {
    pub event: &'e ClusterEvent,
    pub recognised: Recognised<'k>,
    pub closed: Option<Closed>,
}

impl Standing<'_, '_> {
    pub const fn is_open(&self) -> bool {
        self.closed.is_none()
    }
}

impl Knowledge {
    /// Judges which Events of one object are closed, in the order of the Events.
    pub fn standing<'e>(
        &self,
        events: &'e [ClusterEvent],
        present: Present<'_>,
        now: Time,
    ) -> Vec<Standing<'_, 'e>> {
        let recognised: Vec<_> = events.iter().map(|event| (event, self.recognise(event))).collect();
        let mut latest: BTreeMap<&str, Time> = BTreeMap::new();
        for (event, recognised) in &recognised {
            if let (Some(reason), Some(last)) = (recognised.reason, seen(event, now))
                && !is_former(event, present)
            {
                let known = latest.entry(&reason.reason).or_insert(last);
                *known = last.max(*known);
            }
        }
        let closed = |event: &ClusterEvent, recognised: &Recognised<'_>| {
            let ends = recognised.reason.into_iter().flat_map(|reason| &reason.resolved_by);
            let ended = ends.filter_map(|reason| latest.get(reason.as_str())).max().copied();
            why_closed(event, present, ended, now)
        };
        let standing = recognised.into_iter().map(|(event, recognised)| {
            let closed = closed(event, &recognised);
            Standing { event, recognised, closed }
        });
        standing.collect()
    }
}

/// When an Event was seen last. A sender's clock that is ahead of ours does not make that later than now.
fn seen(event: &ClusterEvent, now: Time) -> Option<Time> {
    event.last.map(|last| last.min(now))
}

fn why_closed(event: &ClusterEvent, present: Present<'_>, ended: Option<Time>, now: Time) -> Option<Closed> {
    if is_former(event, present) {
        return Some(Closed::FormerObject);
    }
    let Some(last) = seen(event, now) else { return Some(Closed::Expired) };
    // Times are whole seconds. An end in the same second closes an Event of progress, but not one of a failure, which
    // may have come after that end.
    let is_ended = |end: Time| end > last || (end == last && event.event_type == EventType::Normal);
    if ended.is_some_and(is_ended) {
        return Some(Closed::Resolved);
    }
    if present.changed.is_some_and(|changed| changed > last) {
        return Some(Closed::Changed);
    }
    (now.since(last) > EVENT_LIFE_S).then_some(Closed::Expired)
}

/// Whether an Event is about a former object. Old components write a node's name for its UID, and some write none.
fn is_former(event: &ClusterEvent, present: Present<'_>) -> bool {
    let uid = event.object.uid.as_str();
    !uid.is_empty() && uid != event.object.name && present.uid.is_some_and(|known| known != uid)
}
