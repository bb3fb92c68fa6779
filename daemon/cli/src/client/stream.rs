//! The connection to the daemon below HTTP: the unix socket or TCP.
//!
//! Invariant: connecting ends within [`CONNECT_TIME_MAX`], even if no process accepts.

use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// Loopback connects at once or never.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause between attempts at a socket with a full backlog.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

const ACCEPT_TIMED_OUT: &str =
    "the daemon accepted no connection within 2 seconds: it hangs, or too many clients connect at once";

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to a socket. It refuses at once if its backlog is full, and may accept a moment later.
pub(super) async fn connect_socket(path: &Path) -> io::Result<UnixStream> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if begun.elapsed() >= CONNECT_TIME_MAX {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, ACCEPT_TIMED_OUT));
                }
                tokio::time::sleep(QUEUE_PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// Connects to the first address that answers. The call may block: nothing else runs yet.
pub(super) fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "it has no address; write HOST:PORT");
    let unknown = |error: io::Error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
    for address in address.to_socket_addrs().map_err(unknown)? {
        match std::net::TcpStream::connect_timeout(&address, CONNECT_TIME_MAX) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                return TcpStream::from_std(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A stream that reads nothing before the first write. A daemon without a free place answers and hangs up before it
/// gets a request, but HTTP reads an answer only after a request. So the answer is read then, and a failed write of the
/// request is no error.
pub(super) struct WriteFirstStream {
    stream: Box<dyn Stream>,
    has_written: bool,
    reader: Option<Waker>,
}

impl WriteFirstStream {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, has_written: false, reader: None }
    }
}

impl AsyncRead for WriteFirstStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_written {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteFirstStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.has_written = true;
        self.reader.take().inspect(Waker::wake_by_ref);
        Poll::Ready(match written {
            Err(error) if has_hung_up(&error) => Ok(bytes.len()),
            written => written,
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn has_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
