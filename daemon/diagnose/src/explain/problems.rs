//! Whether an explanation reports a problem, for its exit code.
//!
//! Invariant: what `holdfast status` counts as failing at a service is a problem here too.

use holdfast_core::health::Health;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Verdict};

use super::query_match::{ExplainQuery, QueryMatch, Subject};
use super::rivals::has_losers;
use super::{ExplainedService, Explanation, FrontendRow, Outcome, ResolvedQuery};

impl ResolvedQuery {
    /// Whether the answer reports a problem: the client of the query is kept out, clients of what was asked about fail,
    /// or the maps differ from what they should hold. Without a query, only an outage counts, as in `status`.
    pub fn has_problem(&self, answer: &Explanation<'_>) -> bool {
        let do_backends_fail = answer.services.iter().any(|it| !it.failing_backends.is_empty());
        if let Some(packet) = &answer.packet {
            let is_short = answer.services.iter().any(|it| it.shortage.is_some());
            let is_lost = matches!(packet.outcome.0, Outcome::Refused | Outcome::Dropped);
            return do_backends_fail || is_short || is_lost;
        }
        let is_asked = self.query != ExplainQuery::Trouble;
        let fails = |view: &ServiceView, it: &FrontendView| match view.frontend_health(it) {
            Health::Outage => true,
            Health::Intended => is_asked && matches!(it.verdict, Verdict::Refusing | Verdict::Dropping),
            Health::Well | Health::Degraded => false,
        };
        let differs = |it: &FrontendRow<'_>| it.applied.matches == Some(false);
        // Checks belong to the service, and to none of its addresses.
        let is_service = matches!(self.query, ExplainQuery::Service(_) | ExplainQuery::Trouble);
        let is_any_address =
            matches!(&self.query, ExplainQuery::Address(dialled) if dialled.address.ip().is_unspecified());
        let is_bad = |it: &ExplainedService<'_>| {
            let has_balancer = it.frontends.iter().any(|row| row.r#type.0 == FrontendType::LoadBalancer);
            let is_closed = has_balancer && !it.closed_ports.is_empty();
            let is_down = is_service && !it.failing_checks.is_empty();
            let is_short = it.shortage.is_some();
            let is_taken = (is_service || is_any_address) && !it.node_port_listeners.is_empty();
            is_closed || is_down || is_short || is_taken || it.frontends.iter().any(differs)
        };
        let fails =
            |subject: &Subject| subject.frontends().map(|it| fails(&subject.view, it)).collect::<Vec<_>>();
        let failed: Vec<bool> = self.subjects.iter().flat_map(fails).collect();
        match self.found {
            _ if do_backends_fail => true,
            // Whoever asks about a backend asks whether clients get there by any address.
            QueryMatch::Backend => !failed.is_empty() && failed.iter().all(|it| *it),
            QueryMatch::Trouble if answer.has_more_trouble => true,
            QueryMatch::Service if self.subjects.iter().any(|it| has_losers(&self.snapshot, &it.view)) => {
                true
            }
            _ => answer.services.iter().any(is_bad) || failed.contains(&true),
        }
    }
}
