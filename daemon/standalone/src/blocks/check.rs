//! One check of one backend: it opens a socket, asks, and says that the backend is healthy or why it is not.
//!
//! Invariant: a check ends within its timeout, keeps at most [`REPLY_BYTES_MAX`] of an answer and reads at most
//! [`READ_BYTES_MAX`], whatever the backend does. What is dialled is a backend's address: there is no DNS, and no
//! redirect is followed. Files that TLS needs are not the backend's: without them it is not asked, and the time that
//! they take is not its time. What this node lacks is not the backend's either, such as a port: that is no bad check.

mod grpc;
mod http;
mod limited_stream;
mod search;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::limited_stream::LimitedStream;
use self::search::Search;
use super::{CheckKind, HealthCheck, Statuses};
use holdfast_config::CheckTls;
use holdfast_credentials::ClientTls;
use holdfast_host::error_origin::ErrorOrigin;
use holdfast_host::exempt;

/// The most that is kept of what a backend answers, and the part of it in which a text is looked for: as much as
/// `HAProxy` has for it, and 128 checks at once then keep 2 MiB.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// The most that is read of a backend: as much again as counts of an answer for what is around it, heads and lengths of
/// chunks, because a server may send heads that mean nothing for ever.
const READ_BYTES_MAX: u64 = 2 * ANSWER_BYTES_MAX as u64;

/// The most that is read of a backend beside that to speak TLS: its certificates and the authorities of which it takes
/// any, each within the 64 KiB that rustls takes of one message.
const TLS_BYTES_MAX: u64 = 128 * 1024;

const USER_AGENT: &str = concat!("holdfast/", env!("CARGO_PKG_VERSION"));

/// How much of a text or of an answer is shown: enough to recognise the protocol.
const EXCERPT_CHARACTERS_MAX: usize = 40;

/// Why a backend did not pass its check.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    /// That says nothing of the backend.
    #[error("not asked: no file of certificate authorities could be read yet")]
    NotAsked,
    /// This node could not ask. That says nothing of the backend either.
    #[error("not asked: this node could not: {0}")]
    Unable(io::Error),
    /// This node has no route to the backend.
    #[error("no route: {0}")]
    NoRoute(io::Error),
    /// Nothing listens there, or no way leads there.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The kernel joined the socket to itself, as it may where nothing listens on a local ephemeral port.
    #[error("cannot connect: nothing listens there")]
    OwnSocket,
    /// Connected, then broken.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// No TLS, or not with the backend that is meant.
    #[error("no TLS: {0}")]
    Tls(io::Error),
    /// Not done in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// Closed before the status line was complete.
    #[error("closed before a status line came")]
    Closed,
    /// A status line that does not end.
    #[error("the status line is longer than {} bytes", http::STATUS_LINE_BYTES_MAX)]
    TooLong,
    #[error("not an HTTP/1 status line: {0:?}")]
    NotHttp(String),
    /// What came is no whole answer of HTTP/1.
    #[error("no whole answer of HTTP/1: {0}")]
    NotWhole(String),
    /// A status that is not a healthy one.
    #[error("status {0}, healthy are {1}")]
    Status(u16, Statuses),
    /// The text did not come before the end, or not early enough.
    #[error("{text:?} is not in {within}, which begins {answer:?}")]
    Without {
        /// What was looked for.
        text: String,
        /// Where.
        within: &'static str,
        /// How the answer begins.
        answer: String,
    },
    /// What a server of gRPC says, or would.
    #[error(transparent)]
    NotServing(#[from] grpc::GrpcCheckError),
}

impl CheckError {
    /// The error of a connection that was begun so long ago.
    fn from_connect(error: io::Error, after: Duration) -> Self {
        match ErrorOrigin::classify(&error, after) {
            ErrorOrigin::Node => Self::Unable(error),
            ErrorOrigin::Route => Self::NoRoute(error),
            ErrorOrigin::Peer => Self::Connect(error),
        }
    }

    /// The error of a connection that stood.
    fn from_stream(error: io::Error) -> Self {
        Self::from_established(error, Self::Broken)
    }

    /// The error of a handshake.
    fn from_tls(error: io::Error) -> Self {
        Self::from_established(error, Self::Tls)
    }

