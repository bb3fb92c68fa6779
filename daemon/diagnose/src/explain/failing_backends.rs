//! Backends that fail clients, as the datapath has seen it, until a client has shown that they work.
//!
//! Invariant: a backend is named while the service whose frontend these clients reached sends it more. Any host may
//! forge a refusal in a backend's name, so this is a reason to look.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{FrontendKey, ServiceKey, Transport};
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};
use holdfast_status::datapath::{BackendFailure, BackendRefusal};
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::refusals::{Owners, programmed_key, takes_clients};

use super::query_match::{ExplainQuery, QueryMatch, Subject};
use super::{ExplainEvidence, ResolvedQuery};

/// The most backends of one service that are named.
const BACKENDS_MAX: usize = 16;

/// A backend that failed clients of a service.
#[derive(Clone, Debug)]
pub struct FailingBackend {
    service: ServiceKey,
    /// The frontend in the maps that these clients reached.
    frontend: FrontendKey,
    pub(crate) backend: SocketAddr,
    how: BackendFailure,
    /// What happened, without a full stop.
    pub(crate) sentence: String,
}

/// All backends of this node's services that failed clients, the newest failure first: it is what the client of the
/// question met.
pub fn find_failing_backends(snapshot: &Snapshot, datapath: &DatapathView) -> Vec<FailingBackend> {
    let Some(status) = datapath.status() else { return Vec::new() };
    let dialled = |it: &BackendRefusal| FrontendKey::from_socket(it.frontend, it.transport);
    let mut failures: Vec<_> = status.backend_failures().collect();
    failures.sort_by_key(|(.., seen)| Reverse(*seen));
    let owners = Owners::from_snapshot(snapshot, failures.iter().filter_map(|(it, ..)| dialled(it)));
    let one = |(it, how, seen): (BackendRefusal, BackendFailure, u32)| {
        let (view, frontend) = owners.find_failing_owner(&dialled(&it)?, it.backend)?;
        // The programs' clock has no fractions.
        let at = Rfc3339(status.time_at(seen).seconds());
        let BackendRefusal { backend, frontend: address, transport, .. } = it;
        let what = how.describe_backend(backend);
        Some(FailingBackend {
            service: view.key.clone(),
            frontend: programmed_key(frontend)?,
            backend,
            how,
            sentence: format!("{what} of {address}/{transport}, the last one at {at}"),
        })
    };
    failures.into_iter().filter_map(one).collect()
}

/// The backends of a service that failed clients, the newest first.
pub(crate) fn list_failing(
    snapshot: &Snapshot,
    view: &ServiceView,
    datapath: &DatapathView,
) -> Vec<FailingBackend> {
    let mut all = find_failing_backends(snapshot, datapath);
    all.retain(|it| it.service == view.key);
    all
}

impl FailingBackend {
    /// Whether clients of one of these frontends get it. One that refuses clients of one address refuses those of all
    /// that lead to it.
    fn is_behind(&self, subject: &Subject) -> bool {
        let of_transport = |it: &&FrontendView| it.protocol.transport() == Some(self.frontend.transport);
        let mut frontends = subject.frontends().filter(of_transport);
        self.service == subject.view.key && frontends.any(|it| takes_clients(&subject.view, it, self.backend))
    }
}

impl ExplainEvidence {
    /// The UDP backends behind these frontends that reported their port closed.
    pub(super) fn list_refusing_udp(&self, subject: &Subject) -> Vec<String> {
        let is_refused = |it: &&FailingBackend| {
            it.how == BackendFailure::Refused
                && it.frontend.transport == Transport::Udp
                && it.is_behind(subject)
        };
        let backends: BTreeSet<_> = self.failing.iter().filter(is_refused).map(|it| it.backend).collect();
        backends.into_iter().take(BACKENDS_MAX).map(|it| it.to_string()).collect()
    }
}

impl ResolvedQuery {
    /// The backends of the query that failed clients of these frontends, each with one sentence for each way, and how
    /// many more backends did.
    pub(super) fn failing_backends(
        &self,
        given: &ExplainEvidence,
        subject: &Subject,
    ) -> (Vec<String>, usize) {
        let (mut backends, mut told, mut sentences) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for it in self.list_failing(given, subject) {
            let is_known = backends.len() < BACKENDS_MAX || backends.contains(&it.backend);
            backends.insert(it.backend);
            if is_known && told.insert((it.backend, it.how)) {
                sentences.push(it.sentence.clone());
            }
        }
        (sentences, backends.len().saturating_sub(BACKENDS_MAX))
    }

    /// A sentence about backends of the answer that fail clients.
    pub(super) fn describe_failures(&self, given: &ExplainEvidence) -> String {
        let failing: Vec<&FailingBackend> =
            self.subjects.iter().flat_map(|it| self.list_failing(given, it)).collect();
        let Some(first) = failing.first().map(|it| &it.sentence) else { return String::new() };
        match failing.iter().map(|it| it.backend).collect::<BTreeSet<_>>().len() {
            0 | 1 => format!(" But {first}."),
            2 => format!(" But {first}, and another backend fails clients too."),
            count => format!(" But {first}, and {} other backends fail clients too.", count - 1),
        }
    }

    fn list_failing<'a>(
        &self,
        given: &'a ExplainEvidence,
        subject: &Subject,
    ) -> impl Iterator<Item = &'a FailingBackend> {
        let asked = self.asked_backend();
        given
            .failing
            .iter()
            .filter(move |it| asked.is_none_or(|asked| asked == it.backend) && it.is_behind(subject))
    }

    /// The backend that the query names.
    fn asked_backend(&self) -> Option<SocketAddr> {
        match &self.query {
            ExplainQuery::Address(dialled) if self.found == QueryMatch::Backend => Some(dialled.address),
            _ => None,
        }
    }
}

/// The frontend of a service that clients dialled last among those whose backends failed them.
pub(super) fn failing_frontend<'a>(
    given: &ExplainEvidence,
    view: &'a ServiceView,
) -> Option<&'a FrontendView> {
    let newest = given.failing.iter().find(|it| it.service == view.key)?;
    view.frontends.iter().find(|it| programmed_key(it) == Some(newest.frontend))
}
