//! The memory that all that waits in a queue may take together.
//!
//! Invariant: memory that is taken is given back at the drop, and never more is taken than there is.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many bytes.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

/// Bytes, taken until they are dropped.
#[derive(Debug)]
pub struct Taken {
    _bytes: OwnedSemaphorePermit,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// `None`: there is no room for so many now.
    pub(crate) fn take(&self, bytes: usize) -> Option<Arc<Taken>> {
        let bytes = u32::try_from(bytes).ok()?;
        let taken = Arc::clone(&self.0).try_acquire_many_owned(bytes).ok()?;
        Some(Arc::new(Taken { _bytes: taken }))
    }
}
