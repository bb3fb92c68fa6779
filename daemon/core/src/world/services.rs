//! Every service between the rules and the maps, and which of them are dirty.
//!
//! Invariant: a dirty service stands in `dirty` once, with every cause that made it so.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::change::Cause;
use crate::list::Rows;
use crate::op::ServiceId;
use crate::service::{Cursor, Freshness, Phase, Service};

/// All services by their ids.
#[derive(Debug, Default)]
pub(super) struct Services {
    all: Vec<Service>,
    /// The services that became dirty since the last piece was begun.
    pub(super) dirty: Vec<ServiceId>,
    nothing: Arc<Rows>,
}

impl Services {
    /// Rows that are none. All ports without any share these: there are as many ports as a cluster has.
    pub(super) fn nothing(&self) -> Arc<Rows> {
        Arc::clone(&self.nothing)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, id: ServiceId) -> Option<&Service> {
        self.all.get(id.0 as usize)
    }

    pub(super) fn get_mut(&mut self, id: ServiceId) -> Option<&mut Service> {
        self.all.get_mut(id.0 as usize)
    }

    /// Makes a service dirty, once. `stale`: what it wants must be decided again.
    pub(super) fn mark(&mut self, id: ServiceId, cause: Cause, stale: bool) {
        let position = id.0 as usize;
        if self.all.len() <= position {
            self.all.resize_with(position + 1, Service::default);
        }
        let Some(service) = self.all.get_mut(position) else { return };
        service.add_cause(cause);
        if stale && service.freshness == Freshness::Current {
            service.freshness = Freshness::Stale;
        }
        service.cursor = Cursor::default();
        if !service.is_dirty() {
            service.phase = Phase::Dirty;
            self.dirty.push(id);
        }
    }

    /// Has a service planned from its beginning, for something that it left behind. What made a service dirty is the
    /// cause of that too.
    pub(super) fn plan_anew(&mut self, id: ServiceId) {
        match self.get_mut(id) {
            Some(service) if service.is_dirty() => service.cursor = Cursor::default(),
            _ => self.mark(id, Cause::Retry, false),
        }
    }
}
