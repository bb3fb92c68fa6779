//! Reads the pages of one list, one after another over one connection; each but the first is retried until it has come.
//!
//! Invariant: a retry of a page leaves the objects of whole pages in place, and a broken page leaves nothing behind. A
//! list may take any time while pages come; it ends after `list_silence` without one.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Reflector;
use super::alone::Doubts;
use super::listing::ItemReader;
use crate::apiserver::{Connection, Encoding, Reply};
use crate::source::codec::{Codec, Json, Protobuf, Splitter};
use crate::source::ending::Ending;
use crate::source::pace::{Pace, chance};
use crate::source::page::{ListMeta, NoPage, OBJECTS_MAX};
use crate::source::resource::{PAGE_ITEMS, Selection};
use holdfast_objects::Provenance;

/// The state that goes from page to page.
#[derive(Debug)]
struct Paging {
    /// Where the next page begins; empty for the first one.
    token: String,
    /// The version of the first page, from which a watch misses nothing.
    version: Option<Arc<str>>,
    kept: Option<Connection>,
    /// How many objects came with whole pages.
    items: u32,
    silence: Silence,
    pace: Pace,
    /// Whether a retry of a page has been logged.
    is_told: bool,
}

/// The time without a page's worth of objects, and its limit.
#[derive(Debug)]
struct Silence {
    since: Instant,
    limit: Duration,
}

impl Silence {
    async fn within<T>(&self, doing: impl Future<Output = T>) -> Result<T, Ending> {
        timeout_at(self.since + self.limit, doing).await.map_err(|_| Ending::Late(self.limit))
    }

    fn end(&mut self) {
        self.since = Instant::now();
    }
}

/// A page that was read to its end.
struct Page {
    meta: ListMeta,
    is_empty: bool,
}

impl Paging {
    fn new(limit: Duration) -> Self {
        let silence = Silence { since: Instant::now(), limit };
        let token = String::new();
        let pace = Pace::default();
        Self { token, version: None, kept: None, items: 0, silence, pace, is_told: false }
    }

    /// Takes a page in; returns the list's version after the last page.
    async fn take(&mut self, page: Page) -> Result<Option<Arc<str>>, Ending> {
        let first = self.version.get_or_insert_with(|| Arc::<str>::from(page.meta.resource_version));
        let Some(next) = page.meta.token.filter(|token| !token.is_empty()) else {
            return Ok(Some(Arc::clone(first)));
        };
        self.token = next;
        if page.is_empty {
            // An empty page is legal, but a server that sends nothing else is not asked as fast as it answers.
            self.pause(None).await?;
        } else {
            self.pace = Pace::default();
        }
        Ok(None)
    }

    async fn pause(&mut self, retry_after: Option<Duration>) -> Result<(), Ending> {
        let wait = self.pace.wait(Duration::ZERO, retry_after, Duration::ZERO, chance());
        self.silence.within(tokio::time::sleep(wait)).await
    }
}

impl Reflector {
    /// Reads all pages of a list; returns the version from which a watch goes on.
    pub(super) async fn pages(&mut self, selection: &Selection) -> Result<Arc<str>, Ending> {
        self.delivered.lock().begin();
        let mut paging = Paging::new(self.timing.list_silence);
        // The limit on silence ends a list that brings nothing; the limit on objects ends one that goes on for ever.
        loop {
            let page = match paging.token.is_empty() {
                true => self.first_page(selection, &mut paging).await?,
                false => self.next_page(selection, &mut paging).await?,
            };
            if let Some(version) = paging.take(page).await? {
                return Ok(version);
            }
        }
    }

    /// Reads the first page, without a retry: nothing is lost when it fails, and the list's caller waits and logs the
    /// failure.
    async fn first_page(&mut self, selection: &Selection, paging: &mut Paging) -> Result<Page, Ending> {
        let page = self.page(&selection.page(""), paging).await;
        if page.as_ref().is_err_and(Ending::is_bad_request) {
            self.doubt(selection);
        }
        page
    }

