//! Life cycles: the progress of a Service's load balancer, and faults of its endpoints.
//!
//! **A load balancer** is made by a controller outside the daemon. The controller reads the Service, asks a cloud or a
//! pool for an address and writes the address into the status. Its work shows in three places: the object, the changes
//! of the object that this node saw ([`BalancerHistory`]), and the Events that the controller wrote.
//! [`assess_balancer()`] combines them; it gets the meaning of an Event ([`BalancerEvent`]), never its text.
//!
//! **Endpoints** are written by other controllers; [`endpoints`] finds contradictions in them.
//!
//! | module | owns |
//! |---|---|
//! | `limits` | every threshold of a finding, with its reason |
//! | `events` | the Events of a load balancer, and whether they were read at all |
//! | `history` | what this node saw itself |
//! | `state` | the progress of a load balancer |
//! | `finding` | the faults of a load balancer |
//! | `endpoints` | the faults of a service's endpoints |
//!
//! Invariant: pure, and nothing here changes anything for clients. Unread Events never count as absent ones: without
//! Events only the object counts, and the finding says so. Times in Events come from other hosts' clocks: a future time
//! counts as now, a time before 1970 as unknown. This node times what it saw itself by the clock that never steps.

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

/// The inputs about one load balancer.
#[derive(Clone, Copy, Debug)]
pub struct BalancerInput<'a> {
    /// The Service; `None`: it was deleted.
    pub facts: Option<&'a ServiceFacts>,
    /// The node's history of the Service; `None`: it has none, so the object's own times count.
    pub history: Option<&'a BalancerHistory>,
    pub events: EventReading<'a>,
    /// Whether the controller of load balancers is alive.
    pub controller: ControllerLiveness,
    pub now: ClockReading,
}

/// The progress of a load balancer, and its faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerStatus {
    pub state: BalancerState,
    /// When the state began, by the current wall clock; `None`: unknown.
    pub since: Option<Timestamp>,
    /// The most specific finding first.
    pub findings: Vec<Finding>,
}

/// Assesses the load balancer of a Service. What was not read stays unknown.
pub fn assess_balancer(case: &BalancerInput<'_>) -> BalancerStatus {
    let known = events::EventLog::new(case.events, case.now.wall);
    let (state, age) = state::determine_state(case, &known);
    let since = age.map(|age| Timestamp(case.now.wall.0.saturating_sub(age)));
    BalancerStatus { state, since, findings: finding::find_all(case, &known, state, age) }
}

/// Like [`assess_balancer()`], but without Events: every node can do this at any time.
pub fn assess_without_events(
    facts: &ServiceFacts,
    seen: Option<&BalancerHistory>,
    now: ClockReading,
) -> BalancerStatus {
    let events = EventReading::NotRead;
    let controller = ControllerLiveness::Unknown;
    assess_balancer(&BalancerInput { facts: Some(facts), history: seen, events, controller, now })
}

#[cfg(test)]
mod tests;
