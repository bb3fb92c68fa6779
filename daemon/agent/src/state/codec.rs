//! From the table to records and back: a head, the names of all services, one record for each service, and head and
//! names once more.
//!
//! Invariant: what is read equals what was written, or the record is refused whole. What former versions from
//! [`VERSION_MIN`] on wrote is read too: an upgrade must not let go of what is held.

use std::io;
use std::sync::Arc;

use holdfast_core::event::Watched;
use holdfast_core::facts::{BalancerFacts, ObjectKey, Timestamp};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey, Source};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use serde::{Deserialize, Serialize};

use super::Context;
use super::damage::Found;
use super::form::odd::{self, OddForm};
use super::form::{HoldForm, HoldForm3, Later7, Later8, ServiceForm};
use super::frames::Kind;
use super::version::VERSION_MIN;
use holdfast_kubernetes::source::Oddities;

/// The first version that has all that Services say now. After an older one all Services are listed once.
const HAS_ALL: u32 = 9;

/// The first version that has all that slices say now. After an older one all slices are listed once.
const HAS_ALL_OF_SLICES: u32 = 8;

/// The head of this version: that of version 3, and what came after it.
#[derive(Serialize, Deserialize)]
struct Head {
    before: Head3,
    /// The lowest record number that was not given out.
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

/// The most odd objects of a kind that are written down. With more of them a restart asks for a list, which costs less
/// than a file that is full of them.
const ODDS_MAX: usize = 4_096;

impl Head {
    fn new(context: &Context, snapshot: &Snapshot) -> Self {
        let Context { boot, cluster, zone, proxy_name, odd, numbers_below } = context.clone();
        let is_resumable = odd.services.len().max(odd.slices.len()) <= ODDS_MAX
            // An object that waits for room is in no record, so a restart has to be told of it by a list.
            && snapshot.rejections.waiting == 0;
        let contained = snapshot.contained();
        let version = |watched| contained.get(&watched).filter(|_| is_resumable).cloned();
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

/// Takes a record with its kind; that of a service also with the service's key.
type Write<'a> = dyn FnMut(Kind, Option<&ServiceKey>, &[u8]) -> io::Result<()> + 'a;

/// Gives the records to `write` one by one; the buffer of each service's record is used again for the next.
pub(super) fn encode(context: &Context, snapshot: &Snapshot, write: &mut Write<'_>) -> io::Result<()> {
    let head = to_bytes(&Head::new(context, snapshot), Vec::new())?;
    let names = snapshot.services.iter().map(|view| (&view.key.name, view.key.source));
    let names = to_bytes(&names.collect::<Vec<_>>(), Vec::new())?;
    write(Kind::Head, None, &head)?;
    write(Kind::Names, None, &names)?;
    let mut record = Vec::new();
    for view in snapshot.services.iter() {
        record.clear();
        record = to_bytes(&ServiceForm::new(view, snapshot.clock()), record)?;
        write(Kind::Service, Some(&view.key), &record)?;
    }
    write(Kind::Names, None, &names)?;
    write(Kind::Head, None, &head)
}

/// The record that stands for a service that is too large for its own.
pub(super) fn left_out(key: &ServiceKey) -> io::Result<Vec<u8>> {
    to_bytes(&(&key.name, key.source), Vec::new())
}

fn to_bytes(value: &impl Serialize, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    postcard::to_extend(value, buffer).map_err(io::Error::other)
}

/// Takes records in, in any order.
pub(super) struct RecordReader<'a> {
    found: &'a mut Found,
    version: u32,
}

impl<'a> RecordReader<'a> {
    /// A reader of records that a version from [`VERSION_MIN`] to `VERSION` wrote.
    pub(super) const fn new(found: &'a mut Found, version: u32) -> Self {
        Self { found, version }
    }

    /// Takes a record in; `None`: the record makes no sense.
    pub(super) fn take(&mut self, kind: Kind, record: &[u8]) -> Option<()> {
        match kind {
            Kind::Head if self.found.has_head => {}
            Kind::Head => self.take_head(head(self.version, record)?),
            Kind::Names if self.found.names.is_some() => {}
            Kind::Names => {
                let names = postcard::from_bytes::<Vec<_>>(record).ok()?;
                self.found.names = Some(names.into_iter().map(key).collect());
            }
            Kind::Service => self.found.kept.remembered.services.push(service(self.version, record)?),
            Kind::LeftOut => {
                self.found.left_out.insert(key(postcard::from_bytes(record).ok()?));
            }
        }
        Some(())
    }

    /// Takes services in that were read from their records.
    pub(super) fn add(&mut self, services: impl Iterator<Item = Arc<ServiceView>>) {
        self.found.kept.remembered.services.extend(services);
    }

    fn take_head(&mut self, Head { before: head, numbers_below }: Head) {
        let kept = &mut self.found.kept;
        self.found.has_head = true;
        let odd = Oddities {
            services: odd::odds(head.odd_services, |name| {
                ObjectKey::Service(ServiceKey { name, source: Source::Kubernetes })
            }),
            slices: odd::odds(head.odd_slices, |name| {
                ObjectKey::Slice(SliceKey { name, source: Source::Kubernetes })
            }),
        };
        let Head3 { boot, cluster, zone, proxy_name, .. } = head;
        kept.context = Context { boot, cluster, zone, proxy_name, odd, numbers_below };
        kept.remembered.at = Timestamp(head.at);
        let services_version = head.services_version.filter(|_| self.version >= HAS_ALL);
        let slices_version = head.slices_version.filter(|_| self.version >= HAS_ALL_OF_SLICES);
        let versions = [(Watched::Services, services_version), (Watched::Slices, slices_version)];
        kept.remembered.progress =
            versions.into_iter().filter_map(|(watched, version)| Some((watched, version?))).collect();
    }
}

fn key((name, source): (ObjectName, Source)) -> ServiceKey {
    ServiceKey { name, source }
}

/// What versions 5 and 6 wrote behind the rest of a service.
type Balancer = Option<Box<BalancerFacts>>;

/// A service as each version wrote it, in the form of now.
pub(super) fn service(version: u32, record: &[u8]) -> Option<Arc<ServiceView>> {
    let view = match version {
        VERSION_MIN => postcard::from_bytes::<ServiceForm<HoldForm3, ()>>(record).ok()?.into_view(),
        4 => postcard::from_bytes::<ServiceForm<HoldForm, ()>>(record).ok()?.into_view(),
        5 | 6 => postcard::from_bytes::<ServiceForm<HoldForm, Balancer>>(record).ok()?.into_view(),
        7 => postcard::from_bytes::<ServiceForm<HoldForm, Later7>>(record).ok()?.into_view(),
        8 => postcard::from_bytes::<ServiceForm<HoldForm, Later8>>(record).ok()?.into_view(),
        _ => postcard::from_bytes::<ServiceForm>(record).ok()?.into_view(),
    };
    view.map(Arc::new)
}

/// The head as each version wrote it, in the form of now.
fn head(version: u32, record: &[u8]) -> Option<Head> {
    match version {
        VERSION_MIN => Some(Head { before: postcard::from_bytes(record).ok()?, numbers_below: 0 }),
        _ => postcard::from_bytes(record).ok(),
    }
}
