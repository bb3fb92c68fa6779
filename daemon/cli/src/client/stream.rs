//! The connection to the daemon, before HTTP: the unix socket or TCP.
//!
//! Invariant: connecting ends within [`CONNECT_TIME_MAX`], also where no process accepts.

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

/// The pause between two tries at a socket that has as many waiting clients as it takes.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

const ACCEPT_TIMED_OUT: &str =
    "this client was not let in within 2 seconds: the daemon hangs, or too many clients ask at once";

/// Either kind of connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A socket refuses at once where too many clients wait to be accepted; a moment later it may have room.
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

/// Connects to the first address that answers. The call blocks, which it may: nothing else runs yet.
pub(super) fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "it has no address; write HOST:PORT");
    for address in address.to_socket_addrs()? {
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

/// A stream on which nothing is read before the question goes out. A daemon with all its places taken answers before it
/// is asked, and hangs up. That answer is wanted, and HTTP takes an answer only after a question: so it is read only
/// then, and that the daemon did not take the question is no error.
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
