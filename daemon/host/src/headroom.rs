//! A bound on the memory that everything in a queue may take together.
//!
//! Invariant: memory that was taken is given back when its [`Reservation`] is dropped, and never more is taken than there is.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes that may be taken.
#[derive(Clone, Debug)]
pub struct Headroom(Arc<Semaphore>);

/// Bytes that stay taken until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    _bytes: OwnedSemaphorePermit,
}

impl Headroom {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Takes so many bytes; `None`: there is no room for them now.
    pub fn reserve(&self, bytes: usize) -> Option<Arc<Reservation>> {
        let bytes = u32::try_from(bytes).ok()?;
        let taken = Arc::clone(&self.0).try_acquire_many_owned(bytes).ok()?;
        Some(Arc::new(Reservation { _bytes: taken }))
    }
}
