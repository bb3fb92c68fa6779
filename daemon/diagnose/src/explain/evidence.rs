//! What the daemon knows besides tables and maps, for one explanation.
//!
//! Invariant: the caller has gathered all of it. Nothing here reads the maps, a file or the clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::facts::{Listener, Timestamp};
use holdfast_core::keys::{FrontendKey, ObjectName, Source};
use holdfast_core::op::FrontendEntry;
use holdfast_core::snapshot::{FrontendView, ServiceView};
use holdfast_status::record::Record;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::checks::CheckStatuses;
use holdfast_status::views::clients::ClientCounters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::names::NameStatus;
use holdfast_status::views::refusals::DenialAtFrontend;

use super::failing_backends::FailingBackend;
use super::obstacles::NewsObstacles;
use super::query_match::Subject;
use super::unserved;

/// The daemon's state besides tables and maps, taken for one answer.
#[derive(Debug)]
pub struct ExplainEvidence {
    pub datapath: Arc<DatapathView>,
    /// Client counters of the ports behind the frontends that were read back.
    pub counters: ClientCounters,
    /// `None`: no apiserver is used.
    pub apiserver: Option<Arc<ApiserverView>>,
    /// What may keep a service from being known here.
    pub obstacles: NewsObstacles,
    /// Health check ports that are not open, and why.
    pub closed_ports: Vec<ClosedHealthPort>,
    /// Processes of others at node ports.
    pub node_port_listeners: Vec<OtherProcess>,
    /// Whether health checks of any backend fail.
    pub do_checks_fail: bool,
    /// Clients that were recently not served, in the order of their last attempts.
    pub refusals: Vec<DenialAtFrontend>,
    /// Backends of any service that failed clients, the newest failure first.
    pub failing: Vec<FailingBackend>,
    /// When this was gathered.
    pub taken_at: Timestamp,
    /// Health checks of each configured service of [`super::ResolvedQuery::service_names`].
    pub checks: BTreeMap<ObjectName, CheckStatuses>,
    /// DNS state of those services.
    pub names: BTreeMap<ObjectName, NameStatus>,
    /// The addresses that this node should announce.
    pub announced: Vec<AnnouncedAddress>,
    /// The latest records of each of [`super::ResolvedQuery::service_names`], oldest first.
    pub histories: BTreeMap<ObjectName, Vec<Record>>,
    /// The latest records about [`super::ResolvedQuery::unknown_target`], oldest first.
    pub past: Vec<Record>,
}

/// A health check port of a Service that this daemon could not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedHealthPort {
    pub service: ObjectName,
    pub address: SocketAddr,
    pub reason: String,
}

/// A process at a Service's node port that is not this daemon.
#[derive(Clone, Debug)]
pub struct OtherProcess {
    pub service: ObjectName,
    pub listener: Listener,
    /// The process with its id, as far as it is known.
    pub name: String,
    /// Which addresses lead to the process, and which to the Service.
    pub meaning: String,
}

/// What the maps returned for each frontend.
pub type ReadBack = Vec<(FrontendKey, Result<Option<FrontendEntry>, String>)>;

impl ExplainEvidence {
    /// Whether other processes hold ports of any service.
    pub(super) fn are_ports_taken(&self) -> bool {
        !self.node_port_listeners.is_empty() || !self.closed_ports.is_empty()
    }

    /// The service's health checks; `None` if the configuration does not have it.
    pub(super) fn checks(&self, view: &ServiceView) -> Option<&CheckStatuses> {
        self.checks.get(&view.key.name).filter(|_| view.key.source == Source::Config)
    }

    /// The DNS state of the service's backends.
    pub(super) fn resolved_name(&self, view: &ServiceView) -> Option<&NameStatus> {
        self.names.get(&view.key.name).filter(|_| view.key.source == Source::Config)
    }

    /// Whether a frontend's address is announced; `None` if it should not be.
    pub(super) fn announcement(&self, view: &ServiceView, it: &FrontendView) -> Option<AnnouncedAddress> {
        let is_its = |announced: &&AnnouncedAddress| announced.address == it.address;
        self.announced.iter().find(is_its).filter(|_| view.key.source == Source::Config).cloned()
    }

    pub(super) fn closed_health_ports(&self, view: &ServiceView) -> Vec<String> {
        let has_one = view.key.source != Source::Config;
        let own = self.closed_ports.iter().filter(|it| has_one && it.service == view.key.name);
        own.map(|it| format!("{} cannot be opened: {}", it.address, it.reason)).collect()
    }

    /// What other processes at these node ports mean, each in a sentence without its full stop.
    pub(super) fn describe_other_processes(&self, subject: &Subject) -> Vec<String> {
        let is_at = |found: &&OtherProcess| {
            let mut frontends = subject.frontends();
            found.service == subject.view.key.name
                && frontends.any(|it| unserved::is_node_port_of(it, &found.listener))
        };
        self.node_port_listeners.iter().filter(is_at).map(|it| it.meaning.clone()).collect()
    }

    pub(super) fn history(&self, name: &ObjectName) -> Vec<Record> {
        self.histories.get(name).cloned().unwrap_or_default()
    }
}
