//! The accept loop of a listener and the life of one connection.
//!
//! Invariant: a listener has no more connections than its [`AdminListener`] has permits, and each ends by itself within
//! bounded time. If all permits are taken, a new client replaces an idle one. If each client has a request in progress,
//! the new one is rejected with a message; no client waits in a queue.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Extension;
use axum::http::header;
use axum::response::Response;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::admin_listener::{AdminListener, ListenerKind, Permit, RequestContext, ServerContext};
use super::client_requests::Peer;
use super::listen::{OpenSocket, OpenTcp};
use super::record_stream::EVENT_STREAM;
use super::write_timeout::StallTimeout;
use super::{AdminError, limits, listen, routes};
use holdfast_host::idle_evictor::{IdleEvictor, RequestGuard, TrackedClient};
use holdfast_host::logging::messages::NOTICE;

const BUSY_RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 90\r\n\r\n\
    error: all connections are in use\nhint: close idle clients, or try again in a few seconds\n";

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Accepts the clients of a listener.
pub(super) trait Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)>;

    /// Waits until no client can connect any more.
    async fn wait_until_lost(&self);
}

impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        let (stream, _) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), None))
    }

    async fn wait_until_lost(&self) {
        std::future::pending::<()>().await;
    }
}

impl Listener for OpenSocket {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        let (stream, _) = self.listener.accept().await?;
        let peer = stream.peer_cred()?;
        Ok((Box::new(stream), Some(Peer { uid: peer.uid(), pid: peer.pid() })))
    }

    async fn wait_until_lost(&self) {
        self.wait_until_removed().await;
    }
}

/// Serves TCP until stopped, as soon as the address is free.
pub(super) async fn serve_tcp(
    opened: Result<OpenTcp, AdminError>,
    address: SocketAddr,
    inside: ServerContext,
    shut: OpenRetry,
) {
    let Some(tcp) = shut.wait_until_open(opened, || listen::open_tcp(address)).await else { return };
    serve_listener(
        tcp.listener,
        AdminListener::new(ListenerKind::Tcp(tcp.address.port())),
        inside,
        shut.stopping,
    )
    .await;
}

