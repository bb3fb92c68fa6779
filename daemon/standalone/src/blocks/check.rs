//! Runs one check of one backend.
//!
//! Invariant: a check ends within its timeout, stores at most [`ANSWER_BYTES_MAX`] and reads at most
//! [`READ_BYTES_MAX`], whatever the backend sends. It dials only a backend's address: it uses no DNS and follows no
//! redirect. TLS files are not the backend's: without them it is not checked, and their read is not part of the
//! timeout. A resource that this node lacks, such as a port, is no failure of the backend either.

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

/// The most bytes of a reply to store and search: HAProxy's limit too; 128 concurrent checks then store 2 MiB.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// The most bytes to read: twice that, for heads and chunk sizes, because a server may send useless heads for ever.
const READ_BYTES_MAX: u64 = 2 * ANSWER_BYTES_MAX as u64;

/// The most additional bytes of TLS: certificates and acceptable CAs, each within the 64 KiB that rustls accepts per
/// message.
const TLS_BYTES_MAX: u64 = 128 * 1024;

const USER_AGENT: &str = concat!("holdfast/", env!("CARGO_PKG_VERSION"));

/// The most characters of an excerpt: enough to recognise the protocol.
const EXCERPT_CHARACTERS_MAX: usize = 40;

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    /// This says nothing about the backend.
    #[error("not checked: no CA file could be read yet")]
    NotAsked,
    /// This node failed, which says nothing about the backend.
    #[error("not checked: this node failed: {0}")]
    Unable(io::Error),
    /// This node has no route.
    #[error("no route: {0}")]
    NoRoute(io::Error),
    /// The backend refuses or is unreachable.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The kernel connected the socket to itself, which can happen at an unused local ephemeral port.
    #[error("cannot connect: nothing listens there")]
    OwnSocket,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The TLS handshake failed, or the peer is not the expected one.
    #[error("no TLS: {0}")]
    Tls(io::Error),
    /// The timeout passed.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The peer closed before the status line was complete.
    #[error("closed before a status line came")]
    Closed,
    /// The status line does not end.
    #[error("the status line is longer than {} bytes", http::STATUS_LINE_BYTES_MAX)]
    TooLong,
    #[error("not an HTTP/1 status line: {0:?}")]
    NotHttp(String),
    /// The reply is not complete HTTP/1.
    #[error("no whole answer of HTTP/1: {0}")]
    NotWhole(String),
    /// The status is not healthy.
    #[error("status {0}, healthy are {1}")]
    Status(u16, Statuses),
    /// The text is missing in the reply or in its searched part.
    #[error("{text:?} is not in {within}, which begins {answer:?}")]
    Without {
        /// The expected text.
        text: String,
        /// The searched part.
        within: &'static str,
        /// The start of the reply.
        answer: String,
    },
    /// The backend's gRPC health is not `SERVING`, or unknown.
    #[error(transparent)]
    NotServing(#[from] grpc::GrpcCheckError),
}

impl CheckError {
    /// Converts the error of a connect that started `after` ago.
    fn from_connect(error: io::Error, after: Duration) -> Self {
        match ErrorOrigin::classify(&error, after) {
            ErrorOrigin::Node => Self::Unable(error),
            ErrorOrigin::Route => Self::NoRoute(error),
            ErrorOrigin::Peer => Self::Connect(error),
        }
    }

    /// Converts an error on an open connection.
    fn from_stream(error: io::Error) -> Self {
        Self::from_established(error, Self::Broken)
    }

    /// Converts an error of the TLS handshake.
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

/// Runs one check within its timeout. `tls` is the client of a check with TLS.
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
            (CheckKind::Http(config), None) => http::check_http(stream, target, config).await,
            (CheckKind::Grpc(config), None) => grpc::check_health(stream, target, config).await,
            // Boxed: much larger than the other checks' futures.
            (CheckKind::Http(config), Some(tls)) => {
                Box::pin(async {
                    let stream = connect_tls(stream, target, config.tls.as_ref(), tls).await?;
                    http::check_http(stream, target, config).await
                })
                .await
            }
            (CheckKind::Grpc(config), Some(tls)) => {
                Box::pin(async {
                    let stream =
                        connect_tls(stream, target, config.tls.as_ref(), with_http2_alpn(&tls)).await?;
                    grpc::check_health(stream, target, config).await
                })
                .await
            }
        }
    };
    tokio::time::timeout(check.timeout, ask).await.unwrap_or(Err(CheckError::TimedOut(check.timeout)))
}

/// Opens TLS with the expected peer.
async fn connect_tls(
    stream: TcpStream,
    target: SocketAddr,
    config: Option<&CheckTls>,
    tls: Arc<ClientConfig>,
) -> Result<TlsStream<LimitedStream<TcpStream>>, CheckError> {
    let name = config.and_then(|tls| tls.server_name.clone());
    // The configuration allows only valid names.
    let name = name.and_then(|name| ServerName::try_from(name).ok());
    let name = name.unwrap_or_else(|| target.ip().into());
    let stream = LimitedStream::new(stream, TLS_BYTES_MAX + READ_BYTES_MAX);
    TlsConnector::from(tls).connect(name, stream).await.map_err(CheckError::from_tls)
}

/// The same TLS settings with ALPN for HTTP/2.
fn with_http2_alpn(tls: &ClientConfig) -> Arc<ClientConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(tls)
}

/// Connects, with zero linger, so that the close sends a RST: a regular close leaves a socket for a minute, and 10,000
/// backends checked every 5 s would leave 120,000. No check misses the lost bytes.
async fn connect(backend: SocketAddr) -> Result<TcpStream, CheckError> {
    let begun = Instant::now();
    let connected = exempt::connect(backend).await;
    let stream = connected.map_err(|error| CheckError::from_connect(error, begun.elapsed()))?;
    // If this fails, the socket stays for that minute.
    let _ = stream.set_zero_linger();
    if is_own_socket(&stream, backend) { Err(CheckError::OwnSocket) } else { Ok(stream) }
}

fn is_own_socket(stream: &TcpStream, peer: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|local| local == peer)
}

/// Sends a text, if any, and reads until the expected one came.
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

/// A readable excerpt of a text.
fn excerpt(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(EXCERPT_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests;
