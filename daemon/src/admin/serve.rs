//! The accept loop of a door and the life of one connection.
//!
//! Invariant: a door has at most the connections that [`Door`] has places for, and each of them ends by itself within
//! bounded time. Who comes when all places are taken is told so and sent away; nobody waits in a queue.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::door::{Door, Place, Visit};
use super::listen::Socket;
use super::stall::Unstalled;
use super::{Peer, Readings, limits, routes};

const ALL_PLACES_TAKEN: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: text/plain; charset=utf-8\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 90\r\n\r\n\
    error: all connections are in use\nhint: close idle clients, or try again in a few seconds\n";

/// A client's end.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What clients come in by.
pub(super) trait Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)>;
}

impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        let (stream, _) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), None))
    }
}

impl Listener for Socket {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<Peer>)> {
        let (stream, _) = self.listener.accept().await?;
        let peer = stream.peer_cred()?;
        Ok((Box::new(stream), Some(Peer { uid: peer.uid(), pid: peer.pid() })))
    }
}

/// Serves a door until told to stop, then lets answers under way finish.
pub(super) async fn serve(
    listener: impl Listener,
    door: Door,
    readings: Arc<Readings>,
    mut stopping: watch::Receiver<bool>,
) {
    let door = Arc::new(door);
    let router = routes::router(Visit { readings, door: Arc::clone(&door), peer: None });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopping.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match door.connections.take(peer) {
                    Some(place) => {
                        let router = known(router.clone(), peer);
                        connections.spawn(connection(stream, router, place, stopping.clone()));
                    }
                    None => turn_away(stream).await,
                },
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

async fn connection(
    stream: Box<dyn Stream>,
    router: Router,
    _place: Place,
    mut stopping: watch::Receiver<bool>,
) {
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
