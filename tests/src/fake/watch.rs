//! Watches: changes from a version on, bookmarks in between, and a timeout.
//!
//! Invariant: a watch from a future version stays silent until that version. Requests for the initial events of a
//! streaming list are refused, as by an apiserver with the feature off.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause_async};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;

use super::Kind;
use super::cluster::line;
use super::fault::error_line;
use super::request::Head;
use super::selector::Selector;
use super::server::{Order, State};
use super::writer::Writer;

/// The apiserver's default timeout of a watch.
const TIMEOUT_SECONDS: u64 = 1_800;

/// The faulty ways in which a watch sends events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    pub(super) twice: bool,
    /// The pause before each event.
    pub(super) pause: Duration,
}

/// A running watch.
struct Running<'a> {
    state: &'a Arc<State>,
    kind: Kind,
    selector: Selector,
    seen: u64,
    manner: Manner,
    ends: Deadline,
    bookmark: Option<Duration>,
    orders: mpsc::Receiver<Order>,
}

/// Answers a watch until it ends. An error closes the connection.
pub(super) async fn watch(
    state: &Arc<State>,
    head: &Head,
    manner: Manner,
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut Writer<impl AsyncWrite + Unpin>,
) -> io::Result<()> {
    let parsed = Selector::parse(head.parameter("labelSelector"), head.parameter("fieldSelector"));
    let Ok(selector) = parsed else { return writer.status(400, "BadRequest", None).await };
    if head.parameter("sendInitialEvents") == "true" {
        return writer.status(422, "Invalid", None).await;
    }
    let seconds = head.number("timeoutSeconds").unwrap_or(TIMEOUT_SECONDS);
    let with_bookmarks = head.parameter("allowWatchBookmarks") == "true";
    let mut running = Running {
        state,
        kind: head.kind,
        selector,
        seen: head.number("resourceVersion").unwrap_or(0),
        manner,
        ends: Deadline::after(Duration::from_secs(seconds)),
        bookmark: state.bookmarks().filter(|_| with_bookmarks),
        orders: state.register(head.kind),
    };
    writer.begin().await?;
    running.first_objects(writer).await?;
    running.run(reader, writer).await
}

impl Running<'_> {
    /// Without a version, a watch begins with all existing objects.
    async fn first_objects(&mut self, writer: &mut Writer<impl AsyncWrite + Unpin>) -> io::Result<()> {
        if self.seen != 0 {
            return Ok(());
        }
        let page = self.state.cluster.page(self.kind, &self.selector, None, usize::MAX);
        let Ok(page) = page else { return Ok(()) };
        for object in &page.items {
            writer.line(&line("ADDED", &object.typed())).await?;
        }
        self.seen = page.version;
        Ok(())
    }

    async fn run(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut Writer<impl AsyncWrite + Unpin>,
    ) -> io::Result<()> {
        let mut changed = self.state.cluster.changed();
        loop {
            changed.borrow_and_update();
            if !self.say_news(writer).await? {
                return writer.end().await;
            }
            tokio::select! {
                // The server keeps the cluster alive, so this never fails.
                _ = changed.changed() => {}
                order = self.orders.recv() => match order {
                    Some(Order::Say(text)) => writer.line(&text).await?,
                    Some(Order::LookAgain) => {}
                    Some(Order::End) | None => return writer.end().await,
                },
                () = pause_async(self.ends.remaining()) => return writer.end().await,
                () = pause_async(self.bookmark.unwrap_or_default()), if self.bookmark.is_some() => {
                    self.say_bookmark(writer).await?;
                }
                _ = reader.read_u8() => return Err(io::Error::other("the client hung up")),
            }
        }
    }

    /// Sends pending events, and returns whether the watch goes on.
    async fn say_news(&mut self, writer: &mut Writer<impl AsyncWrite + Unpin>) -> io::Result<bool> {
        if self.state.is_mute(self.kind) {
            return Ok(true);
        }
        match self.state.cluster.since(self.kind, &self.selector, self.seen) {
            Ok((lines, seen)) => {
                self.seen = seen;
                for line in lines {
                    pause_async(self.manner.pause).await;
                    writer.lines(&line, if self.manner.twice { 2 } else { 1 }).await?;
                }
                Ok(true)
            }
            Err(compacted) => {
                let message = format!("too old resource version: {} ({})", self.seen, compacted.0);
                writer.line(&error_line(410, "Expired", &message)).await?;
                Ok(false)
            }
        }
    }

    async fn say_bookmark(&mut self, writer: &mut Writer<impl AsyncWrite + Unpin>) -> io::Result<()> {
        // A watch from a future version has not caught up with it, so it gets no bookmark.
        if self.state.is_mute(self.kind) || self.seen > self.state.cluster.version() {
            return Ok(());
        }
        writer.line(&line("BOOKMARK", &bookmark(self.kind, self.seen))).await
    }
}

/// As Kubernetes writes it: an empty object of the kind with all required fields.
fn bookmark(kind: Kind, version: u64) -> String {
    let (word, api_version) = kind.names();
    let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    let object = match kind {
        Kind::Slices => json!({
            "kind": word, "apiVersion": api_version, "metadata": metadata,
            "addressType": "", "endpoints": null, "ports": null,
        }),
        _ => json!({
            "kind": word, "apiVersion": api_version, "metadata": metadata,
            "spec": {}, "status": {"loadBalancer": {}},
        }),
    };
    object.to_string()
}
