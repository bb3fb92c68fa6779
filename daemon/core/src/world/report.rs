//! Ends a piece: publishes the snapshot, records changes and drops what is no longer needed.
//!
//! Invariant: a view shows what clients get, and each change is reported once.

use alloc::sync::Arc;
use core::mem;

use super::World;
use super::plan::ReachableIndices;
use super::space::Space;
use super::view::Viewer;
use crate::change::{Cause, Change};
use crate::claims::Frontends;
use crate::index::Seed;
use crate::keys::{Family, Source};
use crate::maps::MapError;
use crate::op::ServiceId;
use crate::service::{Cursor, Phase, Service};
use crate::snapshot::{Counters, Fill, FrontendView, MapCheck, ServiceView, ServiceViews, Snapshot, Verdict};
use crate::time::ClockReading;
use crate::work;

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(super) snapshot: Snapshot,
    pub(super) counters: Counters,
    /// Differences that a comparison found and no snapshot shows yet.
    pub(super) differences: Option<usize>,
    /// Whether the complete state at the start, from all sources or restored, was ever in the maps.
    was_whole: bool,
}

impl Report {
    pub(super) fn new(seed: Seed) -> Self {
        let snapshot = Snapshot { services: ServiceViews::new(seed), ..Snapshot::default() };
        Self { snapshot, ..Self::default() }
    }

    /// Counts a refused op, unless the namespace's quota refused it: that concerns only the namespace, and may last.
    pub(crate) const fn count_refusal(&mut self, error: &MapError) {
        self.counters.ops_failed += !error.is_quota_error() as u64;
    }

    /// Counts an op that was skipped because its owner was not dirty.
    pub(crate) fn count_cross_service(&mut self) {
        self.counters.cross_service += 1;
    }
}

impl World {
    /// Ends the piece: calls `changed` for each change, and returns the new snapshot.
    pub(crate) fn end_piece(&mut self, now: ClockReading, changed: &mut dyn FnMut(Change)) -> Snapshot {
        self.report.counters.batches += 1;
        // A refused frontend is counted again with another batch.
        (self.owners.frontends.all.planned, self.owners.frontends.external_ips.planned) = (0, 0);
        self.space.freed.now.indices.append(&mut self.realized.leftovers.forget_wiped());
        for id in self.queue.take_piece(&self.services, &self.tables) {
            self.queue.mark_written(id, &mut self.services);
            self.report_service(id, now, changed);
        }
        self.services.dirty.append(&mut self.queue.gathered);
        // Newly admitted services are decided in a later piece.
        let Self { tables, services, .. } = self;
        tables.admit(&mut |id, cause| services.mark_dirty(id, cause, true));
        let Self { shortage, demand, services, tables, space, queue, .. } = self;
        shortage.retry_waiting(tables, services, space);
        demand.retry_waiting(tables.is_synced() && queue.has_all_decided(), tables, services);
        // A service that another service's op has woken is planned again in the next piece.
        for id in mem::take(&mut self.queue.woken) {
            self.services.retry(id, &self.tables);
        }
        let Self { owners, services, tables, report, .. } = self;
        let most = self.queue.most;
        owners.update_owner_names((now.mono, most), services, tables, &mut report.snapshot.services);
        self.report.snapshot.programmed |= self.queue.is_programmed();
        self.publish(now)
    }

    fn report_service(&mut self, id: ServiceId, now: ClockReading, changed: &mut dyn FnMut(Change)) {
        let Self { tables, services, owners, space, realized, report, .. } = self;
        if let Some(service) = services.get_mut(id) {
            drop_wiped(service, &owners.frontends, space);
        }
        let viewer =
            Viewer { tables, services, owners, leftovers: &realized.leftovers, indices: &space.indices };
        let view = viewer.view(id, now).map(Arc::new);
        let gone = view.is_none();
        let Some(service) = services.get_mut(id) else { return services.count_impossible() };
        service.phase = Phase::Settled;
        service.cursor = Cursor::default();
        let causes = mem::take(&mut service.causes);
        let suppressed = mem::take(&mut service.suppressed);
        let ops = mem::take(&mut service.ops);
        let error = service.error.take();
        let before = mem::replace(&mut service.view, view.clone());
        report.snapshot.services.set(id, view.clone());
        let visible = ops > 0 || error.is_some() || is_visible(before.as_deref(), view.as_deref());
        let is_recorded = visible || causes.iter().any(Cause::is_object_event);
        let key = view.as_ref().or(before.as_ref()).map(|view| view.key.clone());
        if let Some(service) = key.filter(|_| is_recorded) {
            report.counters.changes += u64::from(visible);
            let after = view;
            changed(Change { service, at: now.wall, causes, suppressed, visible, before, after, ops, error });
        }
        if gone
            && services.get_mut(id).is_some_and(|service| service.is_empty())
            && tables.forget(id)
            && let Some(service) = services.get_mut(id)
        {
            *service = Service::default();
        }
    }

