//! What this node knows by itself: tables, maps, history, and how the daemon is.
//!
//! Invariant: no process outside the daemon is asked; what would need that is left as not asked.

use std::sync::Arc;
use std::time::Instant;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ObjectName};
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};
use holdfast_datapath::Denial;

use super::focus::Focus;
use super::gather::views;
use super::limits::RECORDS_MAX;
use super::lookup::look_up;
use super::material::{Asked, Cluster, Dropped, Host, MapRow, Material, Narrowed, Own, WatchSeen};
use crate::datapath::Denied;
use crate::engine::ask::FRONTENDS_MAX;
use crate::readings::Readings;
use crate::recorder::Wanted;
use crate::sources::kubernetes::{State, Watch};
use crate::why::{ReadBack, difference, key};

/// All services of that name, and what the maps are to be asked about them.
pub(crate) struct Known {
    name: ObjectName,
    snapshot: Arc<Snapshot>,
    views: Vec<Arc<ServiceView>>,
    /// As the snapshot has them, with all of their ports.
    whole: Vec<Arc<ServiceView>>,
}

impl Known {
    /// Finds them, by the exact name.
    pub(crate) fn of(name: ObjectName, snapshot: Arc<Snapshot>, focus: &Focus) -> Self {
        let whole = views(&name, &snapshot);
        Self { views: focus.of(&whole), name, snapshot, whole }
    }

    /// The frontends of which the maps are asked.
    pub(crate) fn keys(&self) -> Vec<FrontendKey> {
        self.frontends().filter_map(|(_, it)| key(it)).take(FRONTENDS_MAX).collect()
    }

    /// Whether a later snapshot has the same of it, whatever became of others.
    pub(crate) fn is_still_so(&self, later: &Snapshot) -> bool {
        let now = views(&self.name, later);
        now.len() == self.whole.len() && now.iter().zip(&self.whole).all(|(now, then)| Arc::ptr_eq(now, then))
    }

    fn frontends(&self) -> impl Iterator<Item = (&ServiceView, &FrontendView)> {
        self.views.iter().flat_map(|view| view.frontends.iter().map(move |it| (&**view, it)))
    }

    /// All of it, with what the maps said.
    pub(crate) fn material(
        self,
        readings: &Readings,
        read: &ReadBack,
        (narrowed, taken): (Narrowed, Timestamp),
    ) -> Material {
        let lookups = look_up(&self.snapshot, &self.views, &readings.datapath(), (read, narrowed.client));
        let kernel = match read.iter().find_map(|(_, entry)| entry.as_ref().err()) {
            Some(error) => Asked::Failed(error.as_str().into()),
            None => Asked::Answered(self.frontends().filter_map(|(view, it)| row(view, it, read)).collect()),
        };
        let in_maps = self.frontends().filter(|(_, it)| key(it).is_some()).count();
        Material {
            kernel_left: in_maps.saturating_sub(FRONTENDS_MAX),
            history: history(readings, &self.name),
            own: own(readings, &self.snapshot),
            kernel,
            cluster: Cluster::default(),
            host: Host::default(),
            probes: Asked::default(),
            http: Asked::default(),
            names: Asked::default(),
            lookups,
            flows: Asked::default(),
            narrowed,
            name: self.name,
            taken,
            snapshot: self.snapshot,
            views: self.views,
        }
    }
}

/// A frontend beside what was read of it; none: it cannot be in the maps, or was not asked for.
fn row(view: &ServiceView, it: &FrontendView, read: &ReadBack) -> Option<MapRow> {
    let frontend = key(it)?;
    let (_, entry) = read.iter().find(|(other, _)| *other == frontend)?;
    Some(MapRow { frontend, difference: difference(view, it, entry.as_ref().ok()?.as_ref()) })
}

/// The latest records, oldest first.
fn history(readings: &Readings, name: &ObjectName) -> Vec<crate::recorder::Record> {
    let wanted = Wanted { service: Some(name.clone()), ..Wanted::default() };
    let lines = readings.history.select(&wanted);
    let mut latest: Vec<_> = lines.iter().rev().filter_map(|line| line.record()).take(RECORDS_MAX).collect();
    latest.reverse();
    latest
}

fn own(readings: &Readings, snapshot: &Snapshot) -> Own {
    let now = Instant::now();
    let watch = |it: Watch| WatchSeen {
        what: it.what.as_str().to_owned(),
        state: it.state.as_str().to_owned(),
        silent: it.heard.map(|heard| now.saturating_duration_since(heard)),
        // Of a watch that is up, the last error is over.
        error: it.last_error.filter(|_| it.state != State::Watching).map(|error| error.text.to_string()),
    };
    Own {
        unready: readings.unready_by(snapshot),
        stalled: readings.liveness.stalled(),
        watches: readings.watches.now().into_iter().map(watch).collect(),
        apiserver: readings.apiserver(),
        datapath: readings.datapath(),
        proxies: Arc::clone(&readings.proxies.borrow()),
        filters: Arc::clone(&readings.filters.borrow()),
        dropped: dropped(readings),
    }
}

fn dropped(readings: &Readings) -> Vec<Dropped> {
    let all = readings.refusals.latest().latest;
    let outside =
        all.iter().filter(|it| it.refusal.arrival.is_some() && it.refusal.denial == Denial::Dropped);
    let dropped = |it: &Arc<Denied>| Dropped {
        frontend: it.refusal.frontend,
        cause: it.refusal.cause,
        times: it.count,
        last: it.last,
    };
    outside.map(dropped).collect()
}
