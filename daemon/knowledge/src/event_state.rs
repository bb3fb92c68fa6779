//! Decides which Events of one object still describe its present state.
//!
//! Invariant: within an hour only a later observation closes an Event. Silence is no recovery: a failing component
//! waits up to five minutes between two tries.

use std::collections::BTreeMap;

use crate::entry::EventType;
use crate::event::ClusterEvent;
use crate::limits::EVENT_LIFE_S;
use crate::recognition::Recognition;
use crate::rfc3339::Time;
use crate::store::Knowledge;

#[derive(Clone, Copy, Debug, Default)]
pub struct CurrentObject<'a> {
    pub uid: Option<&'a str>,
    /// The last change of its spec, if known.
    pub changed: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedReason {
    /// It is about a former object of this name.
    FormerObject,
    Changed,
    /// A later Event ends it.
    Resolved,
    /// It is too old, or has no time.
    Expired,
}

#[derive(Clone, Debug)]
pub struct EventState<'k, 'e> {
    pub event: &'e ClusterEvent,
    pub recognised: Recognition<'k>,
    pub closed: Option<ClosedReason>,
}

impl EventState<'_, '_> {
    pub const fn is_open(&self) -> bool {
        self.closed.is_none()
    }
}

impl Knowledge {
    /// Judges which Events of one object are closed, in the order of the Events.
    pub fn judge_events<'e>(
        &self,
        events: &'e [ClusterEvent],
        present: CurrentObject<'_>,
        now: Time,
    ) -> Vec<EventState<'_, 'e>> {
        let recognised: Vec<_> = events.iter().map(|event| (event, self.recognise(event))).collect();
        let mut latest: BTreeMap<&str, Time> = BTreeMap::new();
        for (event, recognised) in &recognised {
            if let (Some(reason), Some(last)) = (recognised.reason, last_seen(event, now))
                && !is_former_object(event, present)
            {
                let known = latest.entry(&reason.reason).or_insert(last);
                *known = last.max(*known);
            }
        }
        let judge_closed = |event: &ClusterEvent, recognised: &Recognition<'_>| {
            let ends = recognised.reason.into_iter().flat_map(|reason| &reason.resolved_by);
            let ended = ends.filter_map(|reason| latest.get(reason.as_str())).max().copied();
            closed_reason(event, present, ended, now)
        };
        let states = recognised.into_iter().map(|(event, recognised)| {
            let closed = judge_closed(event, &recognised);
            EventState { event, recognised, closed }
        });
        states.collect()
    }
}

/// When an Event last occurred. A sender's clock may be ahead; the result is never later than now.
fn last_seen(event: &ClusterEvent, now: Time) -> Option<Time> {
    event.last.map(|last| last.min(now))
}

fn closed_reason(
    event: &ClusterEvent,
    present: CurrentObject<'_>,
    ended: Option<Time>,
    now: Time,
) -> Option<ClosedReason> {
    if is_former_object(event, present) {
        return Some(ClosedReason::FormerObject);
    }
    let Some(last) = last_seen(event, now) else { return Some(ClosedReason::Expired) };
    // Times are whole seconds. An end in the same second closes an Event of progress, but not a failure, which may have
    // come after that end.
    let is_ended = |end: Time| end > last || (end == last && event.event_type == EventType::Normal);
    if ended.is_some_and(is_ended) {
        return Some(ClosedReason::Resolved);
    }
    if present.changed.is_some_and(|changed| changed > last) {
        return Some(ClosedReason::Changed);
    }
    (now.since(last) > EVENT_LIFE_S).then_some(ClosedReason::Expired)
}

/// Whether an Event is about a former object. Some old components set a node's name as its UID, and some set none.
fn is_former_object(event: &ClusterEvent, present: CurrentObject<'_>) -> bool {
    let uid = event.object.uid.as_str();
    !uid.is_empty() && uid != event.object.name && present.uid.is_some_and(|known| known != uid)
}