    /// Publishes a snapshot: at the end of a piece, and while nothing may be written yet.
    pub(crate) fn publish(&mut self, now: ClockReading) -> Snapshot {
        let is_whole = self.has_initial_state();
        let behind = self.has_dirty() || self.queue.has_set_aside(Source::Kubernetes, &self.tables);
        let Self { report, tables, services, owners, ledger, space, queue, .. } = self;
        report.was_whole |= is_whole;
        let Report { snapshot, counters, .. } = report;
        snapshot.rejections = tables.rejections();
        for source in tables.sources_to_relist() {
            *snapshot.relist_requests.entry(source).or_default() += 1;
        }
        snapshot.queries.clone_from(ledger.queries());
        snapshot.filling = !report.was_whole && !queue.is_programmed();
        snapshot.behind = behind;
        snapshot.node = Arc::clone(&tables.node);
        snapshot.listeners.clone_from(&tables.listeners);
        snapshot.settings = Arc::clone(&tables.settings);
        snapshot.drains = Arc::clone(&tables.drains);
        snapshot.sources = tables.sources().collect();
        snapshot.unreadable.clone_from(tables.unreadable());
        snapshot.held = ledger.held_services();
        snapshot.progress.clone_from(&tables.progress);
        snapshot.stale_since = tables.restored_at.filter(|_| !tables.is_synced());
        snapshot.counters = Counters { impossible: services.impossible + tables.impossible, ..*counters };
        snapshot.fill = Fill {
            frontends: owners.frontends.all.realized,
            ports: space.indices.used(),
            slots: Family::ALL.map(|family| u64::from(space.used(family))),
            members: space.members.used(),
            retries: 0,
            failing: 0,
        };
        if let Some(differences) = report.differences.take() {
            snapshot.checked = Some(MapCheck { at: now.wall, differences });
        }
        (snapshot.published, snapshot.mono) = (now.wall, now.mono);
        snapshot.epoch = snapshot.current_epoch();
        snapshot.clone()
    }
}

/// Drops leaving ports that are wiped and that none of the service's frontends in the maps may point to.
fn drop_wiped(service: &mut Service, frontends: &Frontends, space: &mut Space) {
    let Service { ports, frontends: own, desired_count: wanted, .. } = service;
    if ports.len() <= *wanted {
        return;
    }
    let mut dialled = ReachableIndices::default();
    own.iter().filter_map(|key| frontends.get(key)).for_each(|entry| dialled.add_frontend(entry));
    work::count_work(own.len() + ports.len());
    let mut position = 0;
    ports.retain(|port| {
        position += 1;
        if position <= *wanted {
            return true;
        }
        // Another port has taken over this one's index.
        let Some(index) = port.index else { return false };
        let stays = !port.realized.is_wiped() || dialled.contains(index);
        if !stays {
            space.freed.now.indices.push(index);
        }
        stays
    });
    space.indices.set_positions(ports);
}

/// Whether readers see another verdict, health, list or set of frontends than before. An empty slice gives a Service of
/// the manifests the same verdict and another health.
fn is_visible(before: Option<&ServiceView>, after: Option<&ServiceView>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            let old = &before.frontends;
            let new = &after.frontends;
            before.state != after.state
                || before.ports != after.ports
                || old.len() != new.len()
                || old.iter().zip(new.iter()).any(|(old, new)| {
                    is_visible_change(old, new)
                        || before.lacks_manifest_slices(old) != after.lacks_manifest_slices(new)
                })
        }
        (None, None) => false,
        _ => true,
    }
}

/// Whether clients or the service's owner notice a difference. A new owner of a frontend that stays lost appears in the
/// row but makes no record: thousands may claim one that changes owners all the time.
fn is_visible_change(old: &FrontendView, new: &FrontendView) -> bool {
    let is_lost = |row: &FrontendView| row.verdict == Verdict::Conflict;
    let without_owner = |row: &FrontendView| FrontendView { owner: None, ..row.clone() };
    old != new && !(is_lost(old) && is_lost(new) && without_owner(old) == without_owner(new))
}
