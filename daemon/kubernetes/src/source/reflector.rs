//! The loop of one kind of objects: a list, then watches, one after another, and a list again only where
//! nothing else helps.
//!
//! Invariant: no ending is the last one; what is known stays until a whole list says otherwise. A version is remembered
//! for the cluster, not for an endpoint: after a failover the watch goes on where it was. Streaming lists are not used,
//! because they cost an apiserver three times as much as pages.

mod absent_kind;
mod listing;
mod name_list;
mod paging;
mod refetch_as_json;
mod rewind_check;
mod watch_stream;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// How much is read of a body that explains a refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// How many refusals in a row it takes until this node's Node object, or a kind that a cluster may lack, is asked for
/// less often: an apiserver that has just started refuses everything for a second.
const REFUSALS_MIN: u32 = 4;

/// What was delivered of one kind. Its audit reads it, and so does the keeper what the table does not say of it.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedObjectCache(Arc<Mutex<ObjectCache>>);

impl SharedObjectCache {
    pub(super) fn new(delivered: ObjectCache) -> Self {
        Self(Arc::new(Mutex::new(delivered)))
    }

    /// Locks what was delivered. A panic ends the process, so no task ever sees it half-changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, ObjectCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop of one kind.
#[derive(Debug)]
pub(super) struct Reflector {
    pub(super) access: Access,
    pub(super) selection: SharedSelection,
    pub(super) encodings: AcceptedEncodings,
    /// How often in a row a server did not understand the selection.
    pub(super) selection_refusals: u32,
    /// Whether names alone were not answered, and no list has come since.
    pub(super) skips_name_list: bool,
    pub(super) timing: Timing,
    /// The nodes that may lose their watches together with this one.
    pub(super) cluster_size: ClusterSize,
    pub(super) cache: SharedObjectCache,
    pub(super) sink: EventSink,
    pub(super) view: watch::Sender<Watch>,
    /// Why a list is needed although the watch goes on.
    pub(super) relist_requests: mpsc::Receiver<WatchError>,
    /// What the engine asks of endpoints.
    pub(super) freshness: FreshnessQueries,
    /// The version from which the next watch begins; `None` if a list is needed.
    pub(super) version: Option<Arc<str>>,
    /// The latest version that the server has told; kept while a list is needed.
    pub(super) latest_version: Option<Arc<str>>,
    /// Whether the store may be another one by now: the last watch was interrupted, or was another process's.
    pub(super) is_version_suspect: bool,
    /// Whether what was known at the start is from so long ago that it is to be compared once changes come.
    pub(super) is_start_stale: bool,
    /// Tells the audit that changes come again after a long time.
    pub(super) long_absence_ended: Arc<Notify>,
    /// Whether a list of this kind has come.
    pub(super) is_present: watch::Sender<bool>,
    /// Tells when a kind is there without which nothing is asked for.
    pub(super) depends_on: Option<watch::Receiver<bool>>,
}

/// What the loop remembers of its failures.
#[derive(Debug, Default)]
struct FailureState {
    backoff: Backoff,
    stuck: StuckVersion,
    /// Refusals in a row.
    refusals: u32,
    /// Answers since the last list that the cluster does not have the kind.
    absences: u32,
    /// Whether it has been logged that the watch goes badly.
    is_logged: bool,
}

impl FailureState {
    /// How long it is until the next request. A list that is needed because a watch's version is gone follows at once,
    /// as far as [`Pace::grant_immediate`] grants it.
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

