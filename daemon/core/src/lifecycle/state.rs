//! How far a load balancer has come.
//!
//! Invariant: the same facts and the same words give the same state, in whatever order they were told. What an Event
//! says never takes back what the object shows: with an address in the status it is ready, whether an Event said so or
//! not.

use super::seen::age_told;
use super::statement::{Aged, Statements};
use super::{Case, Meaning, Phase};
use crate::facts::{BalancerFacts, ServiceFacts};
use crate::words;

words! {
    /// How far a load balancer has come.
    pub enum State {
        /// The Service asks for none.
        None = "none",
        /// It is left to a controller of its own class, which has said nothing.
        Foreign = "foreign",
        /// No controller has acted on it.
        Requested = "requested",
        /// A controller is at work on it.
        Ensuring = "ensuring",
        /// A balancer is being made.
        Creating = "creating",
        /// It could not be made; it is tried again.
        Failing = "failing",
        /// It has an address.
        Ready = "ready",
        /// It has an address, and a change is being written.
        Updating = "updating",
        /// It has an address, and does not follow the Service or the nodes.
        Degraded = "degraded",
        /// It is being removed.
        Deleting = "deleting",
        /// It could not be removed; it is tried again.
        DeleteFailing = "delete-failing",
        /// It is removed, or the Service is.
        Deleted = "deleted",
    }
}

/// The meanings of Events that say that something was done.
const RESULTS: [Meaning; 4] =
    [Meaning::Ensured, Meaning::Updated, Meaning::Created, Meaning::AddressAssigned];

/// A state, and for how many seconds; `None`: not known.
type Aging = (State, Option<i64>);

/// The state of a load balancer.
pub(super) fn state(case: &Case<'_>, known: &Statements<'_>) -> Aging {
    let removed = || known.latest(&[Meaning::Deleted]);
    let Some(facts) = case.facts else { return (State::Deleted, removed().and_then(|it| it.age)) };
    let phase = Phase::of(facts);
    match phase {
        Phase::None => unasked(known),
        Phase::Left => (State::Deleted, age(case, facts)),
        Phase::Leaving => leaving(known, age(case, facts)),
        Phase::Addressed => addressed(facts, known, case, age(case, facts)),
        Phase::Pending => pending(facts, known, age(case, facts)),
    }
}

/// For how many seconds the object shows what it shows.
pub(super) fn age(case: &Case<'_>, facts: &ServiceFacts) -> Option<i64> {
    match case.seen {
        Some(seen) => Some(seen.age(case.now.uptime())),
        None => age_told(Phase::of(facts), facts, case.now.wall),
    }
}

/// A Service that asks for no load balancer may have had one a moment ago.
fn unasked(known: &Statements<'_>) -> Aging {
    let begun = known.latest(&[Meaning::Ensuring, Meaning::Creating]);
    match known.latest(&[Meaning::Deleted]).filter(|it| it.is_not_before(begun.as_ref())) {
        Some(removed) => (State::Deleted, removed.age),
        None => (State::None, None),
    }
}

fn leaving(known: &Statements<'_>, age: Option<i64>) -> Aging {
    match known.open(&[Meaning::DeleteFailed]) {
        Some(failed) => (State::DeleteFailing, failed.oldest),
        None => (State::Deleting, age),
    }
}

/// The meanings of Events by which an address is not what was asked for.
pub(super) const DEGRADING: [Meaning; 3] = [Meaning::UpdateFailed, Meaning::SyncFailed, Meaning::NoNodes];

fn addressed(facts: &ServiceFacts, known: &Statements<'_>, case: &Case<'_>, age: Option<i64>) -> Aging {
    if let Some(failed) = known.open(&DEGRADING) {
        return (State::Degraded, failed.oldest);
    }
    match updating(facts, known, case) {
        Some(begun) => (State::Updating, begun.age),
        None => (State::Ready, age),
    }
}

/// The Event of a change that was begun and that no Event has called done. Where no Event ever calls anything done, as
/// with controllers that leave the balancer to others, none is waited for.
fn updating<'a>(facts: &ServiceFacts, known: &Statements<'a>, case: &Case<'_>) -> Option<Aged<'a>> {
    let begun = known.latest(&[Meaning::Ensuring])?;
    let done = known.latest(&RESULTS)?;
    let written = facts.balancer.as_deref().and_then(|it: &BalancerFacts| it.written);
    let is_written = written.is_some_and(|at| begun.age.is_some_and(|age| at.0 >= case.now.wall.0 - age));
    (begun.is_after(Some(&done)) && !is_written).then_some(begun)
}

fn pending(facts: &ServiceFacts, known: &Statements<'_>, age: Option<i64>) -> Aging {
    let begun = known.latest(&[Meaning::Ensuring, Meaning::Creating]);
    let done = known.latest(&RESULTS);
    let failed = known.open(&[Meaning::SyncFailed]);
    let is_newest = |it: &Aged<'_>| it.is_not_before(begun.as_ref()) && it.is_not_before(done.as_ref());
    if let Some(failed) = failed.filter(is_newest) {
        return (State::Failing, failed.oldest);
    }
    if let Some(begun) = begun.filter(|it| it.is_after(done.as_ref())) {
        let is_made = begun.said.meaning == Meaning::Creating;
        return (if is_made { State::Creating } else { State::Ensuring }, begun.age);
    }
    let balancer = facts.balancer.as_deref();
    let is_acted_on = known.has_any() || balancer.is_some_and(BalancerFacts::has_balancers_finalizer);
    let is_of_a_class = balancer.is_some_and(|it| it.class.is_some());
    match (is_acted_on, is_of_a_class) {
        (true, _) => (State::Ensuring, age),
        (false, true) => (State::Foreign, age),
        (false, false) => (State::Requested, age),
    }
}
