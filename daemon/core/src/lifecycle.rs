//! Life cycles: how far the load balancer of a Service has come, and what is wrong with its endpoints.
//!
//! **A load balancer** is made by a controller outside the daemon. The controller reads the Service, asks a cloud or a
//! pool for an address and writes the address into the status. Its work shows in three places: the object, the changes
//! of the object that this node saw ([`BalancerHistory`]), and the Events that the controller wrote. [`assess_balancer()`] puts them
//! together; it gets what an Event means ([`BalancerEvent`]), never its text.
//!
//! **Endpoints** are written by other controllers; [`endpoints`] finds contradictions in them.
//!
//! | room | owns |
//! |---|---|
//! | `limits` | every time and number that a finding begins at, with its reason |
//! | `statement` | what others say of a load balancer, and whether they were asked at all |
//! | `history` | what this node saw itself |
//! | `state` | how far a load balancer has come |
//! | `finding` | what is wrong with it |
//! | `endpoints` | what is wrong with the endpoints of a service |
//!
//! Invariant: everything here is pure, and changes nothing for clients. Unread Events never count as absent ones: if
//! Events were not read, only the object counts, and the finding says so. Times in Events come from other hosts'
//! clocks: a future time counts as now, a time before 1970 as unknown. What this node saw itself is timed by the clock
//! that never steps.

pub mod endpoints;
mod events;
mod finding;
mod history;
pub mod limits;
mod state;

pub use events::{BalancerEvent, ControllerLiveness, EventReading, Meaning};
pub use finding::{Confidence, Finding, FindingId, Severity};
pub use history::{BalancerHistory, BalancerPhase};
pub use state::BalancerState;

use alloc::vec::Vec;

use crate::facts::{ServiceFacts, Timestamp};
use crate::time::ClockReading;

/// All that is known of one load balancer.
#[derive(Clone, Copy, Debug)]
pub struct BalancerInput<'a> {
    /// The Service; `None`: it is gone.
    pub facts: Option<&'a ServiceFacts>,
    /// What this node saw of the Service; `None`: the node has not looked, so the object's own times count.
    pub history: Option<&'a BalancerHistory>,
    /// What Events say.
    pub events: EventReading<'a>,
    /// Whether the controller of load balancers is alive.
    pub controller: ControllerLiveness,
    pub now: ClockReading,
}

/// How far a load balancer has come, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerStatus {
    pub state: BalancerState,
    /// When the state began, by the current wall clock; `None`: unknown.
    pub since: Option<Timestamp>,
    /// The most specific finding first.
    pub findings: Vec<Finding>,
}

/// How far the load balancer of a Service has come, and what is wrong with it. What was not read is left open.
pub fn assess_balancer(case: &BalancerInput<'_>) -> BalancerStatus {
    let known = events::EventLog::new(case.events, case.now.wall);
    let (state, age) = state::determine_state(case, &known);
    let since = age.map(|age| Timestamp(case.now.wall.0.saturating_sub(age)));
    BalancerStatus { state, since, findings: finding::find_all(case, &known, state, age) }
}

/// Like [`assess_balancer()`], but without Events: every node knows this much at any time.
pub fn assess_without_events(
    facts: &ServiceFacts,
    seen: Option<&BalancerHistory>,
    now: ClockReading,
) -> BalancerStatus {
    let heard = EventReading::NotRead;
    let controller = ControllerLiveness::Unknown;
    assess_balancer(&BalancerInput { facts: Some(facts), history: seen, events: heard, controller, now })
}

#[cfg(test)]
mod tests;
