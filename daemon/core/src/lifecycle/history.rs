//! The load balancer as this node saw it: when its phase began, and when its address last changed.
//!
//! Invariant: only Services with a load balancer have a history. It has a fixed size and uses the clock that never
//! steps. A change that the node did not observe is as old as the object says, by the wall clock of that moment.

use crate::facts::{BalancerFacts, ServiceFacts, ServiceType, Timestamp};
use crate::time::{ClockReading, Uptime};

use super::limits;

/// The phase of a load balancer by the object alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerPhase {
    /// The Service has and requests none.
    None,
    /// The Service requests one and has no address.
    Pending,
    /// It has an address or a host name.
    Addressed,
    /// It is being deleted or is no longer requested, and a finalizer remains.
    Leaving,
    /// It is being deleted, and no finalizer remains.
    Left,
}

impl BalancerPhase {
    pub fn from_facts(facts: &ServiceFacts) -> Self {
        let none = BalancerFacts::default();
        let balancer = facts.balancer.as_deref().unwrap_or(&none);
        let asks = facts.kind == ServiceType::LoadBalancer;
        match (asks, balancer.deleted.is_some()) {
            (true, true) if balancer.finalizers.is_empty() => Self::Left,
            (true, true) => Self::Leaving,
            (false, _) if balancer.has_balancer_finalizer() => Self::Leaving,
            (false, _) => Self::None,
            (true, false) if has_address(facts) => Self::Addressed,
            (true, false) => Self::Pending,
        }
    }
}

fn hostnames(facts: &ServiceFacts) -> &[alloc::sync::Arc<str>] {
    facts.balancer.as_deref().map_or(&[], |balancer| &balancer.hostnames)
}

/// Whether the status has an address or a host name.
fn has_address(facts: &ServiceFacts) -> bool {
    !facts.ingress.is_empty() || !hostnames(facts).is_empty()
}

/// This node's history of one load balancer; stored with the view of its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalancerHistory {
    pub since: Uptime,
    /// The last changes of the address, the latest first.
    changes: [Option<Uptime>; limits::FLAPS_MIN],
}

impl BalancerHistory {
    /// The history after these facts. `before`: the former facts and their history; `is_live`: the source was being
    /// watched, so an object without former facts is new. `None`: the Service has and requests no load balancer.
    pub(crate) fn observe(
        before: Option<(&ServiceFacts, Option<&Self>)>,
        facts: &ServiceFacts,
        is_live: bool,
        now: ClockReading,
    ) -> Option<Self> {
        let phase = BalancerPhase::from_facts(facts);
        if phase == BalancerPhase::None {
            return None;
        }
        let fresh = |since| Self { since, changes: [None; limits::FLAPS_MIN] };
        let (old, seen) = match before {
            Some((old, Some(seen))) => (old, *seen),
            Some((old, None)) if BalancerPhase::from_facts(old) == phase => {
                return Some(fresh(phase_start(phase, facts, now)));
            }
            None if !is_live => return Some(fresh(phase_start(phase, facts, now))),
            Some((_, None)) | None => return Some(fresh(now.uptime())),
        };
        let is_another = old.meta.uid != facts.meta.uid;
        let since =
            if BalancerPhase::from_facts(old) == phase && !is_another { seen.since } else { now.uptime() };
        let changes = if is_another { [None; limits::FLAPS_MIN] } else { seen.changes };
        let has_changed = !is_another && (&old.ingress, hostnames(old)) != (&facts.ingress, hostnames(facts));
        Some(Self { since, changes: if has_changed { push_change(changes, now.uptime()) } else { changes } })
    }

    /// Seconds since the phase began.
    pub(super) const fn age(&self, now: Uptime) -> i64 {
        let age = now.since(self.since);
        if age < 0 { 0 } else { age }
    }

    /// Whether the address changed too often recently.
    pub(super) fn is_flapping(&self, now: Uptime) -> bool {
        let is_late = |at: &Option<Uptime>| at.is_some_and(|at| now.since(at) < limits::FLAPS_WITHIN);
        self.changes.iter().all(is_late)
    }
}

/// Adds this change as the latest, and drops the oldest.
fn push_change(
    mut changes: [Option<Uptime>; limits::FLAPS_MIN],
    at: Uptime,
) -> [Option<Uptime>; limits::FLAPS_MIN] {
    changes.rotate_right(1);
    if let Some(first) = changes.first_mut() {
        *first = Some(at);
    }
    changes
}

/// When the phase began according to the object, or now if the object has no time.
fn phase_start(phase: BalancerPhase, facts: &ServiceFacts, now: ClockReading) -> Uptime {
    phase_age(phase, facts, now.wall).map_or(now.uptime(), |age| now.uptime().plus(age.saturating_neg()))
}

/// Seconds since the phase began according to the object. A future time counts as now.
pub(super) fn phase_age(phase: BalancerPhase, facts: &ServiceFacts, now: Timestamp) -> Option<i64> {
    let balancer = facts.balancer.as_deref();
    let at = match phase {
        BalancerPhase::None => None,
        BalancerPhase::Pending => facts.meta.created,
        BalancerPhase::Addressed => balancer.and_then(|it| it.written).or(facts.meta.created),
        // A changed type has no time of its change.
        BalancerPhase::Leaving | BalancerPhase::Left => balancer.and_then(|it| it.deleted),
    };
    at.filter(|at| at.0 > 0).map(|at| now.0.saturating_sub(at.0).max(0))
}
