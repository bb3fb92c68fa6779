//! The loop of one kind of objects: a list, then watches, one after another, and a list again only where
//! nothing else helps.
//!
//! Invariant: no ending is the last one; what is known stays until a whole list says otherwise. A version is remembered
//! for the cluster, not for an endpoint: after a failover the watch goes on where it was. Streaming lists are not used,
//! because they cost an apiserver three times as much as pages.

mod absent;
mod alone;
mod listing;
mod names;
mod paging;
mod rewound;
mod watching;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdfast_objects::{Defaulting, Provenance};
use tokio::sync::{Notify, mpsc, watch};

use super::Timing;
use super::codec::{Codec, Json, Protobuf};
use super::crowd::{Crowd, Nodes};
use super::delivered::Delivered;
use super::ending::{Ending, Stuck};
use super::envelope::Status;
use super::object::Message;
use super::offer::Offer;
use super::outlet::{Closed, Outlet};
use super::pace::{self, Pace, chance};
use super::questions::Questions;
use super::resource::{Resource, SharedSelection};
use super::view::{State, Watch};
use crate::apiserver::{Access, Connection, Encoding, Reply};

/// How much is read of a body that explains a refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// How many refusals in a row it takes until this node's Node object, or a kind that a cluster may lack, is asked for
/// less often: an apiserver that has just started refuses everything for a second.
const REFUSALS_MIN: u32 = 4;

/// What was delivered of one kind. Its audit reads it, and so does the keeper what the table does not say of it.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedDelivered(Arc<Mutex<Delivered>>);

impl SharedDelivered {
    pub(super) fn new(delivered: Delivered) -> Self {
        Self(Arc::new(Mutex::new(delivered)))
    }

    /// Locks what was delivered. A panic ends the process, so no task ever sees it half-changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Delivered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop of one kind.
#[derive(Debug)]
pub(super) struct Reflector {
    pub(super) access: Access,
    pub(super) selection: SharedSelection,
    pub(super) offer: Offer,
    /// How often in a row a server did not understand the selection.
    pub(super) doubts: u32,
    /// Whether names alone were not answered, and no list has come since.
    pub(super) are_names_late: bool,
    pub(super) timing: Timing,
    /// The nodes that may lose their watches together with this one.
    pub(super) crowd: Crowd,
    pub(super) delivered: SharedDelivered,
    pub(super) outlet: Outlet,
    pub(super) view: watch::Sender<Watch>,
    /// Why a list is needed although the watch goes on.
    pub(super) endings: mpsc::Receiver<Ending>,
    /// What the engine asks of endpoints.
    pub(super) questions: Questions,
    /// The version from which the next watch begins; `None` if a list is needed.
    pub(super) version: Option<Arc<str>>,
    /// The latest version that the server has told; kept while a list is needed.
    pub(super) reached: Option<Arc<str>>,
    /// Whether the store may be another one by now: the last watch was interrupted, or was another process's.
    pub(super) is_doubtful: bool,
    /// Whether what was known at the start is from so long ago that it is to be compared once changes come.
    pub(super) is_from_long_ago: bool,
    /// Tells the audit that changes come again after a long time.
    pub(super) returned: Arc<Notify>,
    /// Whether a list of this kind has come.
    pub(super) is_there: watch::Sender<bool>,
    /// Tells when a kind is there without which nothing is asked for.
    pub(super) needs: Option<watch::Receiver<bool>>,
}

/// What the loop remembers of its failures.
#[derive(Debug, Default)]
struct Failures {
    pace: Pace,
    stuck: Stuck,
    /// Refusals in a row.
    refusals: u32,
    /// Answers since the last list that the cluster does not have the kind.
    absences: u32,
    /// Whether it has been logged that the watch goes badly.
    is_told: bool,
}

impl Failures {
    /// How long it is until the next request. A list that is needed because a watch's version is gone follows at once,
    /// as far as [`Pace::turn`] grants it.
    fn wait(&mut self, ending: &Ending, was_watch: bool, lived: Duration, spread: Duration) -> Duration {
        if matches!(ending, Ending::Questioned) {
            return pace::part(spread, chance());
        }
        let paced = self.pace.wait(lived, ending.retry_after(), spread, chance());
        let turns = ending.is_gone() && was_watch && self.pace.turn();
        if turns { Duration::ZERO } else { paced }
    }

