//! Begins with what a former process wrote down, before any source has delivered.
//!
//! Invariant: a remembered service is decided anew like any other, and keeps its times and the memory of its last
//! lists. Here and nowhere else the wall clock says how old a hold is. Remembered services may be written to the maps
//! before the sources have delivered, but nothing found in the maps is removed for them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::World;
use crate::change::Cause;
use crate::drains::Drains;
use crate::event::Watched;
use crate::facts::Timestamp;
use crate::hold::Kept;
use crate::keys::{ObjectName, Source};
use crate::list::{LastList, Rows};
use crate::resolve::weigh;
use crate::service::{Port, Service};
use crate::snapshot::{PortView, ServiceView, Snapshot, Status};
use crate::time::{Now, Uptime};

/// What a former process knew.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// When the sources last confirmed it.
    pub at: Timestamp,
    /// The clocks of the former process, by which the times of its holds are counted.
    pub clock: Now,
    /// All services, as readers saw them.
    pub services: Vec<Arc<ServiceView>>,
    /// The version of the apiserver up to which each kind is known.
    pub progress: BTreeMap<Watched, Arc<str>>,
}

impl From<&Snapshot> for Remembered {
    /// The part of a snapshot that is written down.
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            at: snapshot.confirmed(),
            clock: snapshot.clock(),
            services: snapshot.services.iter().cloned().collect(),
            progress: snapshot.contained(),
        }
    }
}

impl World {
    /// Begins with the services that are remembered of sources that are still used. Called once, before any event.
    pub(crate) fn remember(&mut self, remembered: Remembered, now: Now) {
        let then = remembered.clock;
        self.tables.remembered_at = Some(remembered.at);
        // Where the apiserver is no source now, its objects are forgotten, and a later process has to be told of all.
        if self.tables.synced.contains_key(&Source::Kubernetes) {
            self.tables.progress = remembered.progress;
        }
        let slices = remembered.services.iter().map(|view| view.slices.len()).sum();
        self.tables.make_room_for(remembered.services.len(), slices);
        // All remembered services say which numbers their namespaces have, before any namespace gets a new one.
        for facts in remembered.services.iter().filter_map(|view| view.facts.as_deref()) {
            self.tables.recognise(facts, &self.owners.frontends);
        }
        // What has ended meanwhile is not known until a source tells.
        for source in Source::ALL.into_iter().filter(|source| source.is_tenants()) {
            self.ledger.silence(source, true);
        }
        for view in remembered.services {
            if self.tables.synced.contains_key(&view.key.source) {
                self.remember_service(view, |at| now.uptime_at(then.wall_at(at)));
            }
        }
    }

    fn remember_service(&mut self, mut shared: Arc<ServiceView>, on_my_clock: impl Fn(Uptime) -> Uptime) {
        let Some(id) = self.tables.remember(&shared) else { return };
        let view = Arc::make_mut(&mut shared);
        for port in &mut view.ports {
            port.index = None;
            port.drain(&view.key.name, &self.tables.drains);
            for hold in port.hold.iter_mut().map(Arc::make_mut) {
                hold.begun = on_my_clock(hold.begun);
                (hold.asked, hold.anew, hold.unheard) = (hold.asked.map(&on_my_clock), None, None);
            }
        }
        for frontend in &mut view.frontends {
            frontend.status = Status::Pending;
        }
        // The times of what was seen are by the clock of another process.
        view.seen = None;
        let is_bare = !self.realized.found.found_any;
        let Self { services, tables, ledger, .. } = self;
        services.mark(id, Cause::Remembered { is_bare }, true);
        let (Some(service), Some(known)) = (services.get_mut(id), tables.get(id)) else {
            return services.count_impossible();
        };
        service.begin_with(&shared);
        let namespace = known.key.name.shared_namespace();
        ledger.remember((id, namespace), service.holds(), service.lists(), &tables.settings.hold);
        self.report.snapshot.services.set(id, Some(shared));
    }
}

impl PortView {
    /// Marks what is drained, which the table does not say: the drains are written down for themselves.
    fn drain(&mut self, service: &ObjectName, drains: &Drains) {
        let drained = weigh::drained(self.rows.all().map(|row| row.backend()), service, drains);
        let weights = self.rows.weights().clone().drained(drained);
        if weights.has_no_drained() {
            return;
        }
        let is_last = self.last.rows().is_some_and(|last| Arc::ptr_eq(last, &self.rows));
        self.rows = Arc::new(Rows::clone(&self.rows).weighted(weights));
        if is_last {
            self.last = LastList::remembered(Some(Arc::clone(&self.rows)));
        }
    }
}

impl Service {
    /// Takes over the rows with their times and the last lists. What the maps hold is read from them, not remembered.
    fn begin_with(&mut self, view: &Arc<ServiceView>) {
        let port = |port: &PortView| Port {
            rows: Arc::clone(&port.rows),
            kept: Kept { last: port.last.clone(), hold: port.hold.clone(), ended: port.ended, seen: None },
            counted: port.rows.all().len().max(port.last.count()).next_power_of_two(),
            ..Port::new(port.key.clone(), &Arc::default())
        };
        self.ports = view.ports.iter().map(port).collect();
        self.wanted = self.ports.len();
        self.facts.clone_from(&view.facts);
        self.view = Some(Arc::clone(view));
    }
}