    fn from_established(error: io::Error, failed: fn(io::Error) -> Self) -> Self {
        match ErrorOrigin::classify_established(&error) {
            ErrorOrigin::Node => Self::Unable(error),
            ErrorOrigin::Route | ErrorOrigin::Peer => failed(error),
        }
    }
}

/// Runs one check, at most for its timeout. `tls` has the files of a check that speaks TLS.
pub(super) async fn run_check(
    check: &HealthCheck,
    backend: SocketAddr,
    tls: Option<&ClientTls>,
) -> Result<(), CheckError> {
    let tls = match tls {
        Some(tls) => Some(tls.current().await.ok_or(CheckError::NotAsked)?),
        None => None,
    };
    let ask = async {
        let target = check.target(backend);
        let stream = connect(target).await?;
        match (&check.kind, tls) {
            (CheckKind::Tcp, _) => Ok(()),
            (CheckKind::SendExpect { send, expect }, _) => send_expect(stream, send.as_deref(), expect).await,
            (CheckKind::Http(asked), None) => http::check_http(stream, target, asked).await,
            (CheckKind::Grpc(asked), None) => grpc::check_health(stream, target, asked).await,
            // Larger by far than what other checks need.
            (CheckKind::Http(asked), Some(tls)) => {
                Box::pin(async {
                    let stream = connect_tls(stream, target, asked.tls.as_ref(), tls).await?;
                    http::check_http(stream, target, asked).await
                })
                .await
            }
            (CheckKind::Grpc(asked), Some(tls)) => {
                Box::pin(async {
                    let stream =
                        connect_tls(stream, target, asked.tls.as_ref(), with_http2_alpn(&tls)).await?;
                    grpc::check_health(stream, target, asked).await
                })
                .await
            }
        }
    };
    tokio::time::timeout(check.timeout, ask).await.unwrap_or(Err(CheckError::TimedOut(check.timeout)))
}

/// Speaks TLS with the backend that is meant.
async fn connect_tls(
    stream: TcpStream,
    target: SocketAddr,
    asked: Option<&CheckTls>,
    tls: Arc<ClientConfig>,
) -> Result<TlsStream<LimitedStream<TcpStream>>, CheckError> {
    let name = asked.and_then(|tls| tls.server_name.clone());
    // The configuration has no name that this refuses.
    let name = name.and_then(|name| ServerName::try_from(name).ok());
    let name = name.unwrap_or_else(|| target.ip().into());
    let stream = LimitedStream::new(stream, TLS_BYTES_MAX + READ_BYTES_MAX);
    TlsConnector::from(tls).connect(name, stream).await.map_err(CheckError::from_tls)
}

/// The same trust and the same certificate, for a server that shall speak HTTP/2.
fn with_http2_alpn(tls: &ClientConfig) -> Arc<ClientConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(tls)
}

/// Connects, and has the connection end by a reset: what is closed in due form leaves a socket behind for a minute, and
/// 10,000 backends that are asked every 5 s would keep 120,000 of them. Whatever ends a check, no byte is missed then.
async fn connect(backend: SocketAddr) -> Result<TcpStream, CheckError> {
    let begun = Instant::now();
    let connected = exempt::connect(backend).await;
    let stream = connected.map_err(|error| CheckError::from_connect(error, begun.elapsed()))?;
    // Where it is refused, the socket stays for that minute.
    let _ = stream.set_zero_linger();
    if is_own_socket(&stream, backend) { Err(CheckError::OwnSocket) } else { Ok(stream) }
}

fn is_own_socket(stream: &TcpStream, peer: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|local| local == peer)
}

/// Sends a text, if there is one, and reads until another one came.
async fn send_expect(mut stream: TcpStream, send: Option<&str>, expect: &str) -> Result<(), CheckError> {
    stream.write_all(send.unwrap_or_default().as_bytes()).await.map_err(CheckError::from_stream)?;
    let mut search = Search::new(expect);
    while !search.scan_answer() {
        match stream.read_buf(&mut search.answer).await {
            Ok(0) => break,
            Ok(_) => (),
            Err(error) => return Err(CheckError::from_stream(error)),
        }
    }
    search.into_result()
}

/// What people need of a text to recognise it.
fn excerpt(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(EXCERPT_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests;
