//! Reads a watch: each chunk is one group.
//!
//! Invariant: the version advances with each event and each bookmark, and with an unreadable event that names its
//! version.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::refetch_as_json::DoubtfulObjects;
use super::{Reflector, StopCause};
use crate::apiserver::{Encoding, Reply};
use crate::source::backoff;
use crate::source::codec::{self, Codec, FrameError, Framer, Json, Protobuf, WatchFrame};
use crate::source::object::{Object, SinkMessage};
use crate::source::object_cache::ObjectCache;
use crate::source::piece::{Piece, PieceTooLong};
use crate::source::resource::Resource;
use crate::source::version::Version;
use crate::source::view::State;
use crate::source::watch_error::WatchError;
use holdfast_objects::Provenance;

/// The error of a deletion that does not name its object.
const NAMELESS_DELETION: &str = "it deletes an object without a name";

/// The deadlines of a watch.
#[derive(Clone, Copy, Debug)]
struct WatchDeadlines {
    /// Of the watch itself.
    deadline: Instant,
    /// When silence after an interruption makes us ask for the version.
    rewind_check: Instant,
    /// When a resumed watch counts as up to date even if events keep coming.
    replay: Instant,
}

/// The content of one chunk.
#[derive(Debug, Default)]
struct Batch {
    messages: Vec<SinkMessage>,
    version: Option<Arc<str>>,
    events: u64,
    error: Option<WatchError>,
    /// The server confirmed that everything up to the version has come.
    has_bookmark: bool,
    /// Objects that are unreadable in their encoding.
    doubtful: DoubtfulObjects,
}

impl Reflector {
    /// Reads changes until the watch ends.
    pub(super) async fn watch(&mut self, version: &str) -> StopCause {
        self.open_watch(version).await.err().unwrap_or(StopCause::Error(WatchError::Ended))
    }

    async fn open_watch(&mut self, version: &str) -> Result<(), StopCause> {
        let length = self.timing.watch_length
            + backoff::random_part(self.timing.watch_length / 4, backoff::random_chance());
        let query = self.selection.current().watch_path(version, length.as_secs().max(1));
        let was_away = self.was_away();
        self.freshness.begin_request();
        let reply = self
            .access
            .get_as(self.encodings.object_accept(), &query, None)
            .await
            .map_err(WatchError::Unreachable)?;
        let reply = self.check_reply(reply).await.map_err(|(ending, _)| ending)?;
        self.view.send_modify(|view| view.set_state(State::Watching));
        self.report_watching(true).await?;
        if was_away {
            self.is_start_stale = false;
            self.long_absence_ended.notify_one();
        }
        let deadline = Instant::now() + length + self.timing.watch_overrun;
        match reply.encoding {
            Encoding::Json => self.read_stream::<Json>(reply, deadline).await,
            Encoding::Protobuf => self.read_stream::<Protobuf>(reply, deadline).await,
        }
    }

    async fn read_stream<C: Codec>(&mut self, mut reply: Reply, deadline: Instant) -> Result<(), StopCause> {
        let provenance = self.provenance(&reply.endpoint);
        let now = Instant::now();
        let doubt = if self.freshness.is_pending() {
            self.timing.replay_quiet
        } else {
            self.timing.rewind_check_delay
        };
        let ends =
            WatchDeadlines { deadline, rewind_check: now + doubt, replay: now + self.timing.replay_max };
        let mut frames = C::Frames::default();
        while let Some(chunk) = self.next_chunk(&mut reply, &ends).await? {
            let batch = self.read_batch::<C>(&mut frames, &chunk, &provenance);
            self.deliver_batch(batch).await?;
        }
        Ok(())
    }

    /// Reads the next chunk. A watch that was resumed, or restarted for the engine's question, counts as up to date
    /// after a moment of quiet or at [`WatchDeadlines::replay`].
    async fn next_chunk(
        &mut self,
        reply: &mut Reply,
        ends: &WatchDeadlines,
    ) -> Result<Option<Bytes>, StopCause> {
        let idle = self.timing.watch_idle;
        if self.sink.is_syncing() {
            if Instant::now() < ends.replay
                && let Ok(missed) = timeout(self.timing.replay_quiet, read_chunk(reply, idle)).await
            {
                return Ok(missed?);
            }
            self.sink.complete_initial_list().await?;
            self.update_view(|_| ());
        }
        if self.is_version_suspect {
            if let Ok(first) = timeout_at(ends.rewind_check, read_chunk(reply, idle)).await {
                return Ok(first?);
            }
            self.query_newest_version().await?;
        }
        if self.freshness.is_pending() {
            if Instant::now() < ends.replay
                && let Ok(missed) = timeout(self.timing.replay_quiet, read_chunk(reply, idle)).await
            {
                return Ok(missed?);
            }
            self.answer_query().await?;
        }
        tokio::select! {
            chunk = read_chunk(reply, idle) => Ok(chunk?),
            Some(ending) = self.relist_requests.recv() => Err(ending.into()),
            () = self.freshness.wait_for_query() => Err(WatchError::FreshnessRequested.into()),
            () = sleep_until(ends.deadline) => Err(WatchError::Overrun.into()),
        }
    }

