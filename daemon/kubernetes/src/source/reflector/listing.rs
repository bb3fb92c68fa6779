//! Lists a kind: all pages, or names where most objects are known. The result is one group.
//!
//! Invariant: an incomplete list changes nothing. Items are read as they arrive, so no whole page is in memory. A whole
//! list is trusted even if much has vanished from it, which the log reports.

use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};

use holdfast_core::event::Event;

use super::refetch_as_json::DoubtfulObjects;
use super::{Reflector, StopCause};
use crate::source::codec::{self, Codec};
use crate::source::object::{SinkMessage, identify_object};
use crate::source::object_cache::{ListCommit, ObjectCache};
use crate::source::page::{ItemSink, ReadAhead};
use crate::source::piece::{Piece, PieceTooLong};
use crate::source::resource::{Resource, Selection};
use crate::source::view::Watch;
use holdfast_objects::Provenance;

/// Refusals of a selection in a row until a list tries without its optional part. A single refusal may come from a
/// proxy or a starting server.
const SELECTION_REFUSALS_MIN: u32 = 2;

impl Reflector {
    /// Reads the whole list and delivers its changes.
    pub(super) async fn list(&mut self) -> Result<(), StopCause> {
        self.view.send_modify(Watch::begin_list);
        self.freshness.begin_request();
        let selection = self.list_selection();
        let version = match self.list_names(&selection).await? {
            Some(version) => version,
            None => self.list_pages(&selection).await?,
        };
        self.is_present.send_replace(true);
        self.check_rewind(&version)?;
        let what = self.selection.what;
        let mut commit = self.cache.lock().commit_list(|name| SinkMessage::deletion(what, name, None));
        commit.messages.extend(SinkMessage::progress(what, &version));
        let is_loss = commit.is_loss();
        if is_loss {
            self.log_loss(&commit);
        }
        if what.is_in_table() {
            // A list removes objects without events, so the engine treats it as an interruption.
            commit.messages.insert(0, SinkMessage::Event(Event::Interrupted(what.source())));
            self.sink.wait_for_zone().await;
        }
        self.deliver(commit.messages).await?;
        self.report_watching(true).await?;
        self.answer_query().await?;
        self.selection.set(selection);
        (self.selection_refusals, self.skips_name_list) = (0, false);
        (self.version, self.latest_version, self.is_version_suspect) =
            (Some(Arc::clone(&version)), Some(version), false);
        self.update_view(|view| {
            view.lists += 1;
            view.losses += u64::from(is_loss);
        });
        self.complete_initial_list().await
    }

    /// The selection of this list. After two bad requests in a row it omits the part that an older server may not
    /// support; only success proves that part guilty.
    fn list_selection(&self) -> Selection {
        let selection = self.selection.current();
        let without =
            if self.selection_refusals >= SELECTION_REFUSALS_MIN { selection.without_fields() } else { None };
        without.unwrap_or(selection)
    }

    /// Counts a first page that the server considered invalid; a failed trial resets the count.
    pub(super) fn count_selection_refusal(&mut self, asked_for: &Selection) {
        let is_as_ever = *asked_for == self.selection.current();
        self.selection_refusals = if is_as_ever { self.selection_refusals.saturating_add(1) } else { 0 };
    }

    async fn complete_initial_list(&mut self) -> Result<(), StopCause> {
        if self.selection.what == Resource::Node {
            if self.cache.lock().len() == 0 {
                self.log_no_node(&"the cluster has no Node of this name");
                self.report_no_node().await?;
            }
            self.sink.end_zone_wait();
        }
        Ok(self.sink.complete_initial_list().await?)
    }

    fn log_loss(&self, commit: &ListCommit) {
        let removed = commit.removed;
        let before = commit.before;
        tracing::warn!(watch = %self.selection.what, removed, before, "a new list has fewer than half of the objects known before");
    }
}

/// Receives the items of a list. Of a known item it reads only name and version.
pub(super) struct ItemReader<'a, C> {
    pub(super) cache: MutexGuard<'a, ObjectCache>,
    pub(super) what: Resource,
    pub(super) provenance: &'a Provenance,
    /// The count of items.
    pub(super) items: &'a mut u32,
    /// Items that are unreadable in their encoding.
    pub(super) doubtful: &'a mut DoubtfulObjects,
    pub(super) codec: PhantomData<C>,
}

impl<C: Codec> ItemReader<'_, C> {
    fn mark_known(&mut self, item: &[u8]) -> bool {
        self.cache.len() > 0
            && C::peek_identity(item)
                .and_then(|identity| identify_object(self.what, &identity))
                .is_some_and(|(name, version)| self.cache.mark_listed(&name, &version))
    }
}

impl<C: Codec> ItemSink for ItemReader<'_, C> {
    fn take_item(&mut self, item: Piece<'_>) {
        *self.items = self.items.saturating_add(1);
        if self.mark_known(item.bytes()) {
            return;
        }
        let object = match item {
            Piece::Whole(bytes) => C::parse_object(self.what, bytes, self.provenance),
            Piece::Cut(bytes) => {
                codec::reject_object(self.what, C::peek_identity(bytes), &PieceTooLong, self.provenance)
            }
        };
        if object.is_doubtful {
            self.doubtful.push(object);
        } else {
            self.cache.stage_object(object);
        }
    }

    fn take_ahead(&mut self, text: &str) -> ReadAhead<()> {
        let taken = if self.mark_known(text.as_bytes()) {
            C::skip_ahead(text)
        } else {
            C::parse_ahead(self.what, text, self.provenance).map(|object| self.cache.stage_object(object))
        };
        *self.items = self.items.saturating_add(u32::from(matches!(taken, ReadAhead::Read(..))));
        taken
    }
}
