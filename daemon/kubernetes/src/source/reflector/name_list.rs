//! Lists names and versions only, if most objects are known, and fetches new or changed ones one by one.
//!
//! Invariant: it counts whole or not at all, like any list. If much is new or a fetch fails, the list of whole objects
//! follows. It costs an apiserver a fraction of that one, and after an apiserver's restart all nodes list.

use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use tokio::time::timeout;

use super::Reflector;
use super::refetch_as_json::RefetchOutcome;
use crate::apiserver::{Connection, Encoding, Reply};
use crate::source::codec::{Codec, Json, Protobuf, Splitter};
use crate::source::envelope::Identity;
use crate::source::object::identify_object;
use crate::source::piece::Piece;
use crate::source::resource::Selection;
use crate::source::watch_error::WatchError;

/// With fewer known objects, the whole list is as cheap.
const KNOWN_MIN: usize = 100;

/// The most objects to fetch one by one: each is a request, and this many still cost less than a large list.
const CHANGED_MAX: usize = 64;

/// Whether the server is overloaded or unreachable, so that a longer list would fail too. Other errors may only concern
/// lists of names.
fn is_overload(ending: &WatchError) -> bool {
    match ending {
        WatchError::Unreachable(_) => true,
        WatchError::Refused { status, .. } => matches!(status.code, Some(429 | 503)),
        _ => false,
    }
}

/// The content of a list of names.
#[derive(Debug, Default)]
struct NameList {
    version: Arc<str>,
    /// The count of items.
    items: usize,
    /// New or changed objects.
    changed: Vec<ObjectName>,
    /// Some item has no name.
    is_unclear: bool,
}

impl Reflector {
    /// Lists names and stages the changed objects; returns the version to watch from. `None`: a list of whole objects
    /// is needed.
    pub(super) async fn list_names(&mut self, selection: &Selection) -> Result<Option<Arc<str>>, WatchError> {
        let is_as_ever = *selection == self.selection.current();
        if !is_as_ever || self.skips_name_list || !self.cache.lock().begin_name_list(KNOWN_MIN) {
            return Ok(None);
        }
        let result = timeout(self.timing.list_stall_timeout, self.fetch_name_list(selection)).await;
        let result = result.unwrap_or(Ok(None));
        // A list of names that starts too late would do so again; a page would not.
        self.skips_name_list =
            matches!(&result, Err(WatchError::Unreachable(error)) if error.is_unanswered());
        match result {
            Err(ending) if !is_overload(&ending) => {
                tracing::debug!(list = %self.selection.what, error = %ending, "cannot list names alone");
                Ok(None)
            }
            result => result,
        }
    }

    async fn fetch_name_list(&self, selection: &Selection) -> Result<Option<Arc<str>>, WatchError> {
        let query = selection.list_path();
        let reply = self
            .access
            .get_large(self.encodings.metadata_accept(), &query)
            .await
            .map_err(WatchError::Unreachable)?;
        let reply = self.check_reply(reply).await.map_err(|(ending, _)| ending)?;
        let read = match reply.encoding {
            Encoding::Json => self.read_names::<Json>(reply).await,
            Encoding::Protobuf => self.read_names::<Protobuf>(reply).await,
        };
        let (names, mut idle) = read.inspect_err(|ending| self.check_encoding(ending))?;
        // Names do not carry their kind, so a list of names without many known objects is not trusted.
        let is_loss = names.items * 2 < self.cache.lock().len();
        if names.is_unclear || is_loss || names.changed.len() > CHANGED_MAX {
            return Ok(None);
        }
        for name in &names.changed {
            match self.fetch_object(name, &mut idle).await {
                RefetchOutcome::Read(object) => self.cache.lock().stage_object(object),
                RefetchOutcome::Gone => {}
                RefetchOutcome::Unanswered => return Ok(None),
            }
        }
        Ok(Some(names.version))
    }

    async fn read_names<C: Codec>(
        &self,
        mut reply: Reply,
    ) -> Result<(NameList, Option<Connection>), WatchError> {
        let (mut page, mut names, idle) = (C::Page::default(), NameList::default(), self.timing.list_idle);
        let mut take = |item: Piece<'_>| self.take_name::<C>(item, &mut names);
        while let Some(chunk) =
            reply.next_chunk(idle).await.map_err(|error| WatchError::from_body(error, idle))?
        {
            page.push_chunk(&chunk, &mut take)?;
        }
        let frame = page.finish(&mut take)?;
        names.is_unclear |= !frame.is_metadata_only() && !self.selection.what.is_listed_by(&frame);
        names.version = frame.metadata.resource_version.into();
        Ok((names, Some(reply.into_connection())))
    }

    /// Reads one item. A slice that is not for proxies matters only if it was for them before.
    fn take_name<C: Codec>(&self, item: Piece<'_>, names: &mut NameList) {
        names.items += 1;
        let identity = C::peek_identity(item.bytes());
        let is_headless = identity.as_ref().is_some_and(Identity::is_headless);
        let Some((name, version)) = identity.and_then(|it| identify_object(self.selection.what, &it)) else {
            names.is_unclear = true;
            return;
        };
        let mut delivered = self.cache.lock();
        let is_known = delivered.mark_listed(&name, &version);
        if !is_known
            && (!is_headless || delivered.version(&name).is_some())
            && names.changed.len() <= CHANGED_MAX
        {
            names.changed.push(name);
        }
    }
}
