//! Encodes the table as records and back: a head, the names of all services, one record for each service, and head
//! and names once more.
//!
//! Invariant: a decoded record equals the encoded one, or it is refused as a whole.

use std::io;
use std::sync::Arc;

use holdfast_core::event::WatchKind;
use holdfast_core::facts::{ObjectKey, Timestamp};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey, Source};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use serde::{Deserialize, Serialize};

use super::SnapshotContext;
use super::damage::SnapshotFile;
use super::form::ServiceForm;
use super::form::untabled_form::{self, UntabledForm};
use super::frames::RecordKind;
use holdfast_kubernetes::source::UntabledByKind;

/// The data saved with the table.
#[derive(Serialize, Deserialize)]
struct Head {
    at: i64,
    boot: Arc<str>,
    cluster: Option<Arc<str>>,
    zone: Option<Arc<str>>,
    proxy_name: Option<Arc<str>>,
    services_version: Option<Arc<str>>,
    slices_version: Option<Arc<str>>,
    odd_services: Vec<UntabledForm>,
    odd_slices: Vec<UntabledForm>,
    /// The lowest unused record number.
    numbers_below: u64,
}

/// The most untabled objects of a kind that are saved. With more of them a restart lists everything, which costs less
/// than a file full of them.
const UNTABLED_MAX: usize = 4_096;

impl Head {
    fn new(context: &SnapshotContext, snapshot: &Snapshot) -> Self {
        let SnapshotContext { boot, cluster, zone, proxy_name, oddities: odd, numbers_below } =
            context.clone();
        let is_resumable = odd.services.len().max(odd.slices.len()) <= UNTABLED_MAX
            // An object that waits for admission is in no record, so a restart must list it.
            && snapshot.rejections.waiting == 0;
        let contained = snapshot.resumable_progress();
        let version = |watched| contained.get(&watched).filter(|_| is_resumable).cloned();
        Self {
            at: snapshot.confirmed_at().0,
            boot,
            cluster,
            zone,
            proxy_name,
            services_version: version(WatchKind::Services),
            slices_version: version(WatchKind::Slices),
            odd_services: untabled_form::to_forms(&odd.services, UNTABLED_MAX),
            odd_slices: untabled_form::to_forms(&odd.slices, UNTABLED_MAX),
            numbers_below,
        }
    }
}

/// Takes a record with its kind; a service's also with the service's key.
type RecordSink<'a> = dyn FnMut(RecordKind, Option<&ServiceKey>, &[u8]) -> io::Result<()> + 'a;

/// Passes the records to `write` one by one, reusing the buffer of each service's record.
pub(super) fn encode(
    context: &SnapshotContext,
    snapshot: &Snapshot,
    write: &mut RecordSink<'_>,
) -> io::Result<()> {
    let head = to_bytes(&Head::new(context, snapshot), Vec::new())?;
    let names = snapshot.services.iter().map(|view| (&view.key.name, view.key.source));
    let names = to_bytes(&names.collect::<Vec<_>>(), Vec::new())?;
    write(RecordKind::Head, None, &head)?;
    write(RecordKind::Names, None, &names)?;
    let mut record = Vec::new();
    for view in snapshot.services.iter() {
        record.clear();
        record = to_bytes(&ServiceForm::new(view, snapshot.clock()), record)?;
        write(RecordKind::Service, Some(&view.key), &record)?;
    }
    write(RecordKind::Names, None, &names)?;
    write(RecordKind::Head, None, &head)
}

/// The record that replaces a service's own if that is too large.
pub(super) fn encode_left_out(key: &ServiceKey) -> io::Result<Vec<u8>> {
    to_bytes(&(&key.name, key.source), Vec::new())
}

fn to_bytes(value: &impl Serialize, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    postcard::to_extend(value, buffer).map_err(io::Error::other)
}

/// Adds a record of any kind, in any order; `None` if the record is invalid.
pub(super) fn decode_record(found: &mut SnapshotFile, kind: RecordKind, record: &[u8]) -> Option<()> {
    match kind {
        RecordKind::Head if found.has_head => {}
        RecordKind::Head => decode_head(found, postcard::from_bytes(record).ok()?),
        RecordKind::Names if found.names.is_some() => {}
        RecordKind::Names => {
            let names = postcard::from_bytes::<Vec<_>>(record).ok()?;
            found.names = Some(names.into_iter().map(service_key).collect());
        }
        RecordKind::Service => found.saved.remembered.services.push(decode_service(record)?),
        RecordKind::LeftOut => {
            found.left_out.insert(service_key(postcard::from_bytes(record).ok()?));
        }
    }
    Some(())
}

fn decode_head(found: &mut SnapshotFile, head: Head) {
    let saved = &mut found.saved;
    found.has_head = true;
    let odd = UntabledByKind {
        services: untabled_form::from_forms(head.odd_services, |name| {
            ObjectKey::Service(ServiceKey { name, source: Source::Kubernetes })
        }),
        slices: untabled_form::from_forms(head.odd_slices, |name| {
            ObjectKey::Slice(SliceKey { name, source: Source::Kubernetes })
        }),
    };
    let Head { boot, cluster, zone, proxy_name, numbers_below, .. } = head;
    saved.context = SnapshotContext { boot, cluster, zone, proxy_name, oddities: odd, numbers_below };
    saved.remembered.at = Timestamp(head.at);
    let versions = [(WatchKind::Services, head.services_version), (WatchKind::Slices, head.slices_version)];
    saved.remembered.progress =
        versions.into_iter().filter_map(|(watched, version)| Some((watched, version?))).collect();
}

fn service_key((name, source): (ObjectName, Source)) -> ServiceKey {
    ServiceKey { name, source }
}

/// Decodes a service from its record; `None` if the record is invalid.
pub(super) fn decode_service(record: &[u8]) -> Option<Arc<ServiceView>> {
    postcard::from_bytes::<ServiceForm>(record).ok()?.into_view().map(Arc::new)
}
