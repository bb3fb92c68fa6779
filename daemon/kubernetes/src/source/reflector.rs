//! The list-and-watch loop of one kind: a list, then watches, and another list only when a watch cannot continue.
//!
//! Invariant: every error is followed by another request; known objects stay until a whole list replaces them. A
//! version belongs to the cluster, not to an endpoint: after a failover the watch continues. Streaming lists are not
//! used: they cost an apiserver three times as much as pages.

mod absent_kind;
mod listing;
mod name_list;
mod paging;
mod refetch_as_json;
mod rewind_check;
mod watch_stream;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdfast_host::logging::messages::NOTICE;
use holdfast_objects::{Defaulting, Provenance};
use tokio::sync::{Notify, mpsc, watch};

use super::Timing;
use super::accepted_encodings::AcceptedEncodings;
use super::backoff::{self, Backoff, random_chance};
use super::cluster_size::{ClusterSize, NodeCount};
use super::codec::{Codec, Json, Protobuf};
use super::envelope::Status;
use super::event_sink::{EventSink, SinkClosed};
use super::freshness::FreshnessQueries;
use super::object::SinkMessage;
use super::object_cache::ObjectCache;
use super::resource::{Resource, SharedSelection};
use super::view::{State, Watch};
use super::watch_error::{StuckVersion, WatchError};
use crate::apiserver::{Access, Connection, Encoding, Reply};

/// The most bytes of a refusal's body.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Refusals in a row until the own Node, or a kind that a cluster may lack, is requested less often: an apiserver that
/// has just started refuses everything for a second.
const REFUSALS_MIN: u32 = 4;

/// The cache of one kind, shared with its audit and with the task that saves untabled objects.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedObjectCache(Arc<Mutex<ObjectCache>>);

impl SharedObjectCache {
    pub(super) fn new(delivered: ObjectCache) -> Self {
        Self(Arc::new(Mutex::new(delivered)))
    }

    /// Locks the cache. A panic ends the process, so no task sees it half-changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, ObjectCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list-and-watch loop of one kind.
#[derive(Debug)]
pub(super) struct Reflector {
    pub(super) access: Access,
    pub(super) selection: SharedSelection,
    pub(super) encodings: AcceptedEncodings,
    /// How often in a row a server rejected the selection.
    pub(super) selection_refusals: u32,
    /// A list of names failed, and no list has succeeded since.
    pub(super) skips_name_list: bool,
    pub(super) timing: Timing,
    /// Estimates the nodes that may lose their watches together with this one.
    pub(super) cluster_size: ClusterSize,
    pub(super) cache: SharedObjectCache,
    pub(super) sink: EventSink,
    pub(super) view: watch::Sender<Watch>,
    /// Requests for a list although the watch continues.
    pub(super) relist_requests: mpsc::Receiver<WatchError>,
    /// The engine's questions about endpoints.
    pub(super) freshness: FreshnessQueries,
    /// The version to watch from; `None` if a list is needed.
    pub(super) version: Option<Arc<str>>,
    /// The server's latest version; kept while a list is needed.
    pub(super) latest_version: Option<Arc<str>>,
    /// The store may have changed: the last watch was interrupted, or belonged to another process.
    pub(super) is_version_suspect: bool,
    /// The state at the start is so old that the first changes trigger an audit.
    pub(super) is_start_stale: bool,
    /// Notifies the audit that changes arrive again after a long absence.
    pub(super) long_absence_ended: Arc<Notify>,
    /// Whether a list of this kind has arrived.
    pub(super) is_present: watch::Sender<bool>,
    /// The kind that must be present before this one is requested.
    pub(super) depends_on: Option<watch::Receiver<bool>>,
}

/// The failures of the loop.
#[derive(Debug, Default)]
struct FailureState {
    backoff: Backoff,
    stuck: StuckVersion,
    /// In a row.
    refusals: u32,
    /// Refusals as absent since the last list.
    absences: u32,
    /// The log has reported the failure.
    is_logged: bool,
}

impl FailureState {
    /// The wait before the next request. A list after an expired version follows at once if
    /// [`Backoff::grant_immediate`] grants it.
    fn next_wait(
        &mut self,
        ending: &WatchError,
        was_watch: bool,
        lived: Duration,
        spread: Duration,
    ) -> Duration {
        if matches!(ending, WatchError::FreshnessRequested) {
            return backoff::random_part(spread, random_chance());
        }
        let paced = self.backoff.next_wait(lived, ending.retry_after(), spread, random_chance());
        let turns = ending.is_gone() && was_watch && self.backoff.grant_immediate();
        if turns { Duration::ZERO } else { paced }
    }