    /// Counts an ending; returns how many refusals in a row there were with it.
    fn count_refusal(&mut self, ending: &WatchError) -> u32 {
        self.refusals = if ending.is_refusal() { self.refusals.saturating_add(1) } else { 0 };
        self.refusals
    }
}

/// Why a list or a watch stopped: for a reason of its own, or because the receiver is gone.
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
    /// Runs until the engine takes no more events.
    pub(super) async fn run(mut self) -> SinkClosed {
        let mut failures = FailureState::default();
        if let Some(mut needed) = self.depends_on.take() {
            // The other loop goes on for as long as this one.
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
                // A list that took long and failed has achieved nothing.
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

    /// Decides what follows from an ending, says so, and waits.
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
        // An answer that is one only if the server knows the newest version.
        self.is_version_suspect =
            !self.is_normal_end(ending, lived) || matches!(ending, WatchError::FreshnessRequested);
        self.check_encoding(ending);
        // A watch that has had its time ends at another moment on each node.
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
        // Nothing of the table comes from the Node, so nothing of it can be missing.
        if self.log_error(ending, lived, failures) && !is_node {
            self.sink.report_interruption().await?;
            self.report_watching(false).await?;
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Falls back to JSON if the encoding of the last answer may be to blame for this ending.
    fn check_encoding(&self, ending: &WatchError) {
        let encoding = self.view.borrow().encoding;
        self.encodings.handle_error(self.selection.what, encoding, ending, self.timing.json_fallback_time);
    }

    /// Logs that the Node object cannot be read. It gives zone and addresses; services are served without them too.
    fn log_no_node(&self, reason: &dyn std::fmt::Display) {
        tracing::warn!(
            %reason,
            "this node's Node object cannot be read: hints for zones need `zone` under [node], and NodePorts answer at \
             the address that the host prefers"
        );
    }

    /// Reports that the Node object may not be read, or that there is none. The host's own choice of addresses counts
    /// from now on, and not what a former process knew.
    async fn report_no_node(&self) -> Result<(), SinkClosed> {
        if self.is_without_node() { self.sink.report_node(None).await } else { Ok(()) }
    }

    /// Whether this is the loop of the Node object, and no Node has come yet.
    fn is_without_node(&self) -> bool {
        self.selection.what == Resource::Node && self.cache.lock().len() == 0
    }

    /// Whether a watch has ended as all of them should.
    fn is_normal_end(&self, ending: &WatchError, lived: Duration) -> bool {
        matches!(ending, WatchError::Ended) && lived >= self.timing.watch_short
            || matches!(ending, WatchError::FreshnessRequested)
    }

    /// Shows and logs an ending if it is not a normal one; returns whether it was not.
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
            tracing::warn!(watch = %what, error = %ending, "the watch was interrupted; what is known stays");
        }
        true
    }

    /// Logs that the watch goes well again, as an answer has shown, if the log said that it goes badly.
    fn log_recovery(&self, failures: &mut FailureState) {
        match (std::mem::take(&mut failures.is_logged), self.selection.what) {
            (false, _) => {}
            (true, Resource::Node) => tracing::info!("this node's Node object can be read again"),
            (true, Resource::Imports) => tracing::info!("the cluster's ServiceImports can be read"),
            (true, what) => tracing::info!(watch = %what, "watching again"),
        }
    }

    /// The answer, if the server accepted the request; or why it did not, and the connection if that is free for
    /// another request.
    async fn check_reply(&self, reply: Reply) -> Result<Reply, (WatchError, Option<Connection>)> {
        self.view.send_modify(|view| {
            view.endpoint = Some(Arc::clone(&reply.endpoint));
            view.encoding = Some(reply.encoding);
            // A refusal brings no news of objects.
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

    /// Whether endpoints are told of now: without them a held list waits for what mends it.
    async fn report_watching(&mut self, is_heard: bool) -> Result<(), SinkClosed> {
        if self.selection.what.has_endpoints() { self.sink.report_watching(is_heard).await } else { Ok(()) }
    }

    /// Answers the question to which the watch or the list under way is an answer.
    async fn answer_query(&mut self) -> Result<(), SinkClosed> {
        match self.freshness.take_answered() {
            Some(question) => self.sink.report_answer(question).await,
            None => Ok(()),
        }
    }

    /// Hands a group over. What a restart has to know of it beside the table is in `cache` by now.
    async fn deliver(&mut self, messages: Vec<SinkMessage>) -> Result<(), SinkClosed> {
        self.sink.deliver(messages).await
    }

    /// Shows where the loop stands, and what else has changed.
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

    /// Where the objects were read that come from this endpoint.
    fn provenance(&self, endpoint: &Arc<str>) -> Provenance {
        let (source, origin) = (self.selection.what.source(), Some(Arc::clone(endpoint)));
        Provenance { source, origin, defaulting: Defaulting::Done }
    }
}
