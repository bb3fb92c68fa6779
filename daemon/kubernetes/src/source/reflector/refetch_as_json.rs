//! Refetches objects that are unreadable in their encoding, one by one as JSON.
//!
//! Invariant: a doubtful object costs the others only a bounded wait. If a refetch fails, or so many are doubtful that
//! the encoding is to blame, the whole kind is requested as JSON; if the configuration forbids that, they are rejected
//! by name. An object that is too large counts as fetched: it is rejected by name and does not incriminate the
//! encoding.

use holdfast_core::keys::ObjectName;
use tokio::time::{Instant, timeout_at};

use super::Reflector;
use crate::apiserver::{Connection, EndpointError};
use crate::source::accepted_encodings;
use crate::source::codec::{self, Codec, Json};
use crate::source::object::Object;
use crate::source::piece::{PIECE_BYTES_MAX, PieceTooLong};
use crate::source::watch_error::WatchError;

/// The most objects of one reply to refetch: each is a request. No cause of even one is known, so more of them
/// incriminate the encoding.
const REFETCH_MAX: usize = 16;

/// The doubtful objects of one reply, each with its rejection as the last resort.
#[derive(Debug, Default)]
pub(super) struct DoubtfulObjects(Vec<Object>);

impl DoubtfulObjects {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, object: Object) {
        self.0.push(object);
    }

    /// Drops an object of which a later version is known.
    pub(super) fn forget(&mut self, later: &Object) {
        if let (Some((name, _)), false) = (&later.name, self.0.is_empty()) {
            self.0.retain(|doubt| doubt.name.as_ref().is_none_or(|(it, _)| it != name));
        }
    }
}

/// The result of a refetch.
pub(super) enum RefetchOutcome {
    Read(Object),
    /// The object is gone, which the watch reports too.
    Gone,
    Unanswered,
}

impl Reflector {
    /// Resolves doubtful objects: each is read as JSON or rejected.
    pub(super) async fn resolve_doubtful(
        &self,
        doubtful: DoubtfulObjects,
    ) -> Result<Vec<Object>, WatchError> {
        let deadline = Instant::now() + self.timing.refetch_timeout;
        let (count, mut resolved, mut unanswered, mut kept) = (doubtful.0.len(), Vec::new(), 0, None);
        for doubt in doubtful.0 {
            let alone = match &doubt.name {
                Some((name, _)) if count <= REFETCH_MAX => {
                    timeout_at(deadline, self.refetch_object(name, &doubt, &mut kept))
                        .await
                        .unwrap_or(RefetchOutcome::Unanswered)
                }
                _ => RefetchOutcome::Unanswered,
            };
            match alone {
                RefetchOutcome::Read(object) => resolved.push(object),
                RefetchOutcome::Gone => {}
                RefetchOutcome::Unanswered => {
                    unanswered += 1;
                    resolved.push(doubt);
                }
            }
        }
        if unanswered > 0 && self.encodings.can_fall_back() {
            Err(WatchError::Doubtful(unanswered))
        } else {
            Ok(resolved)
        }
    }

    async fn refetch_object(
        &self,
        name: &ObjectName,
        doubt: &Object,
        kept: &mut Option<Connection>,
    ) -> RefetchOutcome {
        let reason = doubt.rejection().map(|it| &*it.reason).unwrap_or_default();
        tracing::debug!(watch = %self.selection.what, object = %name, reason, "refetching an object as JSON");
        self.view.send_modify(|view| view.refetched += 1);
        self.fetch_object(name, kept).await
    }

    /// Fetches one object as JSON, over `kept` if it is some.
    pub(super) async fn fetch_object(
        &self,
        name: &ObjectName,
        kept: &mut Option<Connection>,
    ) -> RefetchOutcome {
        let query = self.selection.current().object_path(name);
        let result = self.access.get_as(accepted_encodings::JSON, &query, kept.take()).await;
        let Ok(reply) = result else { return RefetchOutcome::Unanswered };
        let (status, provenance) = (reply.status, self.provenance(&reply.endpoint));
        let (body, rest) = reply.read_beginning(PIECE_BYTES_MAX, self.timing.list_idle).await;
        let is_too_large = matches!(rest, Err(EndpointError::TooLarge(_)));
        *kept = rest.ok();
        let is_it = |object: &Object| object.name.as_ref().is_some_and(|(it, _)| it == name);
        let what = self.selection.what;
        let object = match status {
            404 => return RefetchOutcome::Gone,
            200 if kept.is_some() => Json::parse_object(what, &body, &provenance),
            // A list as JSON would cut it too.
            200 if is_too_large => {
                codec::reject_object(what, Json::peek_identity(&body), &PieceTooLong, &provenance)
            }
            _ => return RefetchOutcome::Unanswered,
        };
        Some(object).filter(is_it).map_or(RefetchOutcome::Unanswered, RefetchOutcome::Read)
    }
}
