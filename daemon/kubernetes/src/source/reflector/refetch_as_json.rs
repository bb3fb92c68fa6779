//! Objects that cannot be read as they are encoded: each is asked for once more, alone and as JSON, and judged by that.
//!
//! Invariant: a doubtful object costs no other one anything but a bounded wait. Where one cannot be had alone, or there
//! are so many that the encoding is to blame and not they, the whole kind is asked for as JSON; where that may not be,
//! they are rejected by name as any object is that cannot be understood. One that is too large to be read is had: it is
//! rejected by name, and speaks against no encoding.

use holdfast_core::keys::ObjectName;
use tokio::time::{Instant, timeout_at};

use super::Reflector;
use crate::apiserver::{Connection, EndpointError};
use crate::source::accepted_encodings;
use crate::source::codec::{self, Codec, Json};
use crate::source::object::Object;
use crate::source::piece::{PIECE_BYTES_MAX, PieceTooLong};
use crate::source::watch_error::WatchError;

/// How many objects of one answer are asked for alone: each is a request. Nothing is known that makes even one
/// doubtful, so more of them speak against the encoding.
const REFETCH_MAX: usize = 16;

/// The doubtful objects of one answer, as they are rejected if nothing else helps.
#[derive(Debug, Default)]
pub(super) struct DoubtfulObjects(Vec<Object>);

impl DoubtfulObjects {
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
pub(super) enum RefetchOutcome {
    Read(Object),
    /// There is no object of this name any more; the watch tells that too.
    Gone,
    Unanswered,
}

impl Reflector {
    /// What is told of doubtful objects: what JSON says of each, or that it is rejected.
    pub(super) async fn resolve_doubtful(&self, doubts: DoubtfulObjects) -> Result<Vec<Object>, WatchError> {
        let deadline = Instant::now() + self.timing.refetch_timeout;
        let (count, mut told, mut unanswered, mut kept) = (doubts.0.len(), Vec::new(), 0, None);
        for doubt in doubts.0 {
            let alone = match &doubt.name {
                Some((name, _)) if count <= REFETCH_MAX => {
                    timeout_at(deadline, self.refetch_object(name, &doubt, &mut kept))
                        .await
                        .unwrap_or(RefetchOutcome::Unanswered)
                }
                _ => RefetchOutcome::Unanswered,
            };
            match alone {
                RefetchOutcome::Read(object) => told.push(object),
                RefetchOutcome::Gone => {}
                RefetchOutcome::Unanswered => {
                    unanswered += 1;
                    told.push(doubt);
                }
            }
        }
        if unanswered > 0 && self.encodings.can_fall_back() {
            Err(WatchError::Doubtful(unanswered))
        } else {
            Ok(told)
        }
    }

    async fn refetch_object(
        &self,
        name: &ObjectName,
        doubt: &Object,
        kept: &mut Option<Connection>,
    ) -> RefetchOutcome {
        let reason = doubt.rejection().map(|it| &*it.reason).unwrap_or_default();
        tracing::debug!(watch = %self.selection.what, object = %name, reason, "an object is asked for alone, as JSON");
        self.view.send_modify(|view| view.refetched += 1);
        self.fetch_object(name, kept).await
    }

    /// One object as JSON, over the connection that is kept if there is one.
    pub(super) async fn fetch_object(
        &self,
        name: &ObjectName,
        kept: &mut Option<Connection>,
    ) -> RefetchOutcome {
        let query = self.selection.current().object_path(name);
        let asked = self.access.get_as(accepted_encodings::JSON, &query, kept.take()).await;
        let Ok(reply) = asked else { return RefetchOutcome::Unanswered };
        let (status, provenance) = (reply.status, self.provenance(&reply.endpoint));
        let (body, rest) = reply.read_beginning(PIECE_BYTES_MAX, self.timing.list_idle).await;
        let is_too_large = matches!(rest, Err(EndpointError::TooLarge(_)));
        *kept = rest.ok();
        let is_it = |object: &Object| object.name.as_ref().is_some_and(|(it, _)| it == name);
        let what = self.selection.what;
        let object = match status {
            404 => return RefetchOutcome::Gone,
            200 if kept.is_some() => Json::parse_object(what, &body, &provenance),
            // A list as JSON would have it cut too.
            200 if is_too_large => {
                codec::reject_object(what, Json::peek_identity(&body), &PieceTooLong, &provenance)
            }
            _ => return RefetchOutcome::Unanswered,
        };
        Some(object).filter(is_it).map_or(RefetchOutcome::Unanswered, RefetchOutcome::Read)
    }
}
