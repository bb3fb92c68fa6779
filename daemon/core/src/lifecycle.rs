//! Life cycles: how far the load balancer of a Service has come, and what is wrong with its endpoints.
//!
//! **A load balancer** is made by a controller outside the daemon: it reads the Service, asks a cloud or a pool for an
//! address and writes it into the status. What that controller does shows in three places: in the object, in what this
//! node saw the object become ([`Seen`]), and in the Events that the controller wrote. [`load_balancer()`] puts them
//! together; it is given what an Event means ([`Statement`]), never its text.
//!
//! **Endpoints** are written by other controllers; [`endpoints`] finds what contradicts itself in them.
//!
//! | room | owns |
//! |---|---|
//! | `limits` | every time and number that a finding begins at, with its reason |
//! | `statement` | what others say of a load balancer, and whether they were asked at all |
//! | `seen` | what this node saw itself |
//! | `state` | how far a load balancer has come |
//! | `finding` | what is wrong with it |
//! | `endpoints` | what is wrong with the endpoints of a service |
//!
//! Invariant: pure, and nothing here changes what clients meet. Not asked is never no: where Events were not read, only
//! what the object itself says counts, and the finding says so. Times in Events are of others' clocks: one that lies
//! ahead is now, one before 1970 is unknown; what this node saw itself is counted on the clock that never steps.

pub mod endpoints;
mod finding;
pub mod limits;
mod seen;
mod state;
mod statement;

pub use finding::{Confidence, Finding, FindingId, Severity};
pub use seen::{Phase, Seen};
pub use state::State;
pub use statement::{Controller, Heard, Meaning, Statement};

use alloc::vec::Vec;

use crate::facts::{ServiceFacts, Timestamp};
use crate::time::Now;

/// All that is known of one load balancer.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The Service; `None`: it is gone.
    pub facts: Option<&'a ServiceFacts>,
    /// What this node saw of it; `None`: it has not looked, so the object's own times count.
    pub seen: Option<&'a Seen>,
    /// What Events say.
    pub heard: Heard<'a>,
    /// Whether the controller of load balancers is alive.
    pub controller: Controller,
    pub now: Now,
}

/// How far a load balancer has come, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    pub state: State,
    /// Since when, by the wall clock as it stands; `None`: not known.
    pub since: Option<Timestamp>,
    /// The most specific one first.
    pub findings: Vec<Finding>,
}

/// How far the load balancer of a Service has come. What was not asked is left open.
pub fn load_balancer(case: &Case<'_>) -> Balancer {
    let known = statement::Known::of(case.heard, case.now.wall);
    let (state, age) = state::state(case, &known);
    let since = age.map(|age| Timestamp(case.now.wall.0.saturating_sub(age)));
    Balancer { state, since, findings: finding::findings(case, &known, state, age) }
}

/// The same without Events: what every node knows at any time.
pub fn without_events(facts: &ServiceFacts, seen: Option<&Seen>, now: Now) -> Balancer {
    let heard = Heard::NotAsked;
    let controller = Controller::Unknown;
    load_balancer(&Case { facts: Some(facts), seen, heard, controller, now })
}

#[cfg(test)]
mod tests;