/// Serves the socket until stopped, as soon as its path is free, and again after its file was removed: reloads and
/// orders to drain arrive only here.
pub(super) async fn serve_socket(
    mut opened: Result<OpenSocket, AdminError>,
    path: PathBuf,
    inside: ServerContext,
    shut: OpenRetry,
) {
    let open = || listen::open_socket(&path);
    while let Some(socket) = shut.wait_until_open(opened, open).await {
        let ended = serve_listener(
            socket,
            AdminListener::new(ListenerKind::Unix),
            inside.clone(),
            shut.stopping.clone(),
        )
        .await;
        if ended == EndReason::Stopped {
            return;
        }
        tracing::warn!(socket = %path.display(), "another process removed the admin socket; it is created again");
        opened = open();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    Stopped,
    ListenerGone,
}

/// Retries a listener that cannot open yet, and reports why it cannot.
#[derive(Clone, Debug)]
pub(super) struct OpenRetry {
    errors: watch::Sender<Vec<String>>,
    stopping: watch::Receiver<bool>,
}

impl OpenRetry {
    /// Each listener adds its error to `errors` until it opens.
    pub(super) const fn new(errors: watch::Sender<Vec<String>>, stopping: watch::Receiver<bool>) -> Self {
        Self { errors, stopping }
    }

    /// Tries to open the listener, with growing pauses. `None`: the daemon stops.
    async fn wait_until_open<T>(
        &self,
        mut opened: Result<T, AdminError>,
        open: impl Fn() -> Result<T, AdminError>,
    ) -> Option<T> {
        let mut pause = limits::OPEN_PAUSE_MIN;
        let mut reported = None;
        let mut stopping = self.stopping.clone();
        loop {
            match opened {
                Ok(door) => {
                    self.report_error(&mut reported, None);
                    return Some(door);
                }
                Err(error) => self.report_error(&mut reported, Some(error.to_string())),
            }
            tokio::select! {
                _ = stopping.changed() => return None,
                () = tokio::time::sleep(pause) => {}
            }
            pause = pause.saturating_mul(2).min(limits::OPEN_PAUSE_MAX);
            opened = open();
        }
    }

    /// Reports why the listener cannot open, and logs a line for each change.
    fn report_error(&self, reported: &mut Option<String>, now: Option<String>) {
        if *reported == now {
            return;
        }
        match &now {
            Some(error) => {
                tracing::error!(%error, "the admin api cannot listen and tries again; services are served");
            }
            None => tracing::info!(target: NOTICE, "the admin api listens again"),
        }
        self.errors.send_modify(|errors| {
            errors.retain(|it| Some(it) != reported.as_ref());
            errors.extend(now.clone());
        });
        *reported = now;
    }
}

/// Serves a listener until stopped, or until no client can connect, then lets running answers finish.
async fn serve_listener(
    listener: impl Listener,
    door: AdminListener,
    inside: ServerContext,
    mut stopping: watch::Receiver<bool>,
) -> EndReason {
    let door = Arc::new(door);
    let ServerContext { readings, events, actions: acts } = inside;
    let router = routes::build_router(RequestContext {
        readings,
        events,
        actions: acts,
        listener: Arc::clone(&door),
        peer: None,
    });
    let mut guests = IdleEvictor::default();
    let mut connections = JoinSet::new();
    let ended = loop {
        tokio::select! {
            _ = stopping.changed() => break EndReason::Stopped,
            () = listener.wait_until_lost() => break EndReason::ListenerGone,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match admit_client(&door, &mut guests, peer).await {
                    Some(place) => {
                        let router = with_peer(router.clone(), peer);
                        let guest = guests.add_client();
                        connections.spawn(serve_connection(stream, router, guest, place, stopping.clone()));
                    }
                    None => reject_client(stream).await,
                },
                Err(error) => {
                    tracing::warn!(%error, "the admin api cannot accept a connection");
                    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    };
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits::DRAIN_TIME_MAX, drained).await.is_err() {
        tracing::debug!("admin clients were cut off");
    }
    ended
}

/// Takes a free permit, or that of an idle client, which it evicts. `None`: there is neither.
async fn admit_client(door: &AdminListener, guests: &mut IdleEvictor, peer: Option<Peer>) -> Option<Permit> {
    loop {
        if let Some(place) = door.connections.try_acquire(peer) {
            return Some(place);
        }
        if !guests.evict_idle().await {
            return None;
        }
    }
}

/// Gives the peer to all paths.
fn with_peer(router: Router, peer: Option<Peer>) -> Router {
    match peer {
        Some(peer) => router.layer(Extension(peer)),
        None => router,
    }
}

async fn reject_client(mut stream: Box<dyn Stream>) {
    let sent = async {
        stream.write_all(BUSY_RESPONSE).await?;
        stream.shutdown().await
    };
    // A client that cannot take this answer loses nothing without it.
    let _ = tokio::time::timeout(limits::REJECT_TIME_MAX, sent).await;
}

// The permit must be free once the client is gone, and it is: arguments are dropped from the last to the first.
async fn serve_connection(
    stream: Box<dyn Stream>,
    router: Router,
    guest: TrackedClient,
    _place: Permit,
    mut stopping: watch::Receiver<bool>,
) {
    let answer = |request: Request<Incoming>| {
        let asking = guest.begin_request();
        let answered = TowerToHyperService::new(router.clone()).call(request);
        async move { answered.await.map(|answer| TrackedBody::wrap_response(answer, asking)) }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIME_MAX)
        .max_buf_size(limits::HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(StallTimeout::new(guest.track_stream(stream))), service_fn(answer));
    let mut connection = std::pin::pin!(connection);
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            _ = stopping.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Some(Err(error)) = guest.serve_until_evicted(served).await {
        tracing::debug!(%error, "an admin connection ended early");
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the client took longer than {} s", limits::ANSWER_TIME_MAX.as_secs())]
struct SlowClient;

/// An answer. Its request counts as in progress until the whole answer is written.
struct TrackedBody {
    body: axum::body::Body,
    /// The end of the allowed time. `None`: it is a stream of events; the daemon disconnects a lagging watcher.
    deadline: Option<Instant>,
    _guard: RequestGuard,
}

impl TrackedBody {
    fn wrap_response(answer: Response, asking: RequestGuard) -> hyper::Response<Self> {
        let content_type = answer.headers().get(header::CONTENT_TYPE);
        let is_stream = content_type.is_some_and(|it| it == EVENT_STREAM);
        let deadline = (!is_stream).then(|| Instant::now() + limits::ANSWER_TIME_MAX);
        answer.map(|body| Self { body, deadline, _guard: asking })
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // The client takes each buffer in time or is disconnected, so this is polled soon after the deadline.
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Poll::Ready(Some(Err(axum::Error::new(SlowClient))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use axum::http::StatusCode;
    use axum::routing::get;
    use futures_util::stream;
    use tokio::io::{AsyncReadExt, DuplexStream};

    use super::*;
    use crate::response;

    /// An answer that never ends by itself.
    async fn endless(content_type: &'static str) -> Response {
        let pieces = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1024])));
        response::typed_response(StatusCode::OK, content_type, axum::body::Body::from_stream(pieces))
    }

    /// Reads just enough never to stall, for so long at most; `false`: the connection ended before.
    async fn reads_slowly(mut client: DuplexStream, most: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < most {
            let mut buffer = vec![0; 512 * 1024];
            if client.read(&mut buffer).await.is_ok_and(|read| read == 0) {
                return false;
            }
            tokio::time::sleep(limits::WRITE_STALL_MAX / 4).await;
        }
        true
    }

    /// Whether a slow client still gets more of such an answer after twice the allowed time.
    async fn goes_on(content_type: &'static str) -> bool {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let (_stop, stopping) = watch::channel(false);
        let router = Router::new().route("/", get(move || endless(content_type)));
        let place = AdminListener::new(ListenerKind::Unix).connections.try_acquire(None).unwrap();
        let serving =
            serve_connection(Box::new(ours), router, IdleEvictor::default().add_client(), place, stopping);
        let serving = tokio::spawn(serving);
        let goes_on = reads_slowly(theirs, limits::ANSWER_TIME_MAX * 2).await;
        serving.await.unwrap();
        goes_on
    }

    #[tokio::test(start_paused = true)]
    async fn every_answer_except_an_event_stream_has_a_deadline() {
        for (content_type, expected) in [
            ("application/jsonl", false),
            ("application/json", false),
            ("text/plain; charset=utf-8", false),
            (EVENT_STREAM, true),
        ] {
            assert_eq!(goes_on(content_type).await, expected, "{content_type}");
        }
    }
}
