//! Lists what is wrong with single services now, for alerts that wake an operator.
//!
//! Invariant: a condition exists only while something is wrong. A service has at most one of each kind, and there are
//! at most [`CONDITIONS_MAX`] in all. Namespaces take turns for these, so that no tenant's broken services hide
//! another's; services that are empty on purpose come last.

use std::collections::BTreeMap;

use holdfast_core::facts::{Timestamp, TrafficPolicy};
use holdfast_core::health::Health;
use holdfast_core::keys::ObjectName;
use holdfast_core::lifecycle::{self, BalancerPhase};
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Snapshot, Status, Verdict};
use holdfast_core::time::ClockReading;
use holdfast_core::words;

use super::closed_ports::ClosedServicePort;

/// The most conditions of a node. Every node of a cluster exports its own, and one Prometheus can handle a thousand
/// nodes with this many each.
pub(crate) const CONDITIONS_MAX: usize = 200;

words! {
    /// What can be wrong with a service.
    #[derive(PartialOrd, Ord)]
    pub enum ConditionKind {
        /// A client is refused, or left to the real balancer, because there is no backend.
        NoBackends = "no_backends",
        /// A client is dropped: the policy is Local, and no backend is on this node.
        NoLocalBackend = "no_local_backend",
        /// The service's last backends are held, and serve it.
        Held = "held",
        /// The service's load balancer has no address.
        LbPending = "lb_pending",
        /// The service's health check port is not served here.
        HealthPortFailed = "health_port_failed",
        /// Another service has a frontend that this one wants.
        FrontendConflict = "frontend_conflict",
        /// The maps refused a frontend, or it cannot be translated.
        NotProgrammed = "not_programmed",
    }
}

