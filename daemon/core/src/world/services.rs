//! Every service between the rules and the maps, and which of them are dirty.
//!
//! Invariant: a dirty service stands in `dirty` once, with every cause that made it so.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::space::Indices;
use crate::change::Cause;
use crate::keys::FrontendKey;
use crate::list::Rows;
use crate::op::{PortIndex, ServiceId};
use crate::service::{Cursor, Freshness, Phase, Port, Service};
use crate::tables::Tables;

/// All services by their ids.
#[derive(Debug, Default)]
pub(crate) struct Services {
    all: Vec<Service>,
    /// The services that became dirty since the last piece was begun.
    pub(crate) dirty: Vec<ServiceId>,
    nothing: Arc<Rows>,
    /// Steps that were left out, because something was missing that always is there.
    pub(crate) impossible: u64,
}

impl Services {
    /// Rows that are none. All ports without any share these: there are as many ports as a cluster has.
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

    /// Makes a service dirty, once. `stale`: what it wants must be decided again.
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

    /// Has a service planned from its beginning, for something that it left behind. What made a service dirty is the
    /// cause of that too.
    pub(crate) fn replan(&mut self, id: ServiceId) {
        match self.get_mut(id) {
            Some(service) if service.is_dirty() => service.cursor = Cursor::default(),
            _ => self.mark_dirty(id, Cause::Retry, false),
        }
    }

    /// Marks a service to be planned again, because its last plan was not carried out.
    pub(crate) fn retry(&mut self, id: ServiceId, tables: &Tables) {
        if tables.get(id).is_some() {
            self.mark_dirty(id, Cause::Retry, false);
        }
    }

    /// Whether this service may be written to.
    pub(crate) fn is_dirty(&self, id: ServiceId) -> bool {
        self.get(id).is_some_and(Service::is_dirty)
    }

    /// Whether this service goes on with a later piece.
    pub(crate) fn is_unfinished(&self, id: ServiceId) -> bool {
        self.get(id).is_some_and(Service::is_unfinished)
    }

    /// Notes what kept a service's plan from being carried out.
    pub(crate) fn record_error(&mut self, id: ServiceId, error: Arc<str>) {
        if let Some(service) = self.get_mut(id) {
            service.record_error(error);
        }
    }

    /// Counts a step that was left out, because something was missing that always is there.
    pub(crate) const fn count_impossible(&mut self) {
        self.impossible += 1;
    }

    /// The port of a service at its place.
    pub(super) fn port(&self, id: ServiceId, position: usize) -> Option<&Port> {
        self.get(id)?.ports.get(position)
    }

    /// The port of a service at its place, to change it.
    pub(super) fn port_mut(&mut self, id: ServiceId, position: usize) -> Option<&mut Port> {
        self.get_mut(id)?.ports.get_mut(position)
    }

    /// The port of a service that has this index.
    pub(super) fn port_at(&self, id: ServiceId, index: PortIndex, indices: &Indices) -> Option<&Port> {
        self.port(id, indices.position(index)?).filter(|port| port.index == Some(index))
    }

    /// The port of a service that has this index, to change it.
    pub(super) fn port_at_mut(
        &mut self,
        id: ServiceId,
        index: PortIndex,
        indices: &Indices,
    ) -> Option<&mut Port> {
        self.port_mut(id, indices.position(index)?).filter(|port| port.index == Some(index))
    }

    /// Notes that a frontend is certainly not in the maps on these services' behalf. Returns them, because they can go
    /// on with their removals.
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
