//! The shared endpoint table, and the count of connections to each endpoint.
//!
//! Invariant: a connection is counted from its handshake to its drop.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use holdfast_status::views::apiserver::{ApiserverState, Tier};
use tokio::sync::Notify;

use super::endpoint_error::EndpointError;
use super::endpoints::{Endpoint, EndpointId, Endpoints};
use holdfast_host::logging::messages::{self, NOTICE, say};

/// The table of endpoints, shared by everything that dials.
#[derive(Clone, Debug)]
pub(super) struct SharedEndpoints {
    table: Arc<Mutex<Endpoints>>,
    /// Notified when readers have news.
    changes: Arc<Notify>,
}

impl SharedEndpoints {
    pub(super) fn new(endpoints: Endpoints) -> Self {
        Self { table: Arc::new(Mutex::new(endpoints)), changes: Arc::default() }
    }

    /// Locks the table. It is usable even after a panic: every change is a series of single assignments.
    pub(super) fn lock(&self) -> MutexGuard<'_, Endpoints> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an endpoint changes its state, opens its first connection or closes its last one.
    pub(super) async fn wait_for_change(&self) {
        self.changes.notified().await;
    }

    /// Changes an endpoint's count of connections.
    fn update_connections(&self, id: EndpointId, change: impl FnOnce(&mut Endpoints)) {
        let mut table = self.lock();
        let is_active = |table: &Endpoints| table.get(id).is_some_and(|row| row.connections > 0);
        let was_active = is_active(&table);
        change(&mut table);
        if is_active(&table) != was_active {
            self.changes.notify_one();
        }
    }

    /// An endpoint to dial, if the table still has it.
    pub(super) fn target(&self, id: EndpointId) -> Option<Target> {
        let table = self.lock();
        let row = table.get(id)?;
        let tier = row.tier;
        let address = row.address;
        let name = Arc::clone(&row.name);
        Some(Target { shared: self.clone(), id, tier, address, name })
    }
}

/// An endpoint to dial.
#[derive(Clone, Debug)]
pub(super) struct Target {
    shared: SharedEndpoints,
    pub(super) id: EndpointId,
    pub(super) tier: Tier,
    pub(super) address: SocketAddr,
    pub(super) name: Arc<str>,
}

impl Target {
    pub(super) fn record_success(&self) {
        self.update_row(|table, now| table.record_success(self.id, now));
    }

    pub(super) fn record_dial_failure(&self, trouble: EndpointError) {
        self.update_row(|table, now| match trouble {
            EndpointError::Throttled { wait, .. } => table.record_throttle(self.id, trouble, wait, now),
            trouble => table.record_dial_failure(self.id, trouble, now),
        });
    }

    pub(super) fn record_check_failure(&self, trouble: EndpointError) {
        self.update_row(|table, now| match trouble {
            EndpointError::Throttled { wait, .. } => table.record_throttle(self.id, trouble, wait, now),
            trouble => table.record_check_failure(self.id, trouble, now),
        });
    }

    pub(super) fn record_error(&self, trouble: EndpointError) {
        self.update_row(|table, now| table.record_error(self.id, trouble, now));
    }

    /// Changes the row, and logs a change of state or error.
    fn update_row(&self, change: impl FnOnce(&mut Endpoints, Instant)) {
        let (before, after) = {
            let mut table = self.shared.lock();
            let before = table.get(self.id).cloned();
            change(&mut table, Instant::now());
            (before, table.get(self.id).cloned())
        };
        if let (Some(before), Some(after)) = (before, after) {
            log_change(&before, &after);
            if before.state != after.state {
                self.shared.changes.notify_one();
            }
        }
    }

    /// Counts a connection until the lease is dropped.
    pub(super) fn lease(self) -> Lease {
        self.shared.update_connections(self.id, |table| table.add_connection(self.id));
        Lease(self)
    }
}

fn log_change(before: &Endpoint, after: &Endpoint) {
    let endpoint = &*after.name;
    let state = after.state.as_str();
    let trouble = |row: &Endpoint| row.last_error.as_ref().map(|(trouble, _)| trouble.clone());
    let old = trouble(before);
    let new = trouble(after);
    let is_throttled =
        |trouble: &Option<EndpointError>| matches!(trouble, Some(EndpointError::Throttled { .. }));
    // The requested wait may differ each time and is not logged.
    let is_same = old == new || (is_throttled(&old) && is_throttled(&new));
    let has_failed = before.state != ApiserverState::Failed && after.state == ApiserverState::Failed;
    match new {
        Some(error) if !is_same || has_failed => {
            // A lost connection does not judge the endpoint; the next try does.
            let state = if after.state == ApiserverState::Failed { state } else { "tried again" };
            say!(warn, messages::APISERVER_TROUBLE, endpoint, state, %error);
        }
        _ if before.state == ApiserverState::Failed && after.state != ApiserverState::Failed => {
            tracing::info!(target: NOTICE, endpoint, state, "an apiserver answers again");
        }
        _ if before.state != after.state => tracing::info!(endpoint, state, "apiserver changed its state"),
        _ => {}
    }
}

/// Counts a connection at its endpoint until dropped.
#[derive(Debug)]
pub(super) struct Lease(Target);

impl Lease {
    pub(super) const fn target(&self) -> &Target {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.shared.update_connections(self.0.id, |table| table.remove_connection(self.0.id));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use holdfast_fixtures::clock;

    use super::*;

    /// A view that waited for the next tick would show for a second that no apiserver is in use.
    #[tokio::test]
    async fn the_first_connection_and_each_state_wake_readers_at_once() {
        let mut table = Endpoints::new(1);
        table.set_tier(Tier::Configured, &["192.0.2.1:6443".parse().unwrap()], clock::now());
        let id = table.rows()[0].id;
        let shared = SharedEndpoints::new(table);
        let target = shared.target(id).unwrap();
        let is_news = || shared.wait_for_change().now_or_never().is_some();
        assert!(!is_news());
        let first = target.clone().lease();
        assert!(is_news(), "the first connection");
        let second = target.clone().lease();
        drop(second);
        assert!(!is_news(), "further ones change no view");
        target.record_success();
        assert!(is_news(), "it is healthy");
        target.record_success();
        assert!(!is_news());
        drop(first);
        assert!(is_news(), "the last connection");
        target.record_dial_failure(EndpointError::Refused);
        assert!(is_news(), "it has failed");
    }
}
