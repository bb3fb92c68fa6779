//! Bounds the memory that all items of a queue take together.
//!
//! Invariant: dropping a [`Reservation`] returns its bytes, and reservations never exceed the bound.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes that are free to reserve.
#[derive(Clone, Debug)]
pub struct Headroom(Arc<Semaphore>);

/// Bytes that stay reserved until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    _bytes: OwnedSemaphorePermit,
}

impl Headroom {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Reserves bytes; `None` if they do not fit now.
    pub fn reserve(&self, bytes: usize) -> Option<Arc<Reservation>> {
        let bytes = u32::try_from(bytes).ok()?;
        let taken = Arc::clone(&self.0).try_acquire_many_owned(bytes).ok()?;
        Some(Arc::new(Reservation { _bytes: taken }))
    }
}
