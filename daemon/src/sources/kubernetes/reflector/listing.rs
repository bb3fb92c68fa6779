//! The list: page after page over one connection, applied as one group.
//!
//! Invariant: a list that is not whole changes nothing. Items are read while they come, so no page is ever held. Deliberately
//! absent: doubt about a whole list; that much has gone is said, and done.

use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};

use holdfast_core::event::Event;
use holdfast_core::keys::Source;

use super::{Reflector, Stop};
use crate::apiserver::Connection;
use crate::sources::kubernetes::codec::{Codec, Splitter};
use crate::sources::kubernetes::ending::Ending;
use crate::sources::kubernetes::object::{Told, named};
use crate::sources::kubernetes::page::{Ahead, Items, ListMeta};
use crate::sources::kubernetes::piece::{Piece, TooLong};
use crate::sources::kubernetes::shelf::{Commit, Shelf};
use crate::sources::kubernetes::view::State;
use crate::sources::kubernetes::what::What;
use crate::sources::objects::{Defaulting, Provenance};

/// Whose objects are read.
pub(super) fn provenance(endpoint: &Arc<str>) -> Provenance {
    let origin = Some(Arc::clone(endpoint));
    Provenance { source: Source::Kubernetes, origin, defaulting: Defaulting::Done }
}

impl<C: Codec> Reflector<C> {
    /// Reads the whole list and hands over what it changes.
    pub(super) async fn list(&mut self) -> Result<(), Stop> {
        self.view.send_modify(|view| view.enter(State::Listing));
        let limit = self.timing.list_deadline;
        let version = tokio::time::timeout(limit, self.pages()).await.map_err(|_| Ending::Late(limit))??;
        let what = self.selection.what;
        let mut commit = self.shelf.lock().commit(|name| Told::gone(what, name, None));
        commit.told.extend(Told::progress(what, &version));
        let is_loss = commit.is_loss();
        if is_loss {
            self.tell_loss(&commit);
        }
        // Whatever goes with a list was not seen to go.
        commit.told.insert(0, Told::Event(Event::Interrupted(Source::Kubernetes)));
        self.deliver(commit.told).await?;
        self.version = Some(version);
        self.show(|view| {
            view.lists += 1;
            view.losses += u64::from(is_loss);
        });
        self.arrived().await
    }

    async fn arrived(&mut self) -> Result<(), Stop> {
        let is_nowhere = self.selection.what == What::Node && self.shelf.lock().len() == 0;
        if is_nowhere {
            self.no_node(&"there is none of its name").await
        } else {
            Ok(self.outlet.arrived().await?)
        }
    }

    fn tell_loss(&self, commit: &Commit) {
        let (removed, before) = (commit.removed, commit.before);
        tracing::warn!(watch = %self.selection.what, removed, before, "most objects are gone, says a new list");
    }

    /// All pages; the version is that of the first one, from which a watch misses nothing.
    async fn pages(&mut self) -> Result<Arc<str>, Ending> {
        self.shelf.lock().begin();
        let (mut token, mut version, mut kept) = (String::new(), None, None);
        loop {
            let page = match self.page(&self.selection.page(&token), kept.take()).await {
                // The token has outlived its version: once more, in one answer, which no token can break.
                Err(ending) if ending.is_gone() && !token.is_empty() => {
                    self.shelf.lock().begin();
                    version = None;
                    self.page(&self.selection.list(), None).await
                }
                page => page,
            };
            let (meta, connection) = page?;
            let first = version.get_or_insert_with(|| Arc::<str>::from(meta.resource_version));
            match meta.token.filter(|token| !token.is_empty()) {
                None => return Ok(Arc::clone(first)),
                Some(next) => (token, kept) = (next, Some(connection)),
            }
        }
    }

    async fn page(&self, query: &str, kept: Option<Connection>) -> Result<(ListMeta, Connection), Ending> {
        let reply = self.access.get_as(C::OBJECTS, query, kept).await.map_err(Ending::Away)?;
        let mut reply = self.accepted(reply).await?;
        let (what, provenance) = (self.selection.what, provenance(&reply.endpoint));
        let mut page = C::Page::default();
        let idle = self.timing.list_idle;
        let reading = |shelf| Reading::<C> { shelf, what, provenance: &provenance, codec: PhantomData };
        while let Some(chunk) = reply.chunk(idle).await.map_err(|error| Ending::of_body(error, idle))? {
            page.take(&chunk, &mut reading(self.shelf.lock()))?;
        }
        let frame = page.end(&mut reading(self.shelf.lock()))?;
        Ok((frame.metadata, reply.into_connection()))
    }
}

/// Takes the items of a list. Of one that is known already, nothing is read but its name and version.
struct Reading<'a, C> {
    shelf: MutexGuard<'a, Shelf>,
    what: What,
    provenance: &'a Provenance,
    codec: PhantomData<C>,
}

impl<C: Codec> Reading<'_, C> {
    fn is_known(&mut self, item: &[u8]) -> bool {
        self.shelf.len() > 0
            && C::peek(item)
                .and_then(|identity| named(self.what, &identity))
                .is_some_and(|(name, version)| self.shelf.has_listed(&name, &version))
    }
}

impl<C: Codec> Items for Reading<'_, C> {
    fn take(&mut self, item: Piece<'_>) {
        if self.is_known(item.bytes()) {
            return;
        }
        self.shelf.list(match item {
            Piece::Whole(bytes) => C::read(self.what, bytes, self.provenance),
            Piece::Cut(bytes) => C::refuse(self.what, bytes, &TooLong, self.provenance),
        });
    }

    fn take_ahead(&mut self, text: &str) -> Ahead<()> {
        if self.is_known(text.as_bytes()) {
            return C::skip_ahead(text);
        }
        C::read_ahead(self.what, text, self.provenance).map(|object| self.shelf.list(object))
    }
}
