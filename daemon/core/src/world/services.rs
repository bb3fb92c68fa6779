//! The state of every service, and which ones are dirty.
//!
//! Invariant: a dirty service is in `dirty` once, with every cause that made it dirty.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::space::Indices;
use crate::change::Cause;
use crate::keys::FrontendKey;
use crate::list::Rows;
use crate::op::{PortIndex, ServiceId};
use crate::service::{Cursor, Freshness, Phase, Port, Service};
use crate::tables::Tables;

#[derive(Debug, Default)]
pub(crate) struct Services {
    all: Vec<Service>,
    /// The services that became dirty since the last piece began.
    pub(crate) dirty: Vec<ServiceId>,
    nothing: Arc<Rows>,
    /// Steps that were skipped because their subject was missing.
    pub(crate) impossible: u64,
}

impl Services {
    /// The empty rows that all ports without endpoints share.
    pub(crate) fn empty_rows(&self) -> Arc<Rows> {
        Arc::clone(&self.nothing)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, id: ServiceId) -> Option<&Service> {
        self.all.get(id.0 as usize)
    }

    pub(crate) fn get_mut(&mut self, id: ServiceId) -> Option<&mut Service> {
        self.all.get_mut(id.0 as usize)
    }

    /// Marks a service dirty, once. `stale`: it must be decided again.
    pub(crate) fn mark_dirty(&mut self, id: ServiceId, cause: Cause, stale: bool) {
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

    /// Plans a service again from its beginning, for leftovers of its own. An already dirty service keeps its causes.
    pub(crate) fn replan(&mut self, id: ServiceId) {
        match self.get_mut(id) {
            Some(service) if service.is_dirty() => service.cursor = Cursor::default(),
            _ => self.mark_dirty(id, Cause::Retry, false),
        }
    }

    /// Marks a service for another plan because its last one was not executed.
    pub(crate) fn retry(&mut self, id: ServiceId, tables: &Tables) {
        if tables.get(id).is_some() {
            self.mark_dirty(id, Cause::Retry, false);
        }
    }

    /// Whether this service may be written to.
    pub(crate) fn is_dirty(&self, id: ServiceId) -> bool {
        self.get(id).is_some_and(Service::is_dirty)
    }

    pub(crate) fn is_unfinished(&self, id: ServiceId) -> bool {
        self.get(id).is_some_and(Service::is_unfinished)
    }

    pub(crate) fn record_error(&mut self, id: ServiceId, error: Arc<str>) {
        if let Some(service) = self.get_mut(id) {
            service.record_error(error);
        }
    }

    /// Counts a step that was skipped because its subject was missing.
    pub(crate) const fn count_impossible(&mut self) {
        self.impossible += 1;
    }

    pub(super) fn port(&self, id: ServiceId, position: usize) -> Option<&Port> {
        self.get(id)?.ports.get(position)
    }

    pub(super) fn port_mut(&mut self, id: ServiceId, position: usize) -> Option<&mut Port> {
        self.get_mut(id)?.ports.get_mut(position)
    }

    pub(super) fn port_at(&self, id: ServiceId, index: PortIndex, indices: &Indices) -> Option<&Port> {
        self.port(id, indices.position(index)?).filter(|port| port.index == Some(index))
    }

    pub(super) fn port_at_mut(
        &mut self,
        id: ServiceId,
        index: PortIndex,
        indices: &Indices,
    ) -> Option<&mut Port> {
        self.port_mut(id, indices.position(index)?).filter(|port| port.index == Some(index))
    }

    /// Records that the maps surely do not have a frontend for these services, and returns them, because they can
    /// continue with their removals.
    pub(super) fn release_frontend(
        &mut self,
        key: FrontendKey,
        ids: impl IntoIterator<Item = ServiceId>,
    ) -> impl Iterator<Item = ServiceId> {
        ids.into_iter().inspect(move |id| {
            self.get_mut(*id).into_iter().for_each(|service| service.frontends.remove(&key));
        })
    }
}
