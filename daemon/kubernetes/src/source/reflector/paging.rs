//! Reads the pages of a list over one connection; each page after the first is retried until it arrives.
//!
//! Invariant: retrying a page keeps the objects of earlier pages, and a broken page leaves nothing behind. A list may
//! take any time while pages arrive; it ends after `list_stall_timeout` without one.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Reflector;
use super::listing::ItemReader;
use super::refetch_as_json::DoubtfulObjects;
use crate::apiserver::{Connection, Encoding, Reply};
use crate::source::backoff::{Backoff, random_chance};
use crate::source::codec::{Codec, Json, Protobuf, Splitter};
use crate::source::page::{ListMeta, OBJECTS_MAX, PageError};
use crate::source::resource::{PAGE_ITEMS, Selection};
use crate::source::watch_error::WatchError;
use holdfast_objects::Provenance;

/// The state between pages.
#[derive(Debug)]
struct PagingState {
    /// The token of the next page; empty for the first.
    token: String,
    /// The first page's version: a watch from it misses nothing.
    version: Option<Arc<str>>,
    connection: Option<Connection>,
    /// How many objects came with whole pages.
    items: u32,
    stall_timer: StallTimer,
    backoff: Backoff,
    /// A retry was logged.
    is_logged: bool,
}

/// The time since the last page's worth of objects, and its limit.
#[derive(Debug)]
struct StallTimer {
    since: Instant,
    limit: Duration,
}

impl StallTimer {
    async fn run_within<T>(&self, doing: impl Future<Output = T>) -> Result<T, WatchError> {
        timeout_at(self.since + self.limit, doing).await.map_err(|_| WatchError::Stalled(self.limit))
    }

    fn reset(&mut self) {
        self.since = Instant::now();
    }
}

/// A page read to its end.
struct FetchedPage {
    meta: ListMeta,
    is_empty: bool,
}

impl PagingState {
    fn new(limit: Duration) -> Self {
        let stall_timer = StallTimer { since: Instant::now(), limit };
        let token = String::new();
        let backoff = Backoff::default();
        Self { token, version: None, connection: None, items: 0, stall_timer, backoff, is_logged: false }
    }

    /// Records a page; returns the list's version after the last one.
    async fn take_page(&mut self, page: FetchedPage) -> Result<Option<Arc<str>>, WatchError> {
        let first = self.version.get_or_insert_with(|| Arc::<str>::from(page.meta.resource_version));
        let Some(next) = page.meta.token.filter(|token| !token.is_empty()) else {
            return Ok(Some(Arc::clone(first)));
        };
        self.token = next;
        if page.is_empty {
            // An empty page is legal, but a server that sends only those must not set the pace.
            self.wait_backoff(None).await?;
        } else {
            self.backoff = Backoff::default();
        }
        Ok(None)
    }

    async fn wait_backoff(&mut self, retry_after: Option<Duration>) -> Result<(), WatchError> {
        let wait = self.backoff.next_wait(Duration::ZERO, retry_after, Duration::ZERO, random_chance());
        self.stall_timer.run_within(tokio::time::sleep(wait)).await
    }
}

impl Reflector {
    /// Reads all pages of a list; returns the version to watch from.
    pub(super) async fn list_pages(&mut self, selection: &Selection) -> Result<Arc<str>, WatchError> {
        self.cache.lock().begin_list();
        let mut paging = PagingState::new(self.timing.list_stall_timeout);
        // The limit on silence ends a list without progress; the limit on objects ends an endless one.
        loop {
            let page = match paging.token.is_empty() {
                true => self.fetch_first_page(selection, &mut paging).await?,
                false => self.fetch_next_page(selection, &mut paging).await?,
            };
            if let Some(version) = paging.take_page(page).await? {
                return Ok(version);
            }
        }
    }

    /// Reads the first page without a retry: nothing is lost, and the caller waits and logs the failure.
    async fn fetch_first_page(
        &mut self,
        selection: &Selection,
        paging: &mut PagingState,
    ) -> Result<FetchedPage, WatchError> {
        let page = self.fetch_page(&selection.page_path(""), paging).await;
        if page.as_ref().is_err_and(WatchError::is_bad_request) {
            self.count_selection_refusal(selection);
        }
        page
    }

