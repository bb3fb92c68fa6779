//! Backends that fail clients, as the datapath has seen it, until a client has shown that they work.
//!
//! Invariant: a backend is named while its service sends it clients. Any host may forge a refusal in a backend's name,
//! so this is a reason to look.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};
use holdfast_status::datapath::{BackendRefusal, Status};
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::refusals::{Owners, takes_clients};

use super::query_match::{ExplainQuery, QueryMatch, Subject};
use super::{ExplainEvidence, ResolvedQuery};

/// The most backends of one service that are named.
const BACKENDS_MAX: usize = 16;

/// Whether any backend of this node has failed clients lately, and its service sends it more.
pub(super) fn has_failing(snapshot: &Snapshot, datapath: &DatapathView) -> bool {
    let Some(status) = datapath.status() else { return false };
    let failures: Vec<BackendRefusal> = status.backend_failures().map(|(it, ..)| it).collect();
    let owners = Owners::from_snapshot(snapshot, failures.iter().filter_map(dialled_key));
    failures
        .iter()
        .any(|it| dialled_key(it).is_some_and(|key| owners.find_failing_owner(&key, it.backend).is_some()))
}

fn dialled_key(failure: &BackendRefusal) -> Option<FrontendKey> {
    FrontendKey::from_socket(failure.frontend, failure.transport)
}

impl ResolvedQuery {
    /// The backends of the query that failed clients, each in a sentence.
    pub(super) fn failing_backends(&self, given: &ExplainEvidence, subject: &Subject) -> Vec<String> {
        describe_failing(
            &given.datapath,
            &subject.view,
            &subject.frontends().collect::<Vec<_>>(),
            self.asked_backend(),
        )
        .into_iter()
        .map(|(_, sentence)| sentence)
        .collect()
    }

    /// A sentence about backends of the answer that fail clients.
    pub(super) fn describe_failures(&self, given: &ExplainEvidence) -> String {
        let failing: Vec<String> =
            self.subjects.iter().flat_map(|it| self.failing_backends(given, it)).collect();
        let Some(first) = failing.first() else { return String::new() };
        // One backend has a line for each frontend.
        let backends: BTreeSet<_> = failing.iter().filter_map(|line| line.split(' ').next()).collect();
        match backends.len() {
            0 | 1 => format!(" But {first}."),
            2 => format!(" But {first}, and another backend fails clients too."),
            count => format!(" But {first}, and {} other backends fail clients too.", count - 1),
        }
    }

    /// The backend that the query names.
    fn asked_backend(&self) -> Option<SocketAddr> {
        match &self.query {
            ExplainQuery::Address(dialled) if self.found == QueryMatch::Backend => Some(dialled.address),
            _ => None,
        }
    }
}

/// The backends of a service that failed clients, each with a sentence without its full stop, the newest first.
pub(crate) fn list_failing(view: &ServiceView, datapath: &DatapathView) -> Vec<(SocketAddr, String)> {
    describe_failing(datapath, view, &view.frontends.iter().collect::<Vec<_>>(), None)
}

/// The backends behind these frontends of a service that failed clients, each with a sentence; of a query for one
/// backend, that one.
fn describe_failing(
    datapath: &DatapathView,
    view: &ServiceView,
    frontends: &[&FrontendView],
    only: Option<SocketAddr>,
) -> Vec<(SocketAddr, String)> {
    let Some(status) = datapath.status() else { return Vec::new() };
    let failing = find_failures(status, view, frontends, only).into_iter().take(BACKENDS_MAX);
    let describe = |(it, what, seen): (BackendRefusal, &str, u32)| {
        // The programs' clock has no fractions.
        let at = Rfc3339(status.time_at(seen).seconds());
        let sentence =
            format!("{} {what} of {}/{}, the last one at {at}", it.backend, it.frontend, it.transport);
        (it.backend, sentence)
    };
    failing.map(describe).collect()
}

/// The frontend of a service that clients dialled last among those whose backends failed them.
pub(super) fn failing_frontend<'a>(
    datapath: &DatapathView,
    view: &'a ServiceView,
) -> Option<&'a FrontendView> {
    let frontends: Vec<_> = view.frontends.iter().collect();
    let (newest, ..) = find_failures(datapath.status()?, view, &frontends, None).into_iter().next()?;
    frontends.into_iter().find(|it| is_dialled(it, &newest))
}

/// The failures of backends behind these frontends, the newest first: it is what the client of the question met.
fn find_failures(
    status: &Status,
    view: &ServiceView,
    frontends: &[&FrontendView],
    only: Option<SocketAddr>,
) -> Vec<(BackendRefusal, &'static str, u32)> {
    let is_its = |it: &BackendRefusal| {
        // One that refuses clients of one address refuses those of all that lead to it.
        let of_transport = |frontend: &&&FrontendView| frontend.protocol.transport() == Some(it.transport);
        only.is_none_or(|only| only == it.backend)
            && view.frontends.iter().any(|frontend| is_dialled(frontend, it))
            && frontends.iter().filter(of_transport).any(|frontend| takes_clients(view, frontend, it.backend))
    };
    let mut failing: Vec<_> = status.backend_failures().filter(|(it, ..)| is_its(it)).collect();
    failing.sort_by_key(|(_, _, seen)| Reverse(*seen));
    failing
}

/// Whether clients dialled this frontend: its address, or an address of the node at its node port.
fn is_dialled(frontend: &FrontendView, failure: &BackendRefusal) -> bool {
    let dialled = failure.frontend.ip();
    let is_node_port = frontend.address.is_unspecified()
        && Family::from_address(frontend.address) == Family::from_address(dialled);
    frontend.port.get() == failure.frontend.port()
        && frontend.protocol.transport() == Some(failure.transport)
        && (frontend.address == dialled || is_node_port)
}