words! {
    /// Why a service has a condition, as metrics label it.
    pub enum ConditionCause {
        NeverHadAny = "never_had_any",
        /// The manifests have no slice of it, and no controller writes one there.
        NoSlices = "no_slices",
        AllUnready = "all_unready",
        ScaledToZero = "scaled_to_zero",
        /// A label keeps proxies away from all that is listed.
        Hidden = "hidden",
        Vanished = "vanished",
        Resync = "resync",
        MassLoss = "mass_loss",
        HoldExpired = "hold_expired",
        ProbesFailed = "probes_failed",
        AddressReused = "address_reused",
        /// The policy for clients of the node.
        Internal = "internal",
        /// The policy for clients from outside.
        External = "external",
        /// Another service has the frontend.
        Claimed = "claimed",
        /// A process of the node listens there.
        Listener = "listener",
        /// No object may have such an address.
        Address = "address",
        /// The protocol cannot be translated.
        Protocol = "protocol",
        /// The frontend is the node's own way to the apiserver.
        Control = "control",
        /// The maps refused a write.
        Maps = "maps",
        /// Another process has the port.
        AddrInUse = "addr_in_use",
        /// The reason is not known.
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub service: ObjectName,
    pub kind: ConditionKind,
    pub cause: ConditionCause,
    pub since: Timestamp,
}

impl Condition {
    /// Whether the service seems to have no backends on purpose.
    fn is_on_purpose(&self) -> bool {
        matches!(self.cause, ConditionCause::ScaledToZero | ConditionCause::NeverHadAny)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// In the order of the services' names.
    pub named: Vec<Condition>,
    /// How many more conditions there are of each of [`ConditionKind::ALL`].
    pub truncated: [u64; ConditionKind::ALL.len()],
}

impl Conditions {
    /// The conditions in a snapshot, and those of closed health check ports.
    pub fn from_snapshot(snapshot: &Snapshot, closed: &[ClosedServicePort]) -> Self {
        let mut known = OldestConditions::default();
        let now = snapshot.clock();
        snapshot.services.with_problems().for_each(|view| known.add_frontends(view));
        snapshot.services.with_balancer().for_each(|view| known.add_balancer(view, now));
        for port in closed {
            let cause = if port.is_in_use { ConditionCause::AddrInUse } else { ConditionCause::Unknown };
            known.add(&port.service, ConditionKind::HealthPortFailed, cause, port.since);
        }
        Self::truncate(known.0.into_values().collect())
    }

    /// Keeps [`CONDITIONS_MAX`] of all conditions: in each namespace the oldest first, and one of each namespace
    /// before a second one of any.
    fn truncate(mut all: Vec<Condition>) -> Self {
        all.sort_by_key(|it| (it.is_on_purpose(), it.since));
        let mut turns = BTreeMap::<String, usize>::new();
        let mut placed: Vec<_> = all
            .into_iter()
            .map(|it| {
                let turn = turns.entry(it.service.namespace().to_owned()).or_default();
                *turn += 1;
                (it.is_on_purpose(), *turn, it)
            })
            .collect();
        placed.sort_by_key(|(on_purpose, turn, _)| (*on_purpose, *turn));
        let mut named: Vec<_> = placed.into_iter().map(|(.., it)| it).collect();
        let mut truncated = [0; ConditionKind::ALL.len()];
        for left_out in named.drain(CONDITIONS_MAX.min(named.len())..) {
            let place = ConditionKind::ALL.iter().position(|kind| *kind == left_out.kind);
            if let Some(count) = place.and_then(|place| truncated.get_mut(place)) {
                *count += 1;
            }
        }
        named.sort_by(|a, b| (&a.service, a.kind).cmp(&(&b.service, b.kind)));
        Self { named, truncated }
    }
}

#[derive(Debug, Default)]
struct OldestConditions(BTreeMap<(ObjectName, ConditionKind), Condition>);

impl OldestConditions {
    fn add(&mut self, service: &ObjectName, kind: ConditionKind, cause: ConditionCause, since: Timestamp) {
        let new = Condition { service: service.clone(), kind, cause, since };
        let known = self.0.entry((service.clone(), kind)).or_insert_with(|| new.clone());
        if new.since < known.since {
            *known = new;
        }
    }

    fn add_frontends(&mut self, view: &ServiceView) {
        for it in &view.frontends {
            if let Some((kind, cause)) = verdict_condition(view, it) {
                self.add(&view.key.name, kind, cause, it.since);
            }
            if let Status::Error(_) = it.status {
                self.add(&view.key.name, ConditionKind::NotProgrammed, ConditionCause::Maps, it.since);
            }
        }
    }

    fn add_balancer(&mut self, view: &ServiceView, now: ClockReading) {
        // Facts of an older version lack the balancer, which may have a host name instead of an address.
        let known = view.facts.as_deref().filter(|facts| facts.balancer.is_some());
        let pending = known.filter(|facts| BalancerPhase::from_facts(facts) == BalancerPhase::Pending);
        if let Some(facts) = pending {
            let since = lifecycle::assess_without_events(facts, view.balancer_history.as_deref(), now).since;
            let since = since.unwrap_or(now.wall);
            self.add(&view.key.name, ConditionKind::LbPending, ConditionCause::Unknown, since);
        }
    }
}

/// The condition of a frontend's clients, if any.
fn verdict_condition(view: &ServiceView, it: &FrontendView) -> Option<(ConditionKind, ConditionCause)> {
    let cause = match it.reason {
        _ if view.lacks_manifest_slices(it) => ConditionCause::NoSlices,
        reason => reason.map_or(ConditionCause::Unknown, reason_cause),
    };
    match it.verdict {
        Verdict::Refusing | Verdict::Passing => Some((ConditionKind::NoBackends, cause)),
        Verdict::Dropping => Some((ConditionKind::NoLocalBackend, policy_cause(view, it))),
        Verdict::Held => Some((ConditionKind::Held, cause)),
        Verdict::Conflict if view.frontend_health(it) != Health::Outage => None,
        Verdict::Conflict => Some((ConditionKind::FrontendConflict, cause)),
        // A frontend has no reason before its first write; that is normal.
        Verdict::Unprogrammed => it.reason.is_some().then_some((ConditionKind::NotProgrammed, cause)),
        Verdict::Serving | Verdict::Draining | Verdict::Bypassed => None,
    }
}

/// Which of the two traffic policies leaves this frontend's clients without a backend.
fn policy_cause(view: &ServiceView, it: &FrontendView) -> ConditionCause {
    let is_internal = view.facts.as_ref().is_some_and(|facts| facts.internal_policy == TrafficPolicy::Local);
    match it.kind {
        kind if kind.is_internal() && is_internal => ConditionCause::Internal,
        _ => ConditionCause::External,
    }
}

const fn reason_cause(reason: Reason) -> ConditionCause {
    match reason {
        Reason::NoEndpoints => ConditionCause::NeverHadAny,
        Reason::AllUnready => ConditionCause::AllUnready,
        Reason::ScaledDown => ConditionCause::ScaledToZero,
        Reason::Hidden => ConditionCause::Hidden,
        Reason::Vanished => ConditionCause::Vanished,
        Reason::Resync => ConditionCause::Resync,
        Reason::MassLoss => ConditionCause::MassLoss,
        Reason::HoldExpired => ConditionCause::HoldExpired,
        Reason::ProbesFailed => ConditionCause::ProbesFailed,
        Reason::LocalPolicy => ConditionCause::Internal,
        Reason::Claimed => ConditionCause::Claimed,
        Reason::Listener => ConditionCause::Listener,
        Reason::Address => ConditionCause::Address,
        Reason::Protocol => ConditionCause::Protocol,
        Reason::Control => ConditionCause::Control,
        Reason::AddressReused => ConditionCause::AddressReused,
    }
}

#[cfg(test)]
mod tests;