    async fn fetch_next_page(
        &mut self,
        selection: &Selection,
        paging: &mut PagingState,
    ) -> Result<FetchedPage, WatchError> {
        let query = selection.page_path(&paging.token);
        loop {
            match self.fetch_page(&query, paging).await {
                Ok(page) => return Ok(page),
                Err(ending) if ending.is_gone() => return self.list_unpaged(selection, paging).await,
                Err(ending) if ending.is_transient() => self.retry_page(&ending, paging).await?,
                Err(ending) => return Err(ending),
            }
        }
    }

    /// Starts over with an unpaged list after the token has expired.
    async fn list_unpaged(
        &self,
        selection: &Selection,
        paging: &mut PagingState,
    ) -> Result<FetchedPage, WatchError> {
        self.cache.lock().begin_list();
        (paging.version, paging.connection, paging.items) = (None, None, 0);
        self.fetch_page(&selection.list_path(), paging).await
    }

    /// Discards a broken page, logs it, and waits.
    async fn retry_page(&self, ending: &WatchError, paging: &mut PagingState) -> Result<(), WatchError> {
        self.cache.lock().undo_page();
        self.view.send_modify(|view| {
            view.page_retries += 1;
            view.record_error(ending);
        });
        let what = self.selection.what;
        if std::mem::replace(&mut paging.is_logged, true) {
            tracing::debug!(list = %what, error = %ending, "requesting a page again");
        } else {
            tracing::warn!(list = %what, error = %ending, "requesting a page of the list again; the others stay");
        }
        paging.wait_backoff(ending.retry_after()).await
    }

    async fn fetch_page(&self, query: &str, paging: &mut PagingState) -> Result<FetchedPage, WatchError> {
        let asking = self.access.get_as(self.encodings.object_accept(), query, paging.connection.take());
        let reply = paging.stall_timer.run_within(asking).await?.map_err(WatchError::Unreachable)?;
        let reply = match self.check_reply(reply).await {
            Ok(reply) => reply,
            Err((ending, kept)) => {
                // A throttling server keeps its connection, to spare it a handshake. Any other may fail at every page,
                // and only a new connection may reach another server.
                paging.connection = kept.filter(|_| ending.is_throttled());
                return Err(ending);
            }
        };
        let page = match reply.encoding {
            Encoding::Json => self.read_page::<Json>(reply, paging).await,
            Encoding::Protobuf => self.read_page::<Protobuf>(reply, paging).await,
        };
        page.inspect_err(|ending| self.check_encoding(ending))
    }

    async fn read_page<C: Codec>(
        &self,
        mut reply: Reply,
        paging: &mut PagingState,
    ) -> Result<FetchedPage, WatchError> {
        let provenance = self.provenance(&reply.endpoint);
        let idle = self.timing.list_idle;
        let mut page = C::Page::default();
        let mut items = 0;
        let mut counted = 0;
        let mut doubtful = DoubtfulObjects::default();
        while let Some(chunk) = paging
            .stall_timer
            .run_within(reply.next_chunk(idle))
            .await?
            .map_err(|error| WatchError::from_body(error, idle))?
        {
            page.push_chunk(&chunk, &mut self.item_reader::<C>(&provenance, &mut items, &mut doubtful))?;
            // In an unpaged list, each page's worth of objects ends the silence.
            if items - counted >= PAGE_ITEMS {
                counted = items;
                paging.stall_timer.reset();
            }
            if paging.items.saturating_add(items) > OBJECTS_MAX {
                return Err(PageError::Endless.into());
            }
        }
        let frame = page.finish(&mut self.item_reader::<C>(&provenance, &mut items, &mut doubtful))?;
        if !self.selection.what.is_listed_by(&frame) {
            return Err(PageError::OtherKind.into());
        }
        for object in paging.stall_timer.run_within(self.resolve_doubtful(doubtful)).await?? {
            self.cache.lock().stage_object(object);
        }
        self.cache.lock().end_page();
        let is_empty = items == 0;
        if !is_empty {
            paging.stall_timer.reset();
        }
        paging.items = paging.items.saturating_add(items);
        paging.connection = Some(reply.into_connection());
        Ok(FetchedPage { meta: frame.metadata, is_empty })
    }

    fn item_reader<'a, C: Codec>(
        &'a self,
        provenance: &'a Provenance,
        items: &'a mut u32,
        doubtful: &'a mut DoubtfulObjects,
    ) -> ItemReader<'a, C> {
        ItemReader {
            cache: self.cache.lock(),
            what: self.selection.what,
            provenance,
            items,
            doubtful,
            codec: PhantomData,
        }
    }
}