    /// Counts an ending; returns how many refusals in a row there were with it.
    fn refused(&mut self, ending: &Ending) -> u32 {
        self.refusals = if ending.is_refusal() { self.refusals.saturating_add(1) } else { 0 };
        self.refusals
    }
}

/// Why a list or a watch stopped: for a reason of its own, or because the receiver is gone.
#[derive(Debug)]
enum Stop {
    Ending(Ending),
    Closed,
}

impl From<Ending> for Stop {
    fn from(ending: Ending) -> Self {
        Self::Ending(ending)
    }
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl Reflector {
    /// Runs until the engine takes no more events.
    pub(super) async fn run(mut self) -> Closed {
        let mut failures = Failures::default();
        if let Some(mut needed) = self.needs.take() {
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
                Some(Stop::Closed) => Err(Closed),
                None => {
                    (failures.refusals, failures.absences) = (0, 0);
                    self.recovered(&mut failures);
                    Ok(())
                }
                // A list that took long and failed has achieved nothing.
                Some(Stop::Ending(ending)) => {
                    let lived = from.as_ref().map_or(Duration::ZERO, |_| begun.elapsed());
                    self.ended(&ending, from.as_ref(), lived, &mut failures).await
                }
            };
            if went_on.is_err() {
                return Closed;
            }
        }
    }

