//! Starts from the state that a former process wrote, before any source has synced.
//!
//! Invariant: a restored service is decided again like any other, and keeps its times and last lists. Only here does
//! the wall clock determine the age of a hold. Restored services may be written before the sources have synced, but
//! nothing found in the maps is removed for them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::World;
use crate::change::Cause;
use crate::drains::Drains;
use crate::event::WatchKind;
use crate::facts::Timestamp;
use crate::hold::ListHistory;
use crate::keys::{ObjectName, Source};
use crate::list::{LastList, Rows};
use crate::resolve::weighting;
use crate::service::{Port, Service};
use crate::snapshot::{PortView, ServiceView, Snapshot, Status};
use crate::time::{ClockReading, Uptime};

#[derive(Clone, Debug, Default)]
pub struct SavedSnapshot {
    /// When the sources last confirmed it.
    pub at: Timestamp,
    /// The clocks of the former process, to which the times of its holds refer.
    pub clock: ClockReading,
    pub services: Vec<Arc<ServiceView>>,
    /// The last apiserver version received for each kind.
    pub progress: BTreeMap<WatchKind, Arc<str>>,
}

impl From<&Snapshot> for SavedSnapshot {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            at: snapshot.confirmed_at(),
            clock: snapshot.clock(),
            services: snapshot.services.iter().cloned().collect(),
            progress: snapshot.resumable_progress(),
        }
    }
}

impl World {
    /// Restores the services of sources still in use. Called once, before any event.
    pub(crate) fn restore_services(&mut self, remembered: SavedSnapshot, now: ClockReading) {
        let then = remembered.clock;
        self.tables.restored_at = Some(remembered.at);
        // If the apiserver is no source now, its objects are forgotten, and a later process must list them again.
        if self.tables.synced.contains_key(&Source::Kubernetes) {
            self.tables.progress = remembered.progress;
        }
        let slices = remembered.services.iter().map(|view| view.slices.len()).sum();
        self.tables.reserve_restored(remembered.services.len(), slices);
        // All services restore their namespaces' numbers before any namespace gets a new one.
        for facts in remembered.services.iter().filter_map(|view| view.facts.as_deref()) {
            self.tables.restore_quota(facts, &self.owners.frontends);
        }
        // Deletions since then are unknown until a source delivers.
        for source in Source::ALL.into_iter().filter(|source| source.is_tenant_writable()) {
            self.ledger.set_silent(source, true);
        }
        for view in remembered.services {
            if self.tables.synced.contains_key(&view.key.source) {
                self.restore_service(view, |at| now.uptime_at(then.wall_at(at)));
            }
        }
    }

    fn restore_service(&mut self, mut shared: Arc<ServiceView>, on_my_clock: impl Fn(Uptime) -> Uptime) {
        let Some(id) = self.tables.restore_service(&shared) else { return };
        let view = Arc::make_mut(&mut shared);
        for port in &mut view.ports {
            port.index = None;
            port.mark_drained(&view.key.name, &self.tables.drains);
            for hold in port.hold.iter_mut().map(Arc::make_mut) {
                hold.begun = on_my_clock(hold.begun);
                (hold.first_probe, hold.bound_restarted, hold.bound_reached) =
                    (hold.first_probe.map(&on_my_clock), None, None);
            }
        }
        for frontend in &mut view.frontends {
            frontend.status = Status::Pending;
        }
        // The times of these observations refer to another process's clock.
        view.balancer_history = None;
        let is_bare = !self.realized.leftovers.has_frontends;
        let Self { services, tables, ledger, .. } = self;
        services.mark_dirty(id, Cause::Restored { is_cold_start: is_bare }, true);
        let (Some(service), Some(known)) = (services.get_mut(id), tables.get(id)) else {
            return services.count_impossible();
        };
        service.restore_view(&shared);
        let namespace = known.key.name.shared_namespace();
        ledger.restore_service(
            (id, namespace),
            service.holds(),
            service.list_presence(),
            &tables.settings.hold,
        );
        self.report.snapshot.services.set(id, Some(shared));
    }
}

impl PortView {
    /// Marks drained backends, which are saved separately from the rows.
    fn mark_drained(&mut self, service: &ObjectName, drains: &Drains) {
        let drained = weighting::drained_backends(self.rows.iter().map(|row| row.backend()), service, drains);
        let weights = self.rows.weights().clone().with_drained(drained);
        if weights.has_no_drained() {
            return;
        }
        let is_last = self.last.rows().is_some_and(|last| Arc::ptr_eq(last, &self.rows));
        self.rows = Arc::new(Rows::clone(&self.rows).with_weights(weights));
        if is_last {
            self.last = LastList::restore(Some(Arc::clone(&self.rows)));
        }
    }
}

impl Service {
    /// Restores rows, times and last lists. What the maps hold is read from them, not restored.
    fn restore_view(&mut self, view: &Arc<ServiceView>) {
        let port = |port: &PortView| Port {
            rows: Arc::clone(&port.rows),
            history: ListHistory {
                last: port.last.clone(),
                hold: port.hold.clone(),
                end_reason: port.ended,
                evidence: None,
            },
            counted: port.rows.iter().len().max(port.last.row_count()).next_power_of_two(),
            ..Port::new(port.key.clone(), &Arc::default())
        };
        self.ports = view.ports.iter().map(port).collect();
        self.desired_count = self.ports.len();
        self.facts.clone_from(&view.facts);
        self.view = Some(Arc::clone(view));
    }
}
