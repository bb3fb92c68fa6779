//! Services whose backends fail clients. This task logs them, and keeps failures until a client has shown that they are
//! over.
//!
//! Invariant: one line per service when its first backend fails a client, and one when none does any more. What happens
//! in between is in `holdfast status`, so no flood of refusals becomes a flood of lines. The journal's own limit shares
//! the lines among namespaces.

mod failure_keeper;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use holdfast_core::keys::{FrontendKey, ServiceKey};
use holdfast_core::snapshot::Snapshot;
use holdfast_host::logging::messages::{self, say};
use holdfast_status::datapath::{BackendFailure, BackendRefusal, KeptFailures, Status};
use holdfast_status::views::refusals::Owners;
use tokio::sync::watch;

use self::failure_keeper::FailureKeeper;
use crate::readings::Readings;

/// What one client met: the backend, what the client dialled, and how it failed.
type Failure = (BackendRefusal, BackendFailure);

/// The services whose backends fail clients, each with its first failure and how many backends fail.
type FailingServices = BTreeMap<ServiceKey, (Failure, usize)>;

/// Runs until the publisher of the datapath's state is gone.
pub async fn run(readings: Readings, kept: watch::Sender<Arc<KeptFailures>>) {
    let (mut log, mut older) = (FailureLog::default(), FailureKeeper::default());
    let mut datapath = readings.datapath.clone();
    while datapath.changed().await.is_ok() {
        let view = Arc::clone(&datapath.borrow_and_update());
        let Some(status) = view.status() else { continue };
        let snapshot = readings.snapshot();
        let (counts, flows) = (readings.port_counts(), readings.flow_table());
        let count = |port| counts.as_ref().map(|counts| counts.read_port(port).connects);
        let watch = |backends| {
            if let Some(flows) = &flows {
                flows.watch_answers(backends);
            }
        };
        let now_kept = older.update(status, &snapshot, count, watch);
        if **kept.borrow() != now_kept {
            kept.send_replace(Arc::new(now_kept));
        }
        let failures = readings.datapath().status().map(list_failures).unwrap_or_default();
        if log.is_news(&snapshot, &failures) {
            log.update(&snapshot, failures);
        }
    }
}

fn list_failures(status: &Status) -> BTreeSet<Failure> {
    status.backend_failures().map(|(it, how, _)| (it, how)).collect()
}

#[derive(Default)]
struct FailureLog {
    snapshot: Weak<Snapshot>,
    failures: BTreeSet<Failure>,
    services: FailingServices,
}

impl FailureLog {
    /// Whether other backends fail than before, or services may have begun or ceased to use them. Only then does the
    /// log look for their services among all.
    fn is_news(&self, snapshot: &Arc<Snapshot>, failures: &BTreeSet<Failure>) -> bool {
        let is_other_table = !failures.is_empty() && !self.snapshot.ptr_eq(&Arc::downgrade(snapshot));
        self.failures != *failures || is_other_table
    }

    fn update(&mut self, snapshot: &Arc<Snapshot>, failures: BTreeSet<Failure>) {
        let now = group_by_service(snapshot, &failures);
        for (service, (failure, backends)) in now.iter().filter(|(it, _)| !self.services.contains_key(*it)) {
            log_begin(service, failure, *backends);
        }
        for service in self.services.keys().filter(|it| !now.contains_key(*it)) {
            say!(notice, messages::FAILURES_ENDED, %service);
        }
        *self = Self { snapshot: Arc::downgrade(snapshot), failures, services: now };
    }
}

fn group_by_service(snapshot: &Snapshot, failures: &BTreeSet<Failure>) -> FailingServices {
    let dialled = |it: &BackendRefusal| FrontendKey::from_socket(it.frontend, it.transport);
    let owners = Owners::from_snapshot(snapshot, failures.iter().filter_map(|(it, _)| dialled(it)));
    let mut all = BTreeMap::<ServiceKey, (Failure, BTreeSet<SocketAddr>)>::new();
    for failure in failures {
        let key = dialled(&failure.0);
        let owner = key.and_then(|key| owners.find_failing_owner(&key, failure.0.backend));
        if let Some((view, _)) = owner {
            let known = all.entry(view.key.clone()).or_insert_with(|| (*failure, BTreeSet::new()));
            known.1.insert(failure.0.backend);
        }
    }
    all.into_iter().map(|(key, (failure, backends))| (key, (failure, backends.len()))).collect()
}

fn log_begin(service: &ServiceKey, (failure, how): &Failure, backends: usize) {
    let BackendRefusal { backend, frontend, transport, .. } = failure;
    let (frontend, how) = (format!("{frontend}/{transport}"), how.describe());
    say!(warn, messages::BACKENDS_FAIL, %service, %backend, how, frontend, backends);
}

#[cfg(test)]
mod tests;
