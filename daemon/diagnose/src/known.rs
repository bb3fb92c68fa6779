//! What this node knows of a service by its tables, beside what the maps said.
//!
//! Invariant: what others would have to be asked for is left as not asked.

use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ObjectName};
use holdfast_core::limits::READ_BACK_MAX;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

use super::focus::Focus;
use super::lookup::look_up;
use super::material::{Asked, Cluster, Host, MapRow, Material, Narrowed, Own};
use crate::why::{ReadBack, difference, key};
use holdfast_status::record::Record;

/// All services of that name, and what the maps are to be asked about them.
#[derive(Debug)]
pub struct Known {
    name: ObjectName,
    snapshot: Arc<Snapshot>,
    views: Vec<Arc<ServiceView>>,
    /// The same services as the snapshot has them, with all of their ports.
    whole: Vec<Arc<ServiceView>>,
}

impl Known {
    /// Finds the services by the exact name.
    pub fn of(name: ObjectName, snapshot: Arc<Snapshot>, focus: &Focus) -> Self {
        let whole = views(&name, &snapshot);
        Self { views: focus.narrow(&whole), name, snapshot, whole }
    }

    pub const fn name(&self) -> &ObjectName {
        &self.name
    }

    /// The services of that name with all of their ports, whatever the question narrows down.
    pub fn whole(&self) -> &[Arc<ServiceView>] {
        &self.whole
    }

    /// The services of that name, as far as the question is about them.
    pub fn views(&self) -> &[Arc<ServiceView>] {
        &self.views
    }

    /// The frontends of which the maps are asked.
    pub fn keys(&self) -> Vec<FrontendKey> {
        self.frontends().filter_map(|(_, it)| key(it)).take(READ_BACK_MAX).collect()
    }

    /// The snapshot in which the services were found.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether a later snapshot has the same services of that name, whatever became of others.
    pub fn is_still_so(&self, later: &Snapshot) -> bool {
        let now = views(&self.name, later);
        now.len() == self.whole.len() && now.iter().zip(&self.whole).all(|(now, then)| Arc::ptr_eq(now, then))
    }

    fn frontends(&self) -> impl Iterator<Item = (&ServiceView, &FrontendView)> {
        self.views.iter().flat_map(|view| view.frontends.iter().map(move |it| (&**view, it)))
    }

    /// Makes the material of what is known here: the services, how the daemon is, the latest records, and what the maps
    /// said.
    pub fn material(
        self,
        (own, history): (Own, Vec<Record>),
        read: &ReadBack,
        (narrowed, taken): (Narrowed, Timestamp),
    ) -> Material {
        let lookups = look_up(&self.snapshot, &self.views, &own.datapath, (read, narrowed.client));
        let kernel = match read.iter().find_map(|(_, entry)| entry.as_ref().err()) {
            Some(error) => Asked::Failed(error.as_str().into()),
            None => Asked::Answered(self.frontends().filter_map(|(view, it)| row(view, it, read)).collect()),
        };
        let in_maps = self.frontends().filter(|(_, it)| key(it).is_some()).count();
        Material {
            kernel_left: in_maps.saturating_sub(READ_BACK_MAX),
            history,
            own,
            kernel,
            cluster: Cluster::default(),
            host: Host::default(),
            probes: Asked::default(),
            http: Asked::default(),
            names: Asked::default(),
            lookups,
            flows: Asked::default(),
            narrowed,
            left_out: Vec::new(),
            name: self.name,
            taken,
            snapshot: self.snapshot,
            views: self.views,
        }
    }
}

/// A frontend beside what was read of it; `None`: it cannot be in the maps, or they were not asked for it or gave an
/// error.
fn row(view: &ServiceView, it: &FrontendView, read: &ReadBack) -> Option<MapRow> {
    let frontend = key(it)?;
    let (_, entry) = read.iter().find(|(other, _)| *other == frontend)?;
    Some(MapRow { frontend, difference: difference(view, it, entry.as_ref().ok()?.as_ref()) })
}

/// All services of a name, one for each source that has it.
pub fn views(name: &ObjectName, snapshot: &Snapshot) -> Vec<Arc<ServiceView>> {
    snapshot.services.find_by_name(name).map(Arc::clone).collect()
}
