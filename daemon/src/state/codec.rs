//! From the table to records and back: a head, then one record for each service.
//!
//! Invariant: what is read equals what was written, or the record is refused whole. What the version before wrote is
//! read too: an upgrade must not let go of what is held.

use std::io;
use std::sync::Arc;

use holdfast_core::event::Watched;
use holdfast_core::facts::{ObjectKey, Timestamp};
use holdfast_core::keys::{ServiceKey, SliceKey, Source};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use serde::{Deserialize, Serialize};

use super::form::odd::{self, OddForm};
use super::form::{HoldForm, HoldForm3, ServiceForm};
use super::{Context, Kept};
use crate::sources::kubernetes::Oddities;

/// The version of the records that are written.
pub(super) const VERSION: u32 = 5;

/// The oldest that are read: those of the two versions before, as soon as there are two. Whoever changes a form keeps
/// the former one beside it, as [`Head3`] is, and a file of it for the tests.
pub(super) const VERSION_MIN: u32 = 3;

/// The first that has what Services say of their load balancers. After an older one all Services are listed once.
const HAS_BALANCERS: u32 = 5;

/// As it is now: what it was, and what came after.
#[derive(Serialize, Deserialize)]
struct Head {
    before: Head3,
    /// No number of a record from here on was given out.
    numbers_below: u64,
}

/// The head of version 3.
#[derive(Serialize, Deserialize)]
struct Head3 {
    at: i64,
    boot: Arc<str>,
    cluster: Option<Arc<str>>,
    zone: Option<Arc<str>>,
    proxy_name: Option<Arc<str>>,
    services_version: Option<Arc<str>>,
    slices_version: Option<Arc<str>>,
    odd_services: Vec<OddForm>,
    odd_slices: Vec<OddForm>,
}

/// Odd objects of a kind that are written down. With more of them a restart asks for a list, which costs less than a
/// file that is full of them.
const ODDS_MAX: usize = 4_096;

impl Head {
    fn new(context: &Context, snapshot: &Snapshot) -> Self {
        let Context { boot, cluster, zone, proxy_name, odd, numbers_below } = context.clone();
        let is_resumable = odd.services.len().max(odd.slices.len()) <= ODDS_MAX
            // What waits for room is in no record, so a restart has to be told of it.
            && snapshot.rejections.waiting == 0;
        let version = |watched| snapshot.progress.get(&watched).filter(|_| is_resumable).cloned();
        let before = Head3 {
            at: snapshot.confirmed().0,
            boot,
            cluster,
            zone,
            proxy_name,
            services_version: version(Watched::Services),
            slices_version: version(Watched::Slices),
            odd_services: odd::forms(&odd.services, ODDS_MAX),
            odd_slices: odd::forms(&odd.slices, ODDS_MAX),
        };
        Self { before, numbers_below }
    }
}

/// Takes a record, and whose it is; the head is nobody's.
type Write<'a> = dyn FnMut(Option<&ServiceKey>, &[u8]) -> io::Result<()> + 'a;

/// Gives the records one by one, those of services with whose it is; each is gone with the next.
pub(super) fn encode(context: &Context, snapshot: &Snapshot, write: &mut Write<'_>) -> io::Result<()> {
    let mut record = to_bytes(&Head::new(context, snapshot), Vec::new())?;
    write(None, &record)?;
    for view in snapshot.services.iter() {
        record.clear();
        record = to_bytes(&ServiceForm::new(view, snapshot.clock()), record)?;
        write(Some(&view.key), &record)?;
    }
    Ok(())
}

fn to_bytes(value: &impl Serialize, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    postcard::to_extend(value, buffer).map_err(io::Error::other)
}

/// Takes records in, the head first.
pub(super) struct Reading<'a> {
    kept: &'a mut Kept,
    version: u32,
    has_head: bool,
}

impl<'a> Reading<'a> {
    /// Of a version from [`VERSION_MIN`] to [`VERSION`].
    pub(super) fn new(kept: &'a mut Kept, version: u32) -> Self {
        Self { kept, version, has_head: false }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.has_head
    }

    /// `None`: the record makes no sense.
    pub(super) fn take(&mut self, record: &[u8]) -> Option<()> {
        if self.has_head {
            self.kept.remembered.services.push(service(self.version, record)?);
        } else {
            self.take_head(head(self.version, record)?);
        }
        Some(())
    }

    fn take_head(&mut self, Head { before: head, numbers_below }: Head) {
        self.has_head = true;
        let odd = Oddities {
            services: odd::odds(head.odd_services, |name| {
                ObjectKey::Service(ServiceKey { name, source: Source::Kubernetes })
            }),
            slices: odd::odds(head.odd_slices, |name| {
                ObjectKey::Slice(SliceKey { name, source: Source::Kubernetes })
            }),
        };
        let Head3 { boot, cluster, zone, proxy_name, .. } = head;
        self.kept.context = Context { boot, cluster, zone, proxy_name, odd, numbers_below };
        self.kept.remembered.at = Timestamp(head.at);
        let services_version = head.services_version.filter(|_| self.version >= HAS_BALANCERS);
        let versions = [(Watched::Services, services_version), (Watched::Slices, head.slices_version)];
        self.kept.remembered.progress =
            versions.into_iter().filter_map(|(watched, version)| Some((watched, version?))).collect();
    }
}

/// What each version wrote of a service, as it is now.
fn service(version: u32, record: &[u8]) -> Option<ServiceView> {
    match version {
        VERSION_MIN => postcard::from_bytes::<ServiceForm<HoldForm3, ()>>(record).ok()?.into_view(),
        ..HAS_BALANCERS => postcard::from_bytes::<ServiceForm<HoldForm, ()>>(record).ok()?.into_view(),
        _ => postcard::from_bytes::<ServiceForm>(record).ok()?.into_view(),
    }
}

/// What each version wrote, as it is now.
fn head(version: u32, record: &[u8]) -> Option<Head> {
    match version {
        VERSION_MIN => Some(Head { before: postcard::from_bytes(record).ok()?, numbers_below: 0 }),
        _ => postcard::from_bytes(record).ok(),
    }
}
