//! What this node saw of a load balancer itself: since when it is as it is, and when its address changed last.
//!
//! Invariant: what was seen is kept only for Services that have a load balancer, has a fixed size, and counts on the
//! clock that never steps. A change that was not seen to happen is as old as the object says, by the wall clock of that
//! moment.

use crate::facts::{BalancerFacts, ServiceFacts, ServiceType, Timestamp};
use crate::time::{ClockReading, Uptime};

use super::limits;

/// What the object alone says of its load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerPhase {
    /// It has none and asks for none.
    None,
    /// It asks for one and has no address.
    Pending,
    /// It has an address, or a name that stands for one.
    Addressed,
    /// It is going, or asks for none any more, and a finalizer is left.
    Leaving,
    /// It is to go, and nothing keeps it.
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

/// Whether the status has an address, or a name that stands for one.
fn has_address(facts: &ServiceFacts) -> bool {
    !facts.ingress.is_empty() || !hostnames(facts).is_empty()
}

/// What this node saw of one load balancer; kept with the view of its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalancerHistory {
    /// Since when the phase is what it is.
    pub since: Uptime,
    /// The last changes of the address, the latest first.
    changes: [Option<Uptime>; limits::FLAPS_MIN],
}

impl BalancerHistory {
    /// What is seen of these facts. `before`: the facts before, and what was seen of them; `is_live`: they were told
    /// while their source was being followed, so that an object without any before is new. Gives `None` where the
    /// Service has no load balancer and asks for none.
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

    /// Seconds since the phase is what it is.
    pub(super) const fn age(&self, now: Uptime) -> i64 {
        let age = now.since(self.since);
        if age < 0 { 0 } else { age }
    }

    /// Whether the address changed too often lately.
    pub(super) fn is_flapping(&self, now: Uptime) -> bool {
        let is_late = |at: &Option<Uptime>| at.is_some_and(|at| now.since(at) < limits::FLAPS_WITHIN);
        self.changes.iter().all(is_late)
    }
}

/// The changes with this one as the latest; the oldest has no room any more.
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

/// Since when the phase is what it is as far as the object says; without a word, since now.
fn phase_start(phase: BalancerPhase, facts: &ServiceFacts, now: ClockReading) -> Uptime {
    phase_age(phase, facts, now.wall).map_or(now.uptime(), |age| now.uptime().plus(age.saturating_neg()))
}

/// For how many seconds the phase is what it is as far as the object says. A time that lies ahead counts as now.
pub(super) fn phase_age(phase: BalancerPhase, facts: &ServiceFacts, now: Timestamp) -> Option<i64> {
    let balancer = facts.balancer.as_deref();
    let at = match phase {
        BalancerPhase::None => None,
        BalancerPhase::Pending => facts.meta.created,
        BalancerPhase::Addressed => balancer.and_then(|it| it.written).or(facts.meta.created),
        // A changed type does not say when it changed.
        BalancerPhase::Leaving | BalancerPhase::Left => balancer.and_then(|it| it.deleted),
    };
    at.filter(|at| at.0 > 0).map(|at| now.0.saturating_sub(at.0).max(0))
}