    /// Counts a refusal; returns the refusals in a row.
    fn count_refusal(&mut self, ending: &WatchError) -> u32 {
        self.refusals = if ending.is_refusal() { self.refusals.saturating_add(1) } else { 0 };
        self.refusals
    }
}

/// Why a list or a watch stopped: an error, or the receiver is gone.
#[derive(Debug)]
enum StopCause {
    Error(WatchError),
    Closed,
}

impl From<WatchError> for StopCause {
    fn from(ending: WatchError) -> Self {
        Self::Error(ending)
    }
}

impl From<SinkClosed> for StopCause {
    fn from(_: SinkClosed) -> Self {
        Self::Closed
    }
}

impl Reflector {
    /// Runs until the engine closes its queue.
    pub(super) async fn run(mut self) -> SinkClosed {
        let mut failures = FailureState::default();
        if let Some(mut needed) = self.depends_on.take() {
            // The other loop lives as long as this one.
            let _ = needed.wait_for(|is_there| *is_there).await;
        }
        loop {
            let begun = Instant::now();
            let from = self.version.clone();
            let stopped = match &from {
                None => self.list().await.err(),
                Some(version) => Some(self.watch(version).await),
            };
            let went_on = match stopped {
                Some(StopCause::Closed) => Err(SinkClosed),
                None => {
                    (failures.refusals, failures.absences) = (0, 0);
                    self.log_recovery(&mut failures);
                    Ok(())
                }
                // A list that took long and failed counts as no life.
                Some(StopCause::Error(ending)) => {
                    let lived = from.as_ref().map_or(Duration::ZERO, |_| begun.elapsed());
                    self.handle_error(&ending, from.as_ref(), lived, &mut failures).await
                }
            };
            if went_on.is_err() {
                return SinkClosed;
            }
        }
    }

