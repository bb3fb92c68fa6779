//! One check of one backend: it opens a socket, asks, and says that the backend is healthy or why it is not.
//!
//! Invariant: a check ends within its timeout and reads at most [`STATUS_LINE_BYTES_MAX`], whatever the backend does.
//! The status line is parsed by hand, because nothing else of an answer counts here, and a backend that is not quite
//! HTTP behind that line is still up. There is no DNS, no TLS and no redirect.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{CheckKind, HealthCheck};
use crate::exempt;

/// The most that a backend can make us read: far more than any status line.
const STATUS_LINE_BYTES_MAX: u64 = 8 * 1024;

/// How much of an answer that is not HTTP is shown: enough to recognise the protocol.
const EXCERPT_CHARACTERS_MAX: usize = 40;

/// Why a backend did not pass its check.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckFailed {
    /// Nothing listens there, or no way leads there.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The kernel joined the socket to itself, as it may where nothing listens on a local ephemeral port.
    #[error("cannot connect: nothing listens there")]
    OwnSocket,
    /// Connected, then broken.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// Not done in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// Closed before the status line was complete.
    #[error("closed before a status line came")]
    Closed,
    /// A status line that does not end.
    #[error("the status line is longer than {STATUS_LINE_BYTES_MAX} bytes")]
    TooLong,
    #[error("not an HTTP/1 status line: {0:?}")]
    NotHttp(String),
    /// A status that is not a healthy one.
    #[error("status {0}, healthy are 200 to 399")]
    Status(u16),
}

/// Runs one check, at most for its timeout.
pub(super) async fn run(check: &HealthCheck, backend: SocketAddr) -> Result<(), CheckFailed> {
    let ask = async {
        let stream = connect(backend).await?;
        match &check.kind {
            CheckKind::Tcp => Ok(()),
            CheckKind::Http { path } => get(stream, backend, path).await,
        }
    };
    tokio::time::timeout(check.timeout, ask).await.unwrap_or(Err(CheckFailed::TimedOut(check.timeout)))
}

async fn connect(backend: SocketAddr) -> Result<TcpStream, CheckFailed> {
    let stream = exempt::connect(backend).await.map_err(CheckFailed::Connect)?;
    if is_own_socket(&stream) { Err(CheckFailed::OwnSocket) } else { Ok(stream) }
}

fn is_own_socket(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

async fn get(mut stream: TcpStream, backend: SocketAddr, path: &str) -> Result<(), CheckFailed> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {backend}\r\nUser-Agent: holdfast/{}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
    );
    stream.write_all(request.as_bytes()).await.map_err(CheckFailed::Broken)?;
    let mut line = Vec::new();
    let mut answer = BufReader::new(stream.take(STATUS_LINE_BYTES_MAX));
    answer.read_until(b'\n', &mut line).await.map_err(CheckFailed::Broken)?;
    judge(&line)
}

fn judge(line: &[u8]) -> Result<(), CheckFailed> {
    let Some(line) = line.strip_suffix(b"\n") else {
        let full = u64::try_from(line.len()).is_ok_and(|length| length >= STATUS_LINE_BYTES_MAX);
        return Err(if full { CheckFailed::TooLong } else { CheckFailed::Closed });
    };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match status(line) {
        Some(200..=399) => Ok(()),
        Some(status) => Err(CheckFailed::Status(status)),
        None => Err(CheckFailed::NotHttp(excerpt(line))),
    }
}

/// `HTTP/1.x NNN` and perhaps a reason.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let (minor, rest) = rest.split_first()?;
    let (digits, reason) = rest.strip_prefix(b" ")?.split_at_checked(3)?;
    let well_formed = minor.is_ascii_digit()
        && digits.iter().all(u8::is_ascii_digit)
        && (reason.is_empty() || reason.starts_with(b" "));
    let number = digits.iter().fold(0, |number, digit| number * 10 + u16::from(*digit & 0x0f));
    (well_formed && number >= 100).then_some(number)
}

fn excerpt(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(EXCERPT_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests;