    /// Decides what follows from an ending, says so, and waits.
    async fn ended(
        &mut self,
        ending: &Ending,
        from: Option<&Arc<str>>,
        lived: Duration,
        failures: &mut Failures,
    ) -> Result<(), Closed> {
        let has_moved = self.version.as_ref() != from;
        if has_moved {
            self.recovered(failures);
        }
        // An answer that is one only if the server knows the newest version.
        self.is_doubtful = !self.is_normal(ending, lived) || matches!(ending, Ending::Questioned);
        self.heed(ending);
        // A watch that has had its time ends at another moment on each node.
        let is_due = self.is_normal(ending, lived) && lived >= self.timing.watch_length;
        let nodes = if is_due { Nodes::default() } else { self.crowd.nodes() };
        let mut wait = failures.wait(ending, from.is_some(), lived, nodes.begin());
        if failures.stuck.needs_list(ending, has_moved) && self.version.take().is_some() {
            wait += pace::part(self.timing.list_spread.max(nodes.list()), chance());
        }
        let refusals = failures.refused(ending);
        let is_node = self.selection.what == Resource::Node;
        if is_node {
            if refusals >= REFUSALS_MIN {
                wait = wait.max(self.timing.node_wait);
                self.no_node().await?;
            }
            self.outlet.zone_is_known();
        }
        if self.is_absence(ending) {
            failures.absences = failures.absences.saturating_add(1);
            self.version = None;
            wait = self.absent((wait, from.is_none()), (refusals, failures.absences)).await?;
        }
        self.turn_version(ending);
        // Nothing of the table comes from the Node, so nothing of it can be missing.
        if self.say(ending, lived, failures) && !is_node {
            self.outlet.interrupted().await?;
            self.heard(false).await?;
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Falls back to JSON if the encoding of the last answer may be to blame for this ending.
    fn heed(&self, ending: &Ending) {
        let encoding = self.view.borrow().encoding;
        self.offer.heed(self.selection.what, encoding, ending, self.timing.doubted);
    }

    /// Logs that the Node object cannot be read. It gives zone and addresses; services are served without them too.
    fn say_no_node(&self, reason: &dyn std::fmt::Display) {
        tracing::warn!(
            %reason,
            "this node's Node object cannot be read: hints for zones need `zone` under [node], and NodePorts answer at \
             the address that the host prefers"
        );
    }

    /// Reports that the Node object may not be read, or that there is none. The host's own choice of addresses counts
    /// from now on, and not what a former process knew.
    async fn no_node(&self) -> Result<(), Closed> {
        if self.is_without_node() { self.outlet.tell_of_node(None).await } else { Ok(()) }
    }

    /// Whether this is the loop of the Node object, and no Node has come yet.
    fn is_without_node(&self) -> bool {
        self.selection.what == Resource::Node && self.delivered.lock().len() == 0
    }

    /// Whether a watch has ended as all of them should.
    fn is_normal(&self, ending: &Ending, lived: Duration) -> bool {
        matches!(ending, Ending::Over) && lived >= self.timing.watch_short
            || matches!(ending, Ending::Questioned)
    }

    /// Shows and logs an ending if it is not a normal one; returns whether it was not.
    fn say(&self, ending: &Ending, lived: Duration, failures: &mut Failures) -> bool {
        if self.is_normal(ending, lived) {
            return false;
        }
        if self.is_absence(ending) && self.delivered.lock().len() == 0 {
            self.say_absent(ending, std::mem::replace(&mut failures.is_told, true));
            return false;
        }
        self.view.send_modify(|view| {
            view.enter(State::Waiting);
            view.restarts += 1;
            view.failed(ending);
        });
        let what = self.selection.what;
        let is_news = matches!(ending, Ending::Rewound { .. });
        if std::mem::replace(&mut failures.is_told, true) && !is_news {
            tracing::debug!(watch = %what, error = %ending, "still not watching");
        } else if self.is_without_node() {
            self.say_no_node(ending);
        } else {
            tracing::warn!(watch = %what, error = %ending, "the watch was interrupted; what is known stays");
        }
        true
    }

    /// Logs that the watch goes well again, as an answer has shown, if the log said that it goes badly.
    fn recovered(&self, failures: &mut Failures) {
        match (std::mem::take(&mut failures.is_told), self.selection.what) {
            (false, _) => {}
            (true, Resource::Node) => tracing::info!("this node's Node object can be read again"),
            (true, Resource::Imports) => tracing::info!("the cluster's ServiceImports can be read"),
            (true, what) => tracing::info!(watch = %what, "watching again"),
        }
    }

    /// The answer, if the server accepted the request; or why it did not, and the connection if that is free for
    /// another request.
    async fn accepted(&self, reply: Reply) -> Result<Reply, (Ending, Option<Connection>)> {
        self.view.send_modify(|view| {
            view.endpoint = Some(Arc::clone(&reply.endpoint));
            view.encoding = Some(reply.encoding);
            // A refusal brings no news of objects.
            if reply.status == 200 {
                view.heard = Some(Instant::now());
            }
        });
        if reply.status == 200 {
            return Ok(reply);
        }
        let code = reply.status;
        let (retry_after, encoding) = (reply.retry_after, reply.encoding);
        let (body, kept) = reply.beginning(REFUSAL_BYTES_MAX, self.timing.refusal).await;
        let status = match encoding {
            Encoding::Json => Json::status(&body),
            Encoding::Protobuf => Protobuf::status(&body),
        };
        Err((Ending::Refused { status: Status::of_refusal(code, status, &body), retry_after }, kept.ok()))
    }

    /// Whether endpoints are told of now: without them a held list waits for what mends it.
    async fn heard(&mut self, is_heard: bool) -> Result<(), Closed> {
        if self.selection.what.is_of_endpoints() { self.outlet.heard(is_heard).await } else { Ok(()) }
    }

    /// Answers the question to which the watch or the list under way is an answer.
    async fn answer(&mut self) -> Result<(), Closed> {
        match self.questions.answer() {
            Some(question) => self.outlet.answer(question).await,
            None => Ok(()),
        }
    }

    /// Hands a group over. What a restart has to know of it beside the table is in `delivered` by now.
    async fn deliver(&mut self, messages: Vec<Message>) -> Result<(), Closed> {
        self.outlet.deliver(messages).await
    }

    /// Shows where the loop stands, and what else has changed.
    fn show(&self, change: impl FnOnce(&mut Watch)) {
        let (objects, bad) = {
            let delivered = self.delivered.lock();
            (delivered.len(), delivered.bad())
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