    /// Handles an error: decides the next request, logs, and waits.
    async fn handle_error(
        &mut self,
        ending: &WatchError,
        from: Option<&Arc<str>>,
        lived: Duration,
        failures: &mut FailureState,
    ) -> Result<(), SinkClosed> {
        let has_moved = self.version.as_ref() != from;
        if has_moved {
            self.log_recovery(failures);
        }
        // The restarted watch succeeds only if the server has the newest version.
        self.is_version_suspect =
            !self.is_normal_end(ending, lived) || matches!(ending, WatchError::FreshnessRequested);
        self.check_encoding(ending);
        // Watches that end in time end at different moments on each node.
        let is_due = self.is_normal_end(ending, lived) && lived >= self.timing.watch_length;
        let nodes = if is_due { NodeCount::default() } else { self.cluster_size.node_count() };
        let mut wait = failures.next_wait(ending, from.is_some(), lived, nodes.watch_spread());
        if failures.stuck.record_error(ending, has_moved) && self.version.take().is_some() {
            wait += backoff::random_part(self.timing.list_spread.max(nodes.list_spread()), random_chance());
        }
        let refusals = failures.count_refusal(ending);
        let is_node = self.selection.what == Resource::Node;
        if is_node {
            if refusals >= REFUSALS_MIN {
                wait = wait.max(self.timing.absent_retry);
                self.report_no_node().await?;
            }
            self.sink.end_zone_wait();
        }
        if self.is_absence(ending) {
            failures.absences = failures.absences.saturating_add(1);
            self.version = None;
            wait = self.handle_absence((wait, from.is_none()), (refusals, failures.absences)).await?;
        }
        self.try_other_version(ending);
        // The table holds nothing from the Node, so it can miss nothing.
        if self.log_error(ending, lived, failures) && !is_node {
            self.sink.report_interruption().await?;
            self.report_watching(false).await?;
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Falls back to JSON if the last reply's encoding may be the cause.
    fn check_encoding(&self, ending: &WatchError) {
        let encoding = self.view.borrow().encoding;
        self.encodings.handle_error(self.selection.what, encoding, ending, self.timing.json_fallback_time);
    }

    /// Logs that the Node is unreadable. It supplies zone and addresses; services work without it.
    fn log_no_node(&self, reason: &dyn std::fmt::Display) {
        tracing::warn!(
            %reason,
            "this node's Node object cannot be read: hints for zones need `zone` under [node], and NodePorts answer at \
             the address that the host prefers"
        );
    }

    /// Reports a missing or unreadable Node. The host's own choice of addresses then replaces a former process's.
    async fn report_no_node(&self) -> Result<(), SinkClosed> {
        if self.is_without_node() { self.sink.report_node(None).await } else { Ok(()) }
    }

    /// Whether this is the Node's loop and no Node has arrived.
    fn is_without_node(&self) -> bool {
        self.selection.what == Resource::Node && self.cache.lock().len() == 0
    }

    /// Whether a watch ended normally.
    fn is_normal_end(&self, ending: &WatchError, lived: Duration) -> bool {
        matches!(ending, WatchError::Ended) && lived >= self.timing.watch_short
            || matches!(ending, WatchError::FreshnessRequested)
    }

    /// Shows and logs an error; returns false for a normal end.
    fn log_error(&self, ending: &WatchError, lived: Duration, failures: &mut FailureState) -> bool {
        if self.is_normal_end(ending, lived) {
            return false;
        }
        if self.is_absence(ending) && self.cache.lock().len() == 0 {
            self.log_absent(ending, std::mem::replace(&mut failures.is_logged, true));
            return false;
        }
        self.view.send_modify(|view| {
            view.set_state(State::Waiting);
            view.restarts += 1;
            view.record_error(ending);
        });
        let what = self.selection.what;
        let is_news = matches!(ending, WatchError::Rewound { .. });
        if std::mem::replace(&mut failures.is_logged, true) && !is_news {
            tracing::debug!(watch = %what, error = %ending, "still not watching");
        } else if self.is_without_node() {
            self.log_no_node(ending);
        } else {
            tracing::warn!(watch = %what, error = %ending, "watch interrupted; known objects stay");
        }
        true
    }

    /// Logs the recovery if the log reported the failure.
    fn log_recovery(&self, failures: &mut FailureState) {
        match (std::mem::take(&mut failures.is_logged), self.selection.what) {
            (false, _) => {}
            (true, Resource::Node) => {
                tracing::info!(target: NOTICE, "this node's Node object can be read again");
            }
            (true, Resource::Imports) => {
                tracing::info!(target: NOTICE, "the cluster's ServiceImports can be read");
            }
            (true, what) => tracing::info!(target: NOTICE, watch = %what, "watching again"),
        }
    }

    /// Returns an accepted reply, or the refusal and the connection if it can be reused.
    async fn check_reply(&self, reply: Reply) -> Result<Reply, (WatchError, Option<Connection>)> {
        self.view.send_modify(|view| {
            view.endpoint = Some(Arc::clone(&reply.endpoint));
            view.encoding = Some(reply.encoding);
            // A refusal carries no news of objects.
            if reply.status == 200 {
                view.last_received = Some(Instant::now());
            }
        });
        if reply.status == 200 {
            return Ok(reply);
        }
        let code = reply.status;
        let (retry_after, encoding) = (reply.retry_after, reply.encoding);
        let (body, kept) = reply.read_beginning(REFUSAL_BYTES_MAX, self.timing.error_body_timeout).await;
        let status = match encoding {
            Encoding::Json => Json::parse_status(&body),
            Encoding::Protobuf => Protobuf::parse_status(&body),
        };
        Err((
            WatchError::Refused { status: Status::from_refusal(code, status, &body), retry_after },
            kept.ok(),
        ))
    }

    /// Reports whether endpoint changes arrive; while they do not, a held list stays held.
    async fn report_watching(&mut self, is_heard: bool) -> Result<(), SinkClosed> {
        if self.selection.what.has_endpoints() { self.sink.report_watching(is_heard).await } else { Ok(()) }
    }

    /// Answers the engine's question once the watch or list has delivered everything.
    async fn answer_query(&mut self) -> Result<(), SinkClosed> {
        match self.freshness.take_answered() {
            Some(question) => self.sink.report_answer(question).await,
            None => Ok(()),
        }
    }

    /// Delivers a group. `cache` already has its untabled objects.
    async fn deliver(&mut self, messages: Vec<SinkMessage>) -> Result<(), SinkClosed> {
        self.sink.deliver(messages).await
    }

    /// Updates the view with the loop's state and `change`.
    fn update_view(&self, change: impl FnOnce(&mut Watch)) {
        let (objects, bad) = {
            let delivered = self.cache.lock();
            (delivered.len(), delivered.bad_count())
        };
        self.view.send_modify(|view| {
            view.resource_version.clone_from(&self.version);
            (view.objects, view.bad) = (objects, bad);
            change(view);
        });
    }

    /// The provenance of objects from this endpoint.
    fn provenance(&self, endpoint: &Arc<str>) -> Provenance {
        let (source, origin) = (self.selection.what.source(), Some(Arc::clone(endpoint)));
        Provenance { source, origin, defaulting: Defaulting::Done }
    }
}
