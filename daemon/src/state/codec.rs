//! From the table to records and back: a head, then one record for each service.
//!
//! Invariant: what is read equals what was written, or the record is refused whole. Deliberately absent: files.

use std::io;
use std::sync::Arc;

use holdfast_core::event::Watched;
use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use super::form::ServiceForm;
use super::{Context, Kept};

#[derive(Serialize, Deserialize)]
struct Head {
    at: i64,
    boot: Arc<str>,
    cluster: Option<Arc<str>>,
    zone: Option<Arc<str>>,
    proxy_name: Option<Arc<str>>,
    services_version: Option<Arc<str>>,
    slices_version: Option<Arc<str>>,
}

impl Head {
    fn new(context: &Context, snapshot: &Snapshot) -> Self {
        let Context { boot, cluster, zone, proxy_name } = context.clone();
        let version = |watched| snapshot.progress.get(&watched).cloned();
        Self {
            at: snapshot.published.0,
            boot,
            cluster,
            zone,
            proxy_name,
            services_version: version(Watched::Services),
            slices_version: version(Watched::Slices),
        }
    }
}

/// Gives the records one by one; each is gone with the next.
pub(super) fn encode(
    context: &Context,
    snapshot: &Snapshot,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut record = to_bytes(&Head::new(context, snapshot), Vec::new())?;
    write(&record)?;
    for view in snapshot.services.iter() {
        record.clear();
        record = to_bytes(&ServiceForm::from(&**view), record)?;
        write(&record)?;
    }
    Ok(())
}

fn to_bytes(value: &impl Serialize, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    postcard::to_extend(value, buffer).map_err(io::Error::other)
}

/// Takes records in, the head first.
pub(super) struct Reading<'a> {
    kept: &'a mut Kept,
    has_head: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn new(kept: &'a mut Kept) -> Self {
        Self { kept, has_head: false }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.has_head
    }

    /// `None`: the record makes no sense.
    pub(super) fn take(&mut self, record: &[u8]) -> Option<()> {
        if self.has_head {
            let form: ServiceForm = postcard::from_bytes(record).ok()?;
            self.kept.remembered.services.push(form.into_view()?);
        } else {
            self.take_head(postcard::from_bytes(record).ok()?);
        }
        Some(())
    }

    fn take_head(&mut self, head: Head) {
        self.has_head = true;
        self.kept.context =
            Context { boot: head.boot, cluster: head.cluster, zone: head.zone, proxy_name: head.proxy_name };
        self.kept.remembered.at = Timestamp(head.at);
        let versions = [(Watched::Services, head.services_version), (Watched::Slices, head.slices_version)];
        self.kept.remembered.progress =
            versions.into_iter().filter_map(|(watched, version)| Some((watched, version?))).collect();
    }
}
