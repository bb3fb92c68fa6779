//! The watch: what each chunk brings is one group.
//!
//! Invariant: the version moves with each event and each bookmark; an event that cannot be read moves it too, if it
//! says which version it is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::alone::Doubts;
use super::{Reflector, Stop};
use crate::apiserver::{Encoding, Reply};
use crate::source::codec::{self, Codec, Frame, Framer, Json, NoFrame, Protobuf};
use crate::source::delivered::Delivered;
use crate::source::ending::Ending;
use crate::source::object::{Message, Object};
use crate::source::pace;
use crate::source::piece::{Piece, TooLong};
use crate::source::resource::Resource;
use crate::source::version::Version;
use crate::source::view::State;
use holdfast_objects::Provenance;

/// What is wrong with a deletion that does not name its object.
const NOBODY: &str = "it deletes an object without a name";

/// When something about a watch ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    /// The watch itself.
    deadline: Instant,
    /// The silence after an interruption that proves nothing.
    doubt: Instant,
    /// What a watch that goes on where another daemon was may tell before it counts as up to date.
    replay: Instant,
}

/// What one chunk brought.
#[derive(Debug, Default)]
struct Batch {
    messages: Vec<Message>,
    version: Option<Arc<str>>,
    events: u64,
    ending: Option<Ending>,
    /// All up to the version has come: the server says so by itself.
    is_marked: bool,
    /// Objects that cannot be read as they are encoded.
    doubts: Doubts,
}

impl Reflector {
    /// Reads changes until something ends the watch.
    pub(super) async fn watch(&mut self, version: &str) -> Stop {
        self.hear(version).await.err().unwrap_or(Stop::Ending(Ending::Over))
    }

    async fn hear(&mut self, version: &str) -> Result<(), Stop> {
        let length = self.timing.watch_length + pace::part(self.timing.watch_length / 4, pace::chance());
        let query = self.selection.now().watch(version, length.as_secs().max(1));
        let was_away = self.was_away();
        self.questions.begin();
        let reply = self.access.get_as(self.offer.objects(), &query, None).await.map_err(Ending::Away)?;
        let reply = self.accepted(reply).await.map_err(|(ending, _)| ending)?;
        self.view.send_modify(|view| view.enter(State::Watching));
        self.heard(true).await?;
        if was_away {
            self.is_from_long_ago = false;
            self.returned.notify_one();
        }
        let deadline = Instant::now() + length + self.timing.watch_overrun;
        match reply.encoding {
            Encoding::Json => self.follow::<Json>(reply, deadline).await,
            Encoding::Protobuf => self.follow::<Protobuf>(reply, deadline).await,
        }
    }

    async fn follow<C: Codec>(&mut self, mut reply: Reply, deadline: Instant) -> Result<(), Stop> {
        let provenance = self.provenance(&reply.endpoint);
        let now = Instant::now();
        let doubt = if self.questions.is_pending() { self.timing.quiet } else { self.timing.doubt };
        let ends = Ends { deadline, doubt: now + doubt, replay: now + self.timing.replay_max };
        let mut frames = C::Frames::default();
        while let Some(chunk) = self.next(&mut reply, &ends).await? {
            let batch = self.batch::<C>(&mut frames, &chunk, &provenance);
            self.hand_over(batch).await?;
        }
        Ok(())
    }

    /// The next chunk. A watch that goes on where another daemon was counts as up to date once it was quiet for a
    /// moment, or when what it missed goes on for long; and so does one that began because the engine asks.
    async fn next(&mut self, reply: &mut Reply, ends: &Ends) -> Result<Option<Bytes>, Stop> {
        let idle = self.timing.watch_idle;
        if self.outlet.is_awaited() {
            if Instant::now() < ends.replay
                && let Ok(missed) = timeout(self.timing.quiet, chunk(reply, idle)).await
            {
                return Ok(missed?);
            }
            self.outlet.arrived().await?;
            self.show(|_| ());
        }
        if self.is_doubtful {
            if let Ok(first) = timeout_at(ends.doubt, chunk(reply, idle)).await {
                return Ok(first?);
            }
            self.ask_for_newest().await?;
        }
        if self.questions.is_pending() {
            if Instant::now() < ends.replay
                && let Ok(missed) = timeout(self.timing.quiet, chunk(reply, idle)).await
            {
                return Ok(missed?);
            }
            self.answer().await?;
        }
        tokio::select! {
            chunk = chunk(reply, idle) => Ok(chunk?),
            Some(ending) = self.endings.recv() => Err(ending.into()),
            () = self.questions.asked() => Err(Ending::Questioned.into()),
            () = sleep_until(ends.deadline) => Err(Ending::Overrun.into()),
        }
    }

