//! Problems of single services, so that an alert can name them.
//!
//! Invariant: these are the only series with the name of a service. A service without a problem has none, and their
//! number has a bound; conditions beyond it are only counted. A cause is a word of ours or of the knowledge, never of
//! an object.

use holdfast_core::snapshot::Snapshot;

use holdfast_agent::exposition::Exposition;
use holdfast_agent::readings::ClosedPorts;
use holdfast_agent::readings::{ConditionKind, Conditions};
use holdfast_evidence::event_watcher::EventCounters;

/// Writes which service has which condition, and since when.
pub(super) fn write(
    out: &mut Exposition,
    snapshot: &Snapshot,
    (closed, overheard): (&ClosedPorts, &EventCounters),
) {
    let conditions = Conditions::from_snapshot(snapshot, &closed.service_ports());
    let name = "holdfast_service_condition_start_time_seconds";
    let help = "Since when a service has a condition; a healthy service has no series.";
    out.begin(name, "gauge", help);
    for it in &conditions.named {
        let is_pending = it.kind == ConditionKind::LbPending;
        let said = is_pending.then(|| overheard.balancer_cause(&it.service)).flatten();
        let labels = [
            ("namespace", it.service.namespace()),
            ("service", it.service.name()),
            ("condition", it.kind.as_str()),
            ("cause", said.as_deref().unwrap_or(it.cause.as_str())),
        ];
        out.sample(name, &labels, it.since.0);
    }
    let help = "Conditions of services beyond those with a series, by condition.";
    let truncated = ConditionKind::ALL.into_iter().zip(conditions.truncated);
    out.labelled_metric("holdfast_service_conditions_truncated", "gauge", help, "condition", truncated);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::facts::ServiceType;
    use holdfast_core::op::ServiceId;
    use holdfast_core::snapshot::ServiceView;
    use holdfast_knowledge::ClusterEvent;
    use serde_json::json;

    use super::*;
    use crate::fixture::many;

    #[test]
    fn a_pending_load_balancer_has_the_cause_from_its_event() {
        let mut snapshot = many(1, 1);
        let mut view = ServiceView::clone(snapshot.services.iter().next().unwrap());
        let facts = Arc::make_mut(view.facts.as_mut().unwrap());
        (facts.kind, facts.balancer) = (ServiceType::LoadBalancer, Some(Box::default()));
        snapshot.services.set(ServiceId(0), Some(Arc::new(view)));
        let overheard = EventCounters::default();
        let shown = || {
            let mut out = Exposition::default();
            write(&mut out, &snapshot, (&ClosedPorts::from_ports(Vec::new()), &overheard));
            out.into_text()
        };
        let series = |cause: &str| format!("condition=\"lb_pending\",cause=\"{cause}\"}}");
        assert!(shown().contains(&series("unknown")), "{}", shown());
        overheard.set_enabled(true);
        overheard.count_event(&ClusterEvent::from_json(&json!({
            "involvedObject": {"kind": "Service", "namespace": "default", "name": "service-00000"},
            "reason": "SyncLoadBalancerFailed", "message": "RequestLimitExceeded", "type": "Warning",
            "source": {"component": "service-controller"},
        })));
        assert!(shown().contains(&series("cloud.rate_limited")), "{}", shown());
        overheard.set_enabled(false);
        assert!(shown().contains(&series("unknown")), "Events are no longer followed");
    }
}
