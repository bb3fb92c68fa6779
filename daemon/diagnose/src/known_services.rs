//! What this node knows of a service by its tables, beside what the maps said.
//!
//! Invariant: what others would have to be asked for is left as not asked.

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

/// All services of that name, and what the maps are to be asked about them.
#[derive(Debug)]
pub struct KnownServices {
    name: ObjectName,
    snapshot: Arc<Snapshot>,
    views: Vec<Arc<ServiceView>>,
    /// The same services as the snapshot has them, with all of their ports.
    unfiltered: Vec<Arc<ServiceView>>,
}

impl KnownServices {
    /// Finds the services by the exact name.
    pub fn find(name: ObjectName, snapshot: Arc<Snapshot>, focus: &Focus) -> Self {
        let whole = find_views(&name, &snapshot);
        Self { views: focus.narrow_views(&whole), name, snapshot, unfiltered: whole }
    }

    pub const fn name(&self) -> &ObjectName {
        &self.name
    }

    /// The services of that name with all of their ports, whatever the question narrows down.
    pub fn unfiltered_views(&self) -> &[Arc<ServiceView>] {
        &self.unfiltered
    }

    /// The services of that name, as far as the question is about them.
    pub fn views(&self) -> &[Arc<ServiceView>] {
        &self.views
    }

    /// The frontends of which the maps are asked.
    pub fn frontend_keys(&self) -> Vec<FrontendKey> {
        self.frontends().filter_map(|(_, it)| frontend_key(it)).take(READ_BACK_MAX).collect()
    }

    /// The snapshot in which the services were found.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether a later snapshot has the same services of that name, whatever became of others.
    pub fn is_current_in(&self, later: &Snapshot) -> bool {
        let now = find_views(&self.name, later);
        now.len() == self.unfiltered.len()
            && now.iter().zip(&self.unfiltered).all(|(now, then)| Arc::ptr_eq(now, then))
    }

    fn frontends(&self) -> impl Iterator<Item = (&ServiceView, &FrontendView)> {
        self.views.iter().flat_map(|view| view.frontends.iter().map(move |it| (&**view, it)))
    }

    /// Makes the material of what is known here: the services, how the daemon is, the latest records, and what the maps
    /// said.
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

/// A frontend beside what was read of it; `None`: it cannot be in the maps, or they were not asked for it or gave an
/// error.
fn build_map_row(view: &ServiceView, it: &FrontendView, read: &ReadBack) -> Option<MapRow> {
    let frontend = frontend_key(it)?;
    let (_, entry) = read.iter().find(|(other, _)| *other == frontend)?;
    Some(MapRow { frontend, difference: describe_difference(view, it, entry.as_ref().ok()?.as_ref()) })
}

/// All services of a name, one for each source that has it.
pub fn find_views(name: &ObjectName, snapshot: &Snapshot) -> Vec<Arc<ServiceView>> {
    snapshot.services.find_by_name(name).map(Arc::clone).collect()
}
