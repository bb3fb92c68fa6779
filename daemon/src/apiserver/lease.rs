//! The endpoint table as it is shared, and the count of connections to each endpoint.
//!
//! Invariant: a connection is counted from its handshake to its drop. Deliberately absent: waiting while the table is locked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::endpoints::{EndpointId, Endpoints};
use super::trouble::Trouble;

/// The table, for everybody who dials.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Endpoints>>);

impl Shared {
    pub(super) fn new(endpoints: Endpoints) -> Self {
        Self(Arc::new(Mutex::new(endpoints)))
    }

    /// The table. Whoever panicked with it held no half-made change: every change is one assignment after another.
    pub(super) fn lock(&self) -> MutexGuard<'_, Endpoints> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An endpoint to dial, if it is still there.
    pub(super) fn place(&self, id: EndpointId) -> Option<Place> {
        let table = self.lock();
        let row = table.get(id)?;
        Some(Place { shared: self.clone(), id, address: row.address, name: Arc::clone(&row.name) })
    }
}

/// One endpoint, as somebody dials it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    shared: Shared,
    pub(super) id: EndpointId,
    pub(super) address: SocketAddr,
    pub(super) name: Arc<str>,
}

impl Place {
    pub(super) fn served(&self) {
        self.shared.lock().served(self.id, Instant::now());
    }

    pub(super) fn dial_failed(&self, trouble: Trouble) {
        self.shared.lock().dial_failed(self.id, trouble, Instant::now());
    }

    pub(super) fn noted(&self, trouble: Trouble) {
        self.shared.lock().noted(self.id, trouble, Instant::now());
    }

    /// Counts a connection until the lease is dropped.
    pub(super) fn lease(self) -> Lease {
        self.shared.lock().connected(self.id);
        Lease(self)
    }
}

/// The count of one connection.
#[derive(Debug)]
pub(super) struct Lease(Place);

impl Lease {
    pub(super) const fn place(&self) -> &Place {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.shared.lock().disconnected(self.0.id);
    }
}
