//! The one definition of "well": what a verdict means to an operator of the node.
//!
//! Invariant: `holdfast status`, its exit code, the API, the conditions behind alerts and the log judge a frontend by
//! this file. A client that fails because its objects ask for that is no outage of the node, so a tenant who scales a
//! service to zero, or creates it before its pods, wakes nobody.

use crate::keys::{ServiceKey, Source};
use crate::service_view::{FrontendView, Reason, ServiceView, Status, Verdict};
use crate::words;

words! {
    /// The health of a frontend, or of a service, from best to worst.
    #[derive(PartialOrd, Ord)]
    pub enum Health {
        /// Clients get a ready backend, or dial the apiserver itself.
        Well = "well",
        /// Clients are served by backends that leave or were lost, or will be served in a moment.
        Degraded = "degraded",
        /// Clients get no backend yet, or on purpose, by all that the objects say.
        Intended = "intended",
        /// Clients fail, and nobody asked for that.
        Outage = "outage",
    }
}

impl Health {
    /// The health of clients that meet this verdict.
    pub const fn from_verdict(verdict: Verdict, reason: Option<Reason>) -> Self {
        match (verdict, reason) {
            (Verdict::Serving | Verdict::Bypassed, _) => Self::Well,
            // The real balancer answers.
            (Verdict::Passing, _) => Self::Intended,
            (_, Some(Reason::ScaledDown | Reason::NoEndpoints | Reason::LocalPolicy))
                if !verdict.serves_clients() =>
            {
                Self::Intended
            }
            (Verdict::Draining | Verdict::Held, _) => Self::Degraded,
            // It has no reason before its first write.
            (Verdict::Unprogrammed, None) => Self::Degraded,
            (Verdict::Refusing | Verdict::Dropping | Verdict::Conflict | Verdict::Unprogrammed, _) => {
                Self::Outage
            }
        }
    }
}

impl Verdict {
    /// Whether clients get a backend, or dial the apiserver itself.
    pub const fn serves_clients(self) -> bool {
        matches!(self, Self::Serving | Self::Draining | Self::Held | Self::Bypassed)
    }

    /// Whether the maps have the frontend, so that programs decide about its clients.
    pub const fn is_in_maps(self) -> bool {
        match self {
            Self::Serving | Self::Draining | Self::Held | Self::Refusing | Self::Dropping => true,
            Self::Passing | Self::Bypassed | Self::Conflict | Self::Unprogrammed => false,
        }
    }
}

impl ServiceView {
    /// The health of its worst frontend.
    pub fn health(&self) -> Health {
        self.frontends.iter().map(|it| self.frontend_health(it)).max().unwrap_or(Health::Well)
    }

    /// The health of one of its frontends.
    pub fn frontend_health(&self, frontend: &FrontendView) -> Health {
        match frontend.status {
            Status::Error(_) => Health::Outage,
            _ if has_service_counterpart(&self.key, frontend) => Health::Intended,
            _ if self.lacks_manifest_slices(frontend) => Health::Outage,
            Status::Pending | Status::Done => Health::from_verdict(frontend.verdict, frontend.reason),
        }
    }
}

impl ServiceView {
    /// Whether clients get no backend because the manifests have no slice of it. No controller writes one there, so
    /// none will come.
    pub fn lacks_manifest_slices(&self, frontend: &FrontendView) -> bool {
        self.key.source == Source::Manifests
            && self.slices.is_empty()
            && frontend.reason == Some(Reason::NoEndpoints)
            && !frontend.verdict.serves_clients()
    }
}

/// Whether a Service of its own namespace has the address of a ServiceImport. Several controllers derive one from it,
/// so nothing is wrong.
fn has_service_counterpart(key: &ServiceKey, frontend: &FrontendView) -> bool {
    let is_derived = |owner: &ServiceKey| {
        owner.source == Source::Kubernetes && owner.name.namespace() == key.name.namespace()
    };
    key.source == Source::ClusterSet
        && frontend.verdict == Verdict::Conflict
        && frontend.owner.as_ref().is_some_and(is_derived)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The whole definition, as docs/datapath.md has it.
    #[test]
    fn a_verdict_is_an_outage_unless_clients_are_served_or_the_objects_ask_for_it() {
        let intended = [Some(Reason::ScaledDown), Some(Reason::NoEndpoints), Some(Reason::LocalPolicy)];
        let reasons: Vec<_> = Reason::ALL.into_iter().map(Some).chain([None]).collect();
        for reason in reasons {
            let check = |verdict, expected| {
                assert_eq!(Health::from_verdict(verdict, reason), expected, "{verdict} {reason:?}");
            };
            check(Verdict::Serving, Health::Well);
            check(Verdict::Bypassed, Health::Well);
            check(Verdict::Passing, Health::Intended);
            check(Verdict::Draining, Health::Degraded);
            check(Verdict::Held, Health::Degraded);
            let empty = if intended.contains(&reason) { Health::Intended } else { Health::Outage };
            check(Verdict::Refusing, empty);
            check(Verdict::Dropping, empty);
            check(Verdict::Conflict, empty);
        }
        assert_eq!(Health::from_verdict(Verdict::Unprogrammed, None), Health::Degraded);
        assert_eq!(Health::from_verdict(Verdict::Unprogrammed, Some(Reason::Address)), Health::Outage);
    }
}
