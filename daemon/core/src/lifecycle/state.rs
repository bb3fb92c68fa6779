//! The state of a load balancer.
//!
//! Invariant: the same facts and Events give the same state, in any order. An Event never overrides the object: with an
//! address in the status the balancer is ready, whether an Event reported it or not.

use super::events::{AgedEvent, EventLog};
use super::history::phase_age;
use super::{BalancerInput, BalancerPhase, Meaning};
use crate::facts::{BalancerFacts, ServiceFacts};
use crate::words;

words! {
    /// The progress of a load balancer.
    pub enum BalancerState {
        /// The Service requests none.
        None = "none",
        /// A controller of its own class owns it, and has not acted.
        Foreign = "foreign",
        /// No controller has acted on it.
        Requested = "requested",
        /// A controller works on it.
        Ensuring = "ensuring",
        Creating = "creating",
        /// It could not be made; the controller retries.
        Failing = "failing",
        /// It has an address.
        Ready = "ready",
        /// It has an address, and a change is being written.
        Updating = "updating",
        /// It has an address, but not the newest Service or nodes.
        Degraded = "degraded",
        Deleting = "deleting",
        /// It could not be removed; the controller retries.
        DeleteFailing = "delete-failing",
        /// It or the Service was deleted.
        Deleted = "deleted",
    }
}

/// The meanings of Events that report a completed step.
const RESULTS: [Meaning; 4] =
    [Meaning::Ensured, Meaning::Updated, Meaning::Created, Meaning::AddressAssigned];

/// A state and its age in seconds; `None`: unknown.
type StateAge = (BalancerState, Option<i64>);

pub(super) fn determine_state(case: &BalancerInput<'_>, known: &EventLog<'_>) -> StateAge {
    let removed = || known.latest_event(&[Meaning::Deleted]);
    let Some(facts) = case.facts else { return (BalancerState::Deleted, removed().and_then(|it| it.age)) };
    let phase = BalancerPhase::from_facts(facts);
    match phase {
        BalancerPhase::None => unrequested_state(known),
        BalancerPhase::Left => (BalancerState::Deleted, shown_age(case, facts)),
        BalancerPhase::Leaving => leaving_state(known, shown_age(case, facts)),
        BalancerPhase::Addressed => addressed_state(facts, known, case, shown_age(case, facts)),
        BalancerPhase::Pending => pending_state(facts, known, shown_age(case, facts)),
    }
}

/// Seconds since the object shows its phase.
pub(super) fn shown_age(case: &BalancerInput<'_>, facts: &ServiceFacts) -> Option<i64> {
    match case.history {
        Some(seen) => Some(seen.age(case.now.uptime())),
        None => phase_age(BalancerPhase::from_facts(facts), facts, case.now.wall),
    }
}

/// A Service that requests no load balancer may have had one a moment ago.
fn unrequested_state(known: &EventLog<'_>) -> StateAge {
    let begun = known.latest_event(&[Meaning::Ensuring, Meaning::Creating]);
    match known.latest_event(&[Meaning::Deleted]).filter(|it| it.is_not_before(begun.as_ref())) {
        Some(removed) => (BalancerState::Deleted, removed.age),
        None => (BalancerState::None, None),
    }
}

fn leaving_state(known: &EventLog<'_>, age: Option<i64>) -> StateAge {
    match known.latest_open(&[Meaning::DeleteFailed]) {
        Some(failed) => (BalancerState::DeleteFailing, failed.oldest),
        None => (BalancerState::Deleting, age),
    }
}

/// The meanings of Events that degrade a balancer with an address.
pub(super) const DEGRADING: [Meaning; 3] = [Meaning::UpdateFailed, Meaning::SyncFailed, Meaning::NoNodes];

fn addressed_state(
    facts: &ServiceFacts,
    known: &EventLog<'_>,
    case: &BalancerInput<'_>,
    age: Option<i64>,
) -> StateAge {
    if let Some(failed) = known.latest_open(&DEGRADING) {
        return (BalancerState::Degraded, failed.oldest);
    }
    match unfinished_update(facts, known, case) {
        Some(begun) => (BalancerState::Updating, begun.age),
        None => (BalancerState::Ready, age),
    }
}

/// The Event of a change that no later Event reports done. Some controllers leave the balancer to others and never
/// report anything done; then no change counts as unfinished.
fn unfinished_update<'a>(
    facts: &ServiceFacts,
    known: &EventLog<'a>,
    case: &BalancerInput<'_>,
) -> Option<AgedEvent<'a>> {
    let begun = known.latest_event(&[Meaning::Ensuring])?;
    let done = known.latest_event(&RESULTS)?;
    let written = facts.balancer.as_deref().and_then(|it: &BalancerFacts| it.written);
    let is_written = written.is_some_and(|at| begun.age.is_some_and(|age| at.0 >= case.now.wall.0 - age));
    (begun.is_after(Some(&done)) && !is_written).then_some(begun)
}

fn pending_state(facts: &ServiceFacts, known: &EventLog<'_>, age: Option<i64>) -> StateAge {
    let begun = known.latest_event(&[Meaning::Ensuring, Meaning::Creating]);
    let done = known.latest_event(&RESULTS);
    let failed = known.latest_open(&[Meaning::SyncFailed]);
    let is_newest = |it: &AgedEvent<'_>| it.is_not_before(begun.as_ref()) && it.is_not_before(done.as_ref());
    if let Some(failed) = failed.filter(is_newest) {
        return (BalancerState::Failing, failed.oldest);
    }
    if let Some(begun) = begun.filter(|it| it.is_after(done.as_ref())) {
        let is_made = begun.event.meaning == Meaning::Creating;
        return (if is_made { BalancerState::Creating } else { BalancerState::Ensuring }, begun.age);
    }
    let balancer = facts.balancer.as_deref();
    let is_acted_on = known.has_any() || balancer.is_some_and(BalancerFacts::has_balancer_finalizer);
    let is_of_a_class = balancer.is_some_and(|it| it.class.is_some());
    match (is_acted_on, is_of_a_class) {
        (true, _) => (BalancerState::Ensuring, age),
        (false, true) => (BalancerState::Foreign, age),
        (false, false) => (BalancerState::Requested, age),
    }
}
