//! What is wrong with single services, so that an alert can name them.
//!
//! Invariant: the only series that bear the name of a service; there is none while nothing is wrong, and their number
//! has a bound. What is beyond it is counted.

use holdfast_core::snapshot::Snapshot;

use crate::exposition::Exposition;
use crate::kube_proxy::ClosedPorts;
use crate::readings::{ConditionKind, Conditions};

/// Writes since when which service has what.
pub(super) fn write(out: &mut Exposition, snapshot: &Snapshot, closed: &ClosedPorts) {
    let conditions = Conditions::of(snapshot, &closed.of_services());
    let name = "holdfast_service_condition_start_time_seconds";
    let help = "Since when something is wrong with a service; there is none while nothing is.";
    out.begin(name, "gauge", help);
    for it in &conditions.named {
        let labels = [
            ("namespace", it.service.namespace()),
            ("service", it.service.name()),
            ("condition", it.kind.as_str()),
            ("cause", it.cause.as_str()),
        ];
        out.sample(name, &labels, it.since.0);
    }
    let name = "holdfast_service_conditions_truncated";
    out.begin(name, "gauge", "What is wrong with services beyond those that have a series, by condition.");
    for (kind, count) in ConditionKind::ALL.iter().zip(conditions.truncated) {
        out.sample(name, &[("condition", kind.as_str())], count);
    }
}
