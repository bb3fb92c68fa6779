//! A service as this node's tables and maps show it.
//!
//! Invariant: evidence that only others could give stays unqueried.

use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ObjectName};
use holdfast_core::limits::READ_BACK_MAX;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

use super::client_path::trace_client;
use super::evidence::{Cluster, DaemonState, DiagnosisScope, Evidence, Host, Lookup, MapRow};
use super::focus::Focus;
use crate::explain::{ReadBack, describe_difference, frontend_key};
use holdfast_status::record::Record;

/// All services of a name, and the map entries to read for them.
#[derive(Debug)]
pub struct KnownServices {
    name: ObjectName,
    snapshot: Arc<Snapshot>,
    views: Vec<Arc<ServiceView>>,
    /// The same services with all of their ports.
    unfiltered: Vec<Arc<ServiceView>>,
}

impl KnownServices {
    pub fn find(name: ObjectName, snapshot: Arc<Snapshot>, focus: &Focus) -> Self {
        let whole = find_views(&name, &snapshot);
        Self { views: focus.narrow_views(&whole), name, snapshot, unfiltered: whole }
    }

    pub const fn name(&self) -> &ObjectName {
        &self.name
    }

    /// The services with all of their ports, whatever the query's limits.
    pub fn unfiltered_views(&self) -> &[Arc<ServiceView>] {
        &self.unfiltered
    }

    /// The services, narrowed to the query.
    pub fn views(&self) -> &[Arc<ServiceView>] {
        &self.views
    }

    pub fn frontend_keys(&self) -> Vec<FrontendKey> {
        self.frontends().filter_map(|(_, it)| frontend_key(it)).take(READ_BACK_MAX).collect()
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether a later snapshot has the same services of that name.
    pub fn is_current_in(&self, later: &Snapshot) -> bool {
        let now = find_views(&self.name, later);
        now.len() == self.unfiltered.len()
            && now.iter().zip(&self.unfiltered).all(|(now, then)| Arc::ptr_eq(now, then))
    }

    fn frontends(&self) -> impl Iterator<Item = (&ServiceView, &FrontendView)> {
        self.views.iter().flat_map(|view| view.frontends.iter().map(move |it| (&**view, it)))
    }

    /// Makes the evidence of this node's own state: the services, the daemon, the latest records and the map entries.
    pub fn into_evidence(
        self,
        (own, history): (DaemonState, Vec<Record>),
        read: &ReadBack,
        (narrowed, taken): (DiagnosisScope, Timestamp),
    ) -> Evidence {
        let lookups = trace_client(&self.snapshot, &self.views, &own.datapath, (read, narrowed.client));
        let kernel = match read.iter().find_map(|(_, entry)| entry.as_ref().err()) {
            Some(error) => Lookup::Failed(error.as_str().into()),
            None => Lookup::Answered(
                self.frontends().filter_map(|(view, it)| build_map_row(view, it, read)).collect(),
            ),
        };
        let in_maps = self.frontends().filter(|(_, it)| frontend_key(it).is_some()).count();
        Evidence {
            kernel_left: in_maps.saturating_sub(READ_BACK_MAX),
            history,
            own,
            kernel,
            cluster: Cluster::default(),
            host: Host::default(),
            probes: Lookup::default(),
            http: Lookup::default(),
            names: Lookup::default(),
            lookups,
            flows: Lookup::default(),
            scope: narrowed,
            skipped_sources: Vec::new(),
            name: self.name,
            taken,
            snapshot: self.snapshot,
            views: self.views,
        }
    }
}

/// A frontend with its map entry. `None`: the maps cannot hold it, were not queried for it, or returned an error.
fn build_map_row(view: &ServiceView, it: &FrontendView, read: &ReadBack) -> Option<MapRow> {
    let frontend = frontend_key(it)?;
    let (_, entry) = read.iter().find(|(other, _)| *other == frontend)?;
    Some(MapRow { frontend, difference: describe_difference(view, it, entry.as_ref().ok()?.as_ref()) })
}

/// All services of a name, one for each source that has it.
pub fn find_views(name: &ObjectName, snapshot: &Snapshot) -> Vec<Arc<ServiceView>> {
    snapshot.services.find_by_name(name).map(Arc::clone).collect()
}
