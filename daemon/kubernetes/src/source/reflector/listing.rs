//! The list: all its pages, or names where most objects are known, applied as one group.
//!
//! Invariant: a list that is not whole changes nothing. Items are read while they come, so no page is ever held. A
//! whole list is believed even if much is gone from it, and the log says so.

use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};

use holdfast_core::event::Event;

use super::alone::Doubts;
use super::{Reflector, Stop};
use crate::source::codec::{self, Codec};
use crate::source::delivered::{Commit, Delivered};
use crate::source::object::{Message, named};
use crate::source::page::{Ahead, Items};
use crate::source::piece::{Piece, TooLong};
use crate::source::resource::{Resource, Selection};
use crate::source::view::Watch;
use holdfast_objects::Provenance;

/// How many refusals of a selection in a row it takes until a part of it is left out as a trial. A single refusal may
/// be a stray answer of a proxy, or of a server that is just starting.
const DOUBTS_MIN: u32 = 2;

impl Reflector {
    /// Reads the whole list and hands over what it changes.
    pub(super) async fn list(&mut self) -> Result<(), Stop> {
        self.view.send_modify(Watch::begin_list);
        self.questions.begin();
        let selection = self.asked_for();
        let version = match self.by_names(&selection).await? {
            Some(version) => version,
            None => self.pages(&selection).await?,
        };
        self.is_there.send_replace(true);
        self.check_newest(&version)?;
        let what = self.selection.what;
        let mut commit = self.delivered.lock().commit(|name| Message::gone(what, name, None));
        commit.messages.extend(Message::progress(what, &version));
        let is_loss = commit.is_loss();
        if is_loss {
            self.tell_loss(&commit);
        }
        if what.is_of_table() {
            // The engine is told of an interruption, because no event told of the objects that a list removes.
            commit.messages.insert(0, Message::Event(Event::Interrupted(what.source())));
            self.outlet.wait_for_zone().await;
        }
        self.deliver(commit.messages).await?;
        self.heard(true).await?;
        self.answer().await?;
        self.selection.set(selection);
        (self.doubts, self.are_names_late) = (0, false);
        (self.version, self.reached, self.is_doubtful) = (Some(Arc::clone(&version)), Some(version), false);
        self.show(|view| {
            view.lists += 1;
            view.losses += u64::from(is_loss);
        });
        self.arrived().await
    }

    /// What this list asks for. A server that has called the selection bad twice in a row is asked without the part
    /// that an older one may not know; only if it answers that, the part was to blame.
    fn asked_for(&self) -> Selection {
        let selection = self.selection.now();
        let without = if self.doubts >= DOUBTS_MIN { selection.without_fields() } else { None };
        without.unwrap_or(selection)
    }

    /// Counts that the request for a first page made no sense to the server; a trial that failed as well sets the count
    /// back.
    pub(super) fn doubt(&mut self, asked_for: &Selection) {
        let is_as_ever = *asked_for == self.selection.now();
        self.doubts = if is_as_ever { self.doubts.saturating_add(1) } else { 0 };
    }

    async fn arrived(&mut self) -> Result<(), Stop> {
        if self.selection.what == Resource::Node {
            if self.delivered.lock().len() == 0 {
                self.say_no_node(&"there is none of its name");
                self.no_node().await?;
            }
            self.outlet.zone_is_known();
        }
        Ok(self.outlet.arrived().await?)
    }

    fn tell_loss(&self, commit: &Commit) {
        let removed = commit.removed;
        let before = commit.before;
        tracing::warn!(watch = %self.selection.what, removed, before, "a new list has fewer than half of the objects known before");
    }
}

/// Takes the items of a list. Of an item that is known already, nothing is read but its name and version.
pub(super) struct ItemReader<'a, C> {
    pub(super) delivered: MutexGuard<'a, Delivered>,
    pub(super) what: Resource,
    pub(super) provenance: &'a Provenance,
    /// How many items there were.
    pub(super) items: &'a mut u32,
    /// Those that cannot be read as they are encoded.
    pub(super) doubts: &'a mut Doubts,
    pub(super) codec: PhantomData<C>,
}

impl<C: Codec> ItemReader<'_, C> {
    fn is_known(&mut self, item: &[u8]) -> bool {
        self.delivered.len() > 0
            && C::peek(item)
                .and_then(|identity| named(self.what, &identity))
                .is_some_and(|(name, version)| self.delivered.has_listed(&name, &version))
    }
}

impl<C: Codec> Items for ItemReader<'_, C> {
    fn take(&mut self, item: Piece<'_>) {
        *self.items = self.items.saturating_add(1);
        if self.is_known(item.bytes()) {
            return;
        }
        let object = match item {
            Piece::Whole(bytes) => C::read(self.what, bytes, self.provenance),
            Piece::Cut(bytes) => codec::refuse(self.what, C::peek(bytes), &TooLong, self.provenance),
        };
        if object.is_doubtful {
            self.doubts.push(object);
        } else {
            self.delivered.list(object);
        }
    }

    fn take_ahead(&mut self, text: &str) -> Ahead<()> {
        let taken = if self.is_known(text.as_bytes()) {
            C::skip_ahead(text)
        } else {
            C::read_ahead(self.what, text, self.provenance).map(|object| self.delivered.list(object))
        };
        *self.items = self.items.saturating_add(u32::from(matches!(taken, Ahead::Read(..))));
        taken
    }
}