    async fn next_page(&mut self, selection: &Selection, paging: &mut Paging) -> Result<Page, Ending> {
        let query = selection.page(&paging.token);
        loop {
            match self.page(&query, paging).await {
                Ok(page) => return Ok(page),
                Err(ending) if ending.is_gone() => return self.one_answer(selection, paging).await,
                Err(ending) if ending.may_pass() => self.again(&ending, paging).await?,
                Err(ending) => return Err(ending),
            }
        }
    }

    /// Lists once more, in one answer, because the token's version is gone. One answer needs no token.
    async fn one_answer(&self, selection: &Selection, paging: &mut Paging) -> Result<Page, Ending> {
        self.delivered.lock().begin();
        (paging.version, paging.kept, paging.items) = (None, None, 0);
        self.page(&selection.list(), paging).await
    }

    /// Forgets the objects of a broken page, logs that, and waits.
    async fn again(&self, ending: &Ending, paging: &mut Paging) -> Result<(), Ending> {
        self.delivered.lock().undo_page();
        self.view.send_modify(|view| {
            view.page_retries += 1;
            view.failed(ending);
        });
        let what = self.selection.what;
        if std::mem::replace(&mut paging.is_told, true) {
            tracing::debug!(list = %what, error = %ending, "a page is asked for again");
        } else {
            tracing::warn!(list = %what, error = %ending, "a page of the list is asked for again; the others stay");
        }
        paging.pause(ending.retry_after()).await
    }

    async fn page(&self, query: &str, paging: &mut Paging) -> Result<Page, Ending> {
        let asking = self.access.get_as(self.offer.objects(), query, paging.kept.take());
        let reply = paging.silence.within(asking).await?.map_err(Ending::Away)?;
        let reply = match self.accepted(reply).await {
            Ok(reply) => reply,
            Err((ending, kept)) => {
                // A server that asks for patience is not asked for a handshake too. Any other one may fail at every
                // page, and only a new connection may lead to another server.
                paging.kept = kept.filter(|_| ending.is_throttled());
                return Err(ending);
            }
        };
        let page = match reply.encoding {
            Encoding::Json => self.read::<Json>(reply, paging).await,
            Encoding::Protobuf => self.read::<Protobuf>(reply, paging).await,
        };
        page.inspect_err(|ending| self.heed(ending))
    }

    async fn read<C: Codec>(&self, mut reply: Reply, paging: &mut Paging) -> Result<Page, Ending> {
        let provenance = self.provenance(&reply.endpoint);
        let idle = self.timing.list_idle;
        let mut page = C::Page::default();
        let mut items = 0;
        let mut counted = 0;
        let mut doubts = Doubts::default();
        while let Some(chunk) =
            paging.silence.within(reply.chunk(idle)).await?.map_err(|error| Ending::of_body(error, idle))?
        {
            page.take(&chunk, &mut self.reading::<C>(&provenance, &mut items, &mut doubts))?;
            // In the one answer that replaces all pages, each page's worth of objects ends the silence.
            if items - counted >= PAGE_ITEMS {
                counted = items;
                paging.silence.end();
            }
            if paging.items.saturating_add(items) > OBJECTS_MAX {
                return Err(NoPage::Endless.into());
            }
        }
        let frame = page.end(&mut self.reading::<C>(&provenance, &mut items, &mut doubts))?;
        if !self.selection.what.is_listed_by(&frame) {
            return Err(NoPage::OtherKind.into());
        }
        for object in paging.silence.within(self.resolved(doubts)).await?? {
            self.delivered.lock().list(object);
        }
        self.delivered.lock().end_page();
        let is_empty = items == 0;
        if !is_empty {
            paging.silence.end();
        }
        paging.items = paging.items.saturating_add(items);
        paging.kept = Some(reply.into_connection());
        Ok(Page { meta: frame.metadata, is_empty })
    }

    fn reading<'a, C: Codec>(
        &'a self,
        provenance: &'a Provenance,
        items: &'a mut u32,
        doubts: &'a mut Doubts,
    ) -> ItemReader<'a, C> {
        ItemReader {
            delivered: self.delivered.lock(),
            what: self.selection.what,
            provenance,
            items,
            doubts,
            codec: PhantomData,
        }
    }
}
