//! The accept loops and the life of one connection.
//!
//! Invariant: each listener has at most [`limits::CONNECTIONS_MAX`] connections, and each of them ends by itself within
//! bounded time. Who comes when all places are taken is told so and sent away; nobody waits in a queue.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::guard::Door;
use super::listen::Doors;
use super::stall::Unstalled;
use super::{Peer, Readings, limits, routes};

const ALL_PLACES_TAKEN: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 90\r\n\r\n\
    error: all connections are in use\nhint: close idle clients, or try again in a few seconds\n";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

trait Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)>;
}

impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        let (stream, _) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), None))
    }
}

impl Listener for UnixListener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let peer = stream.peer_cred()?;
        Ok((Box::new(stream), Some(Peer { uid: peer.uid(), pid: peer.pid() })))
    }
}

/// Serves until told to stop, then lets answers under way finish.
pub(super) async fn serve(doors: Doors, readings: Arc<Readings>, stopping: watch::Receiver<bool>) {
    let tcp_router = routes::router(Arc::clone(&readings), Door::Tcp(doors.address.port()));
    let tcp = accept_all(doors.tcp, tcp_router, stopping.clone());
    let unix = accept_all(&doors.socket.listener, routes::router(readings, Door::Unix), stopping);
    tokio::join!(tcp, unix);
}

impl<L: Listener> Listener for &L {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        (*self).accept().await
    }
}

async fn accept_all(listener: impl Listener, router: Router, mut stopping: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopping.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) if connections.len() < limits::CONNECTIONS_MAX => {
                    let router = known(router.clone(), peer);
                    connections.spawn(connection(stream, router, stopping.clone()));
                }
                Ok((stream, _)) => turn_away(stream).await,
                Err(error) => {
                    tracing::warn!(%error, "the admin api cannot accept a connection");
                    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits::DRAIN_TIME_MAX, drained).await.is_err() {
        tracing::debug!("admin clients were cut off at stop");
    }
}

/// Lets the paths know who is there.
fn known(router: Router, peer: Option<Peer>) -> Router {
    match peer {
        Some(peer) => router.layer(Extension(peer)),
        None => router,
    }
}

async fn turn_away(mut stream: Box<dyn Stream>) {
    let told = async {
        stream.write_all(ALL_PLACES_TAKEN).await?;
        stream.shutdown().await
    };
    // Whoever cannot even take this is no worse off without it.
    let _ = tokio::time::timeout(limits::TURN_AWAY_TIME_MAX, told).await;
}

async fn connection(stream: Box<dyn Stream>, router: Router, mut stopping: watch::Receiver<bool>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIME_MAX)
        .max_buf_size(limits::HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(Unstalled::new(stream)), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended early");
    }
}
