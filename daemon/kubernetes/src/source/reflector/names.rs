//! The list of nothing but names and versions, for a reflector that knows most objects already: what is new or changed
//! is asked for alone.
//!
//! Invariant: it counts as any list does, whole or not at all, and where it says that much is new, or cannot be had,
//! the list of whole objects follows. For an apiserver it is a fraction of that one, and after a restart of one all
//! nodes list.

use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use tokio::time::timeout;

use super::Reflector;
use super::alone::Alone;
use crate::apiserver::{Connection, Encoding, Reply};
use crate::source::codec::{Codec, Json, Protobuf, Splitter};
use crate::source::ending::Ending;
use crate::source::envelope::Identity;
use crate::source::object::named;
use crate::source::piece::Piece;
use crate::source::resource::Selection;

/// Where fewer objects are known, the list itself is as cheap.
const KNOWN_MIN: usize = 100;

/// How many objects are asked for alone: each is a request, and so many of them are still much less than a large list.
const NEWS_MAX: usize = 64;

/// Whether the server has too much to do, or none is there: then a longer list would not help. Whatever else is wrong
/// may be wrong with names alone.
fn is_load(ending: &Ending) -> bool {
    match ending {
        Ending::Away(_) => true,
        Ending::Refused { status, .. } => matches!(status.code, Some(429 | 503)),
        _ => false,
    }
}

/// What a list of names says.
#[derive(Debug, Default)]
struct Names {
    version: Arc<str>,
    /// How many there are.
    items: usize,
    /// What is new or changed.
    news: Vec<ObjectName>,
    /// Whether some item has no name.
    is_unclear: bool,
}

impl Reflector {
    /// Lists by names, and takes in what is new; returns the version from which a watch goes on. `None`: the list of
    /// whole objects has to say what there is.
    pub(super) async fn by_names(&mut self, selection: &Selection) -> Result<Option<Arc<str>>, Ending> {
        let is_as_ever = *selection == self.selection.now();
        if !is_as_ever || self.are_names_late || !self.delivered.lock().begin_by_names(KNOWN_MIN) {
            return Ok(None);
        }
        let told = timeout(self.timing.list_silence, self.told_by_names(selection)).await;
        let told = told.unwrap_or(Ok(None));
        // What cannot be begun in time cannot be begun the next time either. A page can.
        self.are_names_late = matches!(&told, Err(Ending::Away(error)) if error.is_unanswered());
        match told {
            Err(ending) if !is_load(&ending) => {
                tracing::debug!(list = %self.selection.what, error = %ending, "names alone cannot be listed");
                Ok(None)
            }
            told => told,
        }
    }

    async fn told_by_names(&self, selection: &Selection) -> Result<Option<Arc<str>>, Ending> {
        let query = selection.list();
        let reply = self.access.get_large(self.offer.metadata(), &query).await.map_err(Ending::Away)?;
        let reply = self.accepted(reply).await.map_err(|(ending, _)| ending)?;
        let read = match reply.encoding {
            Encoding::Json => self.names::<Json>(reply).await,
            Encoding::Protobuf => self.names::<Protobuf>(reply).await,
        };
        let (names, mut kept) = read.inspect_err(|ending| self.heed(ending))?;
        // Names do not say of which kind they are, so a list by which much has gone is not believed.
        let is_loss = names.items * 2 < self.delivered.lock().len();
        if names.is_unclear || is_loss || names.news.len() > NEWS_MAX {
            return Ok(None);
        }
        for name in &names.news {
            match self.one(name, &mut kept).await {
                Alone::Read(object) => self.delivered.lock().list(object),
                Alone::Gone => {}
                Alone::Unanswered => return Ok(None),
            }
        }
        Ok(Some(names.version))
    }

    async fn names<C: Codec>(&self, mut reply: Reply) -> Result<(Names, Option<Connection>), Ending> {
        let (mut page, mut names, idle) = (C::Page::default(), Names::default(), self.timing.list_idle);
        let mut take = |item: Piece<'_>| self.name::<C>(item, &mut names);
        while let Some(chunk) = reply.chunk(idle).await.map_err(|error| Ending::of_body(error, idle))? {
            page.take(&chunk, &mut take)?;
        }
        let frame = page.end(&mut take)?;
        names.is_unclear |= !frame.is_of_names() && !self.selection.what.is_listed_by(&frame);
        names.version = frame.metadata.resource_version.into();
        Ok((names, Some(reply.into_connection())))
    }

    /// Takes one item in. A slice that is not for proxies is news only where it was for them before.
    fn name<C: Codec>(&self, item: Piece<'_>, names: &mut Names) {
        names.items += 1;
        let identity = C::peek(item.bytes());
        let is_headless = identity.as_ref().is_some_and(Identity::is_headless);
        let Some((name, version)) = identity.and_then(|it| named(self.selection.what, &it)) else {
            names.is_unclear = true;
            return;
        };
        let mut delivered = self.delivered.lock();
        let is_known = delivered.has_listed(&name, &version);
        if !is_known && (!is_headless || delivered.version(&name).is_some()) && names.news.len() <= NEWS_MAX {
            names.news.push(name);
        }
    }
}
