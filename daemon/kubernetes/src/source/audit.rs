//! Compares names and versions on the server with the cache, hourly and when a client requests it.
//!
//! Invariant: a difference counts only if it lasts over a pause, so that changes in transit do not count. It is a miss
//! only if the watch ran all the time: a watch that lists or waits receives the change anyway. A watch with a miss
//! lists everything again itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::Timing;
use super::accepted_encodings::AcceptedEncodings;
use super::audit_request::AuditServer;
use super::backoff;
use super::cluster_size::ClusterSize;
use super::codec::{Codec, Json, Protobuf, Splitter};
use super::envelope::Status;
use super::object::identify_object;
use super::object_cache::ObjectCache;
use super::page::{OBJECTS_MAX, PageError};
use super::piece::Piece;
use super::reflector::SharedObjectCache;
use super::resource::SharedSelection;
use super::version::Version;
use super::view::{State, Watch};
use super::watch_error::WatchError;
use crate::apiserver::{Access, Encoding, Reply};

/// How many differences the log names; the list repairs all of them.
const NAMED_MAX: usize = 3;

/// How many differences a client sees; a watch that misses more misses everything.
const SHOWN_MAX: usize = 100;

/// Names and versions on the server.
type ListedVersions = BTreeMap<ObjectName, Version>;

/// One object: its version in the cache and on the server.
type Difference = (ObjectName, Option<Version>, Option<Version>);

/// The audit of one kind.
#[derive(Debug)]
pub(super) struct Audit {
    pub(super) access: Access,
    pub(super) selection: SharedSelection,
    pub(super) encodings: AcceptedEncodings,
    pub(super) timing: Timing,
    pub(super) cache: SharedObjectCache,
    pub(super) view: watch::Sender<Watch>,
    pub(super) relist_requests: mpsc::Sender<WatchError>,
    pub(super) requests: AuditServer,
    /// Signals that changes arrive again after such a long absence that the watch alone is not trusted.
    pub(super) long_absence_ended: Arc<Notify>,
    /// Estimates the nodes that may have been away together with this one.
    pub(super) cluster_size: ClusterSize,
}