    fn read_batch<C: Codec>(&self, frames: &mut C::Frames, chunk: &[u8], provenance: &Provenance) -> Batch {
        let mut batch = Batch::default();
        let what = self.selection.what;
        let mut delivered = self.cache.lock();
        frames.push_chunk(chunk, &mut |piece| batch.take_frame::<C>(&mut delivered, what, piece, provenance));
        batch
    }

    async fn deliver_batch(&mut self, batch: Batch) -> Result<(), StopCause> {
        let Batch { mut messages, version, mut events, error, has_bookmark, doubtful } = batch;
        if !doubtful.is_empty() {
            // The other events neither wait for them nor get lost with them; only the version stays.
            self.deliver(std::mem::take(&mut messages)).await?;
            for object in self.resolve_doubtful(doubtful).await? {
                if self.cache.lock().apply_object(&object) {
                    events += 1;
                    messages.extend(object.messages);
                }
            }
        }
        messages
            .extend(version.as_ref().and_then(|version| SinkMessage::progress(self.selection.what, version)));
        self.deliver(messages).await?;
        if version.is_some() {
            (self.version, self.latest_version, self.is_version_suspect) = (version.clone(), version, false);
        }
        if has_bookmark {
            self.sink.complete_initial_list().await?;
        }
        self.update_view(|view| {
            view.last_received = Some(std::time::Instant::now());
            view.events += events;
        });
        error.map_or(Ok(()), |error| Err(error.into()))
    }
}

async fn read_chunk(reply: &mut Reply, idle: Duration) -> Result<Option<Bytes>, WatchError> {
    reply.next_chunk(idle).await.map_err(|error| WatchError::from_body(error, idle))
}

/// Whether this very object is known: an event with an unreadable end may be wrong earlier too.
fn is_known_object(delivered: &ObjectCache, object: &Object) -> bool {
    let known =
        |(name, version): &(_, Version)| delivered.version(name).is_some_and(|it| it.uid == version.uid);
    object.name.as_ref().is_some_and(known)
}

impl Batch {
    /// Applies one frame. An unreadable one is an error of the object that it names. If it does not tell what happened
    /// to which object, the watch fails: it restarts from before the frame, and then a list follows.
    fn take_frame<C: Codec>(
        &mut self,
        delivered: &mut ObjectCache,
        what: Resource,
        piece: Piece<'_>,
        provenance: &Provenance,
    ) {
        let frame = match piece {
            _ if self.error.is_some() => return,
            Piece::Whole(bytes) => C::parse_frame(bytes),
            Piece::Cut(_) => Err(FrameError(PieceTooLong.to_string())),
        };
        match frame {
            Ok(WatchFrame::Applied(bytes)) => match C::parse_object(what, bytes, provenance) {
                object if object.is_doubtful => self.add_doubtful(object),
                object => self.apply_object(delivered, object),
            },
            Ok(WatchFrame::Deleted(bytes)) => match C::parse_object(what, bytes, provenance) {
                Object { name: None, .. } => {
                    self.error = Some(FrameError(NAMELESS_DELETION.to_owned()).into());
                }
                object => self.delete_object(delivered, what, &object),
            },
            Ok(WatchFrame::Bookmark(version)) => {
                (self.version, self.has_bookmark) = (Some(version.into()), true);
            }
            Ok(WatchFrame::Failed(status)) => self.error = Some(WatchError::Failed(status)),
            Err(error) => {
                let peek = C::peek_event(piece.bytes());
                let is_deletion = peek.is_deletion();
                let object = codec::reject_object(what, peek.identity, &error, provenance);
                match is_deletion {
                    Some(false) if object.name.is_some() => self.apply_object(delivered, object),
                    Some(true) if is_known_object(delivered, &object) => {
                        self.delete_object(delivered, what, &object);
                    }
                    _ => self.error = Some(error.into()),
                }
            }
        }
    }

    fn add_doubtful(&mut self, object: Object) {
        self.advance_version(&object);
        self.doubtful.forget(&object);
        self.doubtful.push(object);
    }

    fn apply_object(&mut self, delivered: &mut ObjectCache, object: Object) {
        self.advance_version(&object);
        self.doubtful.forget(&object);
        if delivered.apply_object(&object) {
            self.events += 1;
            self.messages.extend(object.messages);
        }
    }

    fn delete_object(&mut self, delivered: &mut ObjectCache, what: Resource, object: &Object) {
        self.advance_version(object);
        self.doubtful.forget(object);
        if let Some((name, _)) =
            object.name.as_ref().filter(|(name, gone)| delivered.remove_object(name, gone))
        {
            self.events += 1;
            self.messages.extend(SinkMessage::deletion(what, name, object.meta().cloned()));
        }
    }

    fn advance_version(&mut self, object: &Object) {
        let version = object.name.as_ref().map(|(_, version)| &version.resource_version);
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.version = Some(Arc::clone(version));
        }
    }
}
