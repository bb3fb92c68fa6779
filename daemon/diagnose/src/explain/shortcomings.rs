//! What is not well although each frontend has backends, in a sentence that follows the verdict.
//!
//! Invariant: whatever `holdfast status` counts as failing at a service is in the first lines of its explanation too.

use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView};
use holdfast_status::datapath::Refusal;
use holdfast_status::views::refusals::{DenialAtFrontend, denial_word};

use super::query_match::{ExplainQuery, QueryMatch, Subject};
use super::{ExplainEvidence, ResolvedQuery};

impl ResolvedQuery {
    /// The worst of what is not well with the services of the answer, in a sentence.
    pub(super) fn describe_shortcomings(&self, given: &ExplainEvidence) -> String {
        let failed = self.describe_failed_clients(given);
        if !failed.is_empty() {
            return failed;
        }
        if !matches!(self.found, QueryMatch::Service | QueryMatch::Frontend) {
            return String::new();
        }
        let closed = self.list_closed_ports(given).next();
        // Checks belong to a service, and to none of its addresses.
        if !matches!(self.query, ExplainQuery::Service(_)) {
            return closed.map(|why| describe_closed_port(&why)).unwrap_or_default();
        }
        let views = || self.subjects.iter().map(|subject| &*subject.view);
        let checks: Vec<String> = views().flat_map(|view| list_failing_checks(given, view)).collect();
        let taken = self.subjects.iter().flat_map(|it| given.describe_other_processes(it)).next();
        let closed = closed.map(|why| describe_closed_port(&why));
        let taken = taken.map(|meaning| format!(" But {meaning}."));
        closed.or(taken).unwrap_or_else(|| describe_failing_checks(&checks))
    }

    /// What clients of the answer met: backends that fail them, or no room on this node.
    pub(super) fn describe_failed_clients(&self, given: &ExplainEvidence) -> String {
        let failures = self.describe_failures(given);
        if !failures.is_empty() || self.found == QueryMatch::Backend {
            return failures;
        }
        let shortage = self.subjects.iter().find_map(|it| given.describe_shortage(it));
        shortage.map(|shortage| format!(" But {shortage}.")).unwrap_or_default()
    }

    /// The health check ports that are not open, and why, where the query has an address of a load balancer.
    pub(super) fn list_closed_ports(&self, given: &ExplainEvidence) -> impl Iterator<Item = String> {
        let is_balanced = |it: &FrontendView| it.kind == FrontendType::LoadBalancer;
        let asked = self.subjects.iter().filter(move |it| it.frontends().any(is_balanced));
        asked.flat_map(|subject| given.closed_health_ports(&subject.view))
    }
}

impl ExplainEvidence {
    /// Whether this node lacked room for a client of any service within five minutes.
    pub(super) fn lacks_room(&self) -> bool {
        self.refusals.iter().any(|it| self.is_shortage(it))
    }

    fn is_shortage(&self, denied: &DenialAtFrontend) -> bool {
        denied.client.is_recent(self.taken_at) && denied.client.refusal.cause.is_shortage()
    }

    /// What this node last lacked for clients of these frontends, without a full stop.
    pub(super) fn describe_shortage(&self, subject: &Subject) -> Option<String> {
        let own = |it: &&DenialAtFrontend| self.is_shortage(it) && subject.has_denied(it);
        let Refusal { denial, frontend, cause, .. } = &self.refusals.iter().rev().find(own)?.client.refusal;
        let (denied, why) = (denial_word(*denial), cause.describe());
        Some(format!("clients of {frontend} were {denied} on this node, because {why}"))
    }
}

fn describe_closed_port(why: &str) -> String {
    format!(" But its health check port {why}; load balancers may leave this node out.")
}

fn describe_failing_checks(failing: &[String]) -> String {
    let Some(first) = failing.first() else { return String::new() };
    match failing.len() - 1 {
        0 => format!(" But {first} fails its health checks."),
        more => format!(" But {first} and {more} more fail their health checks."),
    }
}

/// The backends of a `[[service]]` block whose health checks fail. They get no new client, unless the block holds its
/// last list.
pub(super) fn list_failing_checks(given: &ExplainEvidence, view: &ServiceView) -> Vec<String> {
    let checks = given.checks(view).into_iter().flatten();
    let failing = checks.filter(|(_, check)| !check.usable && check.last.is_some());
    failing.map(|(backend, _)| backend.to_string()).collect()
}
