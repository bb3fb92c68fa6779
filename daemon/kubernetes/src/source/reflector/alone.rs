//! Objects that cannot be read as they are encoded: each is asked for once more, alone and as JSON, and judged by that.
//!
//! Invariant: a doubtful object costs no other one anything but a bounded wait. Where one cannot be had alone, or there
//! are so many that the encoding is to blame and not they, the whole kind is asked for as JSON; where that may not be,
//! they are rejected by name as any object is that cannot be understood. One that is too large to be read is had: it is
//! rejected by name, and speaks against no encoding.

use holdfast_core::keys::ObjectName;
use tokio::time::{Instant, timeout_at};

use super::Reflector;
use crate::apiserver::{Connection, Trouble};
use crate::source::codec::{self, Codec, Json};
use crate::source::ending::Ending;
use crate::source::object::Object;
use crate::source::offer;
use crate::source::piece::{PIECE_BYTES_MAX, TooLong};

/// How many objects of one answer are asked for alone: each is a request. Nothing is known that makes even one
/// doubtful, so more of them speak against the encoding.
const ALONE_MAX: usize = 16;

/// The doubtful objects of one answer, as they are rejected if nothing else helps.
#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<Object>);

impl Doubts {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, object: Object) {
        self.0.push(object);
    }

    /// Forgets an object of which something later is known.
    pub(super) fn forget(&mut self, later: &Object) {
        if let (Some((name, _)), false) = (&later.name, self.0.is_empty()) {
            self.0.retain(|doubt| doubt.name.as_ref().is_none_or(|(it, _)| it != name));
        }
    }
}

/// What became of an object that was asked for alone.
pub(super) enum Alone {
    Read(Object),
    /// There is no object of this name any more; the watch tells that too.
    Gone,
    Unanswered,
}

impl Reflector {
    /// What is told of doubtful objects: what JSON says of each, or that it is rejected.
    pub(super) async fn resolved(&self, doubts: Doubts) -> Result<Vec<Object>, Ending> {
        let deadline = Instant::now() + self.timing.alone;
        let (count, mut told, mut unanswered, mut kept) = (doubts.0.len(), Vec::new(), 0, None);
        for doubt in doubts.0 {
            let alone = match &doubt.name {
                Some((name, _)) if count <= ALONE_MAX => {
                    timeout_at(deadline, self.alone(name, &doubt, &mut kept))
                        .await
                        .unwrap_or(Alone::Unanswered)
                }
                _ => Alone::Unanswered,
            };
            match alone {
                Alone::Read(object) => told.push(object),
                Alone::Gone => {}
                Alone::Unanswered => {
                    unanswered += 1;
                    told.push(doubt);
                }
            }
        }
        if unanswered > 0 && self.offer.may_fall_back() {
            Err(Ending::Doubtful(unanswered))
        } else {
            Ok(told)
        }
    }

    async fn alone(&self, name: &ObjectName, doubt: &Object, kept: &mut Option<Connection>) -> Alone {
        let reason = doubt.rejection().map(|it| &*it.reason).unwrap_or_default();
        tracing::debug!(watch = %self.selection.what, object = %name, reason, "an object is asked for alone, as JSON");
        self.view.send_modify(|view| view.alone += 1);
        self.one(name, kept).await
    }

    /// One object as JSON, over the connection that is kept if there is one.
    pub(super) async fn one(&self, name: &ObjectName, kept: &mut Option<Connection>) -> Alone {
        let query = self.selection.now().object(name);
        let asked = self.access.get_as(offer::JSON, &query, kept.take()).await;
        let Ok(reply) = asked else { return Alone::Unanswered };
        let (status, provenance) = (reply.status, self.provenance(&reply.endpoint));
        let (body, rest) = reply.beginning(PIECE_BYTES_MAX, self.timing.list_idle).await;
        let is_too_large = matches!(rest, Err(Trouble::TooLarge(_)));
        *kept = rest.ok();
        let is_it = |object: &Object| object.name.as_ref().is_some_and(|(it, _)| it == name);
        let what = self.selection.what;
        let object = match status {
            404 => return Alone::Gone,
            200 if kept.is_some() => Json::read(what, &body, &provenance),
            // A list as JSON would have it cut too.
            200 if is_too_large => codec::refuse(what, Json::peek(&body), &TooLong, &provenance),
            _ => return Alone::Unanswered,
        };
        Some(object).filter(is_it).map_or(Alone::Unanswered, Alone::Read)
    }
}