impl Audit {
    /// Runs until the watch is gone.
    pub(super) async fn run(mut self) {
        let mut missed = Vec::new();
        let mut due = self.next_due();
        while !self.relist_requests.is_closed() {
            // The hourly audit comes first, so that a client that asks all the time does not defer it.
            let is_requested = tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => false,
                () = self.long_absence_ended.notified() => {
                    due = due.min(self.next_after_absence());
                    continue;
                }
                () = self.requests.wait_for_request() => true,
            };
            if !is_requested || !self.requests.is_fresh() {
                missed = self.compare().await;
            }
            if !is_requested {
                due = self.next_due();
            }
            // The hourly audit always repairs its findings.
            if (self.requests.take_repair_request() || !is_requested) && !missed.is_empty() {
                self.request_relist(&std::mem::take(&mut missed)).await;
            }
        }
    }

    /// When the next hourly audit is due.
    fn next_due(&self) -> Instant {
        let pause = self.timing.audit_interval;
        Instant::now() + pause + backoff::random_part(pause / 4, backoff::random_chance())
    }

    /// When to audit after a long absence. Many nodes may have been away together, and each audit costs a list.
    fn next_after_absence(&mut self) -> Instant {
        let spread = self.timing.list_spread.max(self.cluster_size.node_count().list_spread());
        Instant::now()
            + self.timing.audit_confirm_delay
            + backoff::random_part(spread, backoff::random_chance())
    }

    /// Compares, publishes the result to waiting clients, and returns the watch's misses.
    async fn compare(&self) -> Vec<Difference> {
        let since = self.watching_since();
        let found = self.confirm_differences().await;
        let was_watching = since.is_some() && self.watching_since() == since;
        let lines = |found: &Vec<Difference>| found.iter().take(SHOWN_MAX).map(format_difference).collect();
        let answer = found.as_ref().map(lines).map_err(ToString::to_string);
        let missed = match found {
            Ok(found) => self.count_audit(if was_watching { found } else { Vec::new() }),
            Err(error) => {
                tracing::debug!(watch = %self.selection.what, %error, "cannot compare with the apiserver now");
                Vec::new()
            }
        };
        self.requests.publish_result(answer);
        missed
    }

    /// Since when the watch runs without interruption; `None` while it does not.
    fn watching_since(&self) -> Option<std::time::Instant> {
        let view = self.view.borrow();
        (view.state == State::Watching).then_some(view.since)
    }

    fn count_audit(&self, missed: Vec<Difference>) -> Vec<Difference> {
        self.view.send_modify(|view| {
            view.audits += 1;
            view.differences += u64::from(!missed.is_empty());
        });
        missed
    }

    async fn confirm_differences(&self) -> Result<Vec<Difference>, WatchError> {
        let first = self.fetch_differences().await?;
        if first.is_empty() {
            return Ok(Vec::new());
        }
        tokio::time::sleep(self.timing.audit_confirm_delay).await;
        let second = self.fetch_differences().await?;
        Ok(first.intersection(&second).cloned().collect())
    }

    async fn request_relist(&self, confirmed: &[Difference]) {
        let names: Vec<String> =
            confirmed.iter().take(NAMED_MAX).map(|(name, ..)| name.to_string()).collect();
        let more = if confirmed.len() > names.len() { ", …" } else { "" };
        let text =
            format!("{} of {} differ: {}{more}", confirmed.len(), self.selection.what, names.join(", "));
        let _nobody_listens = self.relist_requests.send(WatchError::Differs(text.into())).await;
    }

    async fn fetch_differences(&self) -> Result<BTreeSet<Difference>, WatchError> {
        let listed = self.fetch_versions().await?;
        Ok(find_differences(&self.cache.lock(), &listed))
    }

    async fn fetch_versions(&self) -> Result<ListedVersions, WatchError> {
        let query = self.selection.current().list_path();
        let reply = self
            .access
            .get_large(self.encodings.metadata_accept(), &query)
            .await
            .map_err(WatchError::Unreachable)?;
        let encoding = reply.encoding;
        let listed = self.read_versions(reply).await;
        listed.inspect_err(|ending| {
            self.encodings.handle_error(
                self.selection.what,
                Some(encoding),
                ending,
                self.timing.json_fallback_time,
            );
        })
    }

    async fn read_versions(&self, reply: Reply) -> Result<ListedVersions, WatchError> {
        if reply.status != 200 {
            let status = Status { code: Some(reply.status), ..Status::default() };
            return Err(WatchError::Refused { status, retry_after: None });
        }
        let whole = self.timing.list_stall_timeout;
        let reading = async {
            match reply.encoding {
                Encoding::Json => self.parse_versions::<Json>(reply).await,
                Encoding::Protobuf => self.parse_versions::<Protobuf>(reply).await,
            }
        };
        tokio::time::timeout(whole, reading).await.map_err(|_| WatchError::Stalled(whole))?
    }

    async fn parse_versions<C: Codec>(&self, mut reply: Reply) -> Result<ListedVersions, WatchError> {
        let mut page = C::Page::default();
        let (mut listed, mut items) = (ListedVersions::new(), 0_u32);
        let idle = self.timing.list_idle;
        let body_error = |error| WatchError::from_body(error, idle);
        while let Some(chunk) = reply.next_chunk(idle).await.map_err(body_error)? {
            page.push_chunk(&chunk, &mut |item: Piece<'_>| {
                items = items.saturating_add(1);
                listed.extend(self.item_version::<C>(item));
            })?;
            if items > OBJECTS_MAX {
                return Err(PageError::Endless.into());
            }
        }
        let frame = page.finish(&mut |item: Piece<'_>| listed.extend(self.item_version::<C>(item)))?;
        if !frame.is_metadata_only() && !self.selection.what.is_listed_by(&frame) {
            return Err(PageError::OtherKind.into());
        }
        Ok(listed)
    }

    /// The name and version of an item. A headless slice counts only if the cache has it, because it was for proxies
    /// before.
    fn item_version<C: Codec>(&self, item: Piece<'_>) -> Option<(ObjectName, Version)> {
        let identity = C::peek_identity(item.bytes())?;
        let is_headless = identity.is_headless();
        let found = identify_object(self.selection.what, &identity);
        found.filter(|(name, _)| !is_headless || self.cache.lock().version(name).is_some())
    }
}

fn format_difference((name, cached, listed): &Difference) -> String {
    let version = |it: &Option<Version>| {
        it.as_ref().map_or_else(|| "nothing".to_owned(), |it| format!("version {}", it.resource_version))
    };
    format!("{name}: the apiserver has {}, the watch delivered {}", version(listed), version(cached))
}

fn find_differences(delivered: &ObjectCache, listed: &ListedVersions) -> BTreeSet<Difference> {
    let missing = listed.iter().filter(|(name, version)| delivered.version(name) != Some(*version));
    let missing = missing
        .map(|(name, version)| (name.clone(), delivered.version(name).cloned(), Some(version.clone())));
    let extra = delivered.versions().filter(|(name, _)| !listed.contains_key(*name));
    missing.chain(extra.map(|(name, version)| (name.clone(), Some(version.clone()), None))).collect()
}