    fn batch<C: Codec>(&self, frames: &mut C::Frames, chunk: &[u8], provenance: &Provenance) -> Batch {
        let mut batch = Batch::default();
        let what = self.selection.what;
        let mut delivered = self.delivered.lock();
        frames.take(chunk, &mut |piece| batch.take::<C>(&mut delivered, what, piece, provenance));
        batch
    }

    async fn hand_over(&mut self, batch: Batch) -> Result<(), Stop> {
        let Batch { mut messages, version, mut events, ending, is_marked, doubts } = batch;
        if !doubts.is_empty() {
            // Nothing else waits for them, or is lost if they cannot be had; only the version does not move yet.
            self.deliver(std::mem::take(&mut messages)).await?;
            for object in self.resolved(doubts).await? {
                if self.delivered.lock().apply(&object) {
                    events += 1;
                    messages.extend(object.messages);
                }
            }
        }
        messages.extend(version.as_ref().and_then(|version| Message::progress(self.selection.what, version)));
        self.deliver(messages).await?;
        if version.is_some() {
            (self.version, self.reached, self.is_doubtful) = (version.clone(), version, false);
        }
        if is_marked {
            self.outlet.arrived().await?;
        }
        self.show(|view| {
            view.heard = Some(std::time::Instant::now());
            view.events += events;
        });
        ending.map_or(Ok(()), |ending| Err(ending.into()))
    }
}

async fn chunk(reply: &mut Reply, idle: Duration) -> Result<Option<Bytes>, Ending> {
    reply.chunk(idle).await.map_err(|error| Ending::of_body(error, idle))
}

/// Whether this very object is known: an event that cannot be read to its end may be wrong before that too.
fn is_known(delivered: &Delivered, object: &Object) -> bool {
    let known =
        |(name, version): &(_, Version)| delivered.version(name).is_some_and(|it| it.uid == version.uid);
    object.name.as_ref().is_some_and(known)
}

impl Batch {
    /// Takes a line in. A line that cannot be read counts against the object that it names. Where it does not say what
    /// happened to which object, the watch itself is wrong: it is begun again from before the line, and if that does
    /// not help, a list follows.
    fn take<C: Codec>(
        &mut self,
        delivered: &mut Delivered,
        what: Resource,
        piece: Piece<'_>,
        provenance: &Provenance,
    ) {
        let frame = match piece {
            _ if self.ending.is_some() => return,
            Piece::Whole(bytes) => C::frame(bytes),
            Piece::Cut(_) => Err(NoFrame(TooLong.to_string())),
        };
        match frame {
            Ok(Frame::Applied(bytes)) => match C::read(what, bytes, provenance) {
                object if object.is_doubtful => self.doubt(object),
                object => self.apply(delivered, object),
            },
            Ok(Frame::Deleted(bytes)) => match C::read(what, bytes, provenance) {
                Object { name: None, .. } => self.ending = Some(NoFrame(NOBODY.to_owned()).into()),
                object => self.delete(delivered, what, &object),
            },
            Ok(Frame::Bookmark(version)) => (self.version, self.is_marked) = (Some(version.into()), true),
            Ok(Frame::Failed(status)) => self.ending = Some(Ending::Failed(status)),
            Err(none) => {
                let glimpse = C::glimpse(piece.bytes());
                let is_deletion = glimpse.is_deletion();
                let object = codec::refuse(what, glimpse.identity, &none, provenance);
                match is_deletion {
                    Some(false) if object.name.is_some() => self.apply(delivered, object),
                    Some(true) if is_known(delivered, &object) => self.delete(delivered, what, &object),
                    _ => self.ending = Some(none.into()),
                }
            }
        }
    }

    fn doubt(&mut self, object: Object) {
        self.advance(&object);
        self.doubts.forget(&object);
        self.doubts.push(object);
    }

    fn apply(&mut self, delivered: &mut Delivered, object: Object) {
        self.advance(&object);
        self.doubts.forget(&object);
        if delivered.apply(&object) {
            self.events += 1;
            self.messages.extend(object.messages);
        }
    }

    fn delete(&mut self, delivered: &mut Delivered, what: Resource, object: &Object) {
        self.advance(object);
        self.doubts.forget(object);
        if let Some((name, _)) = object.name.as_ref().filter(|(name, gone)| delivered.remove(name, gone)) {
            self.events += 1;
            self.messages.extend(Message::gone(what, name, object.meta().cloned()));
        }
    }

    fn advance(&mut self, object: &Object) {
        let version = object.name.as_ref().map(|(_, version)| &version.resource_version);
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.version = Some(Arc::clone(version));
        }
    }
}
