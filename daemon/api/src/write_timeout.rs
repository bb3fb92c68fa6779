//! A stream that times out if the client does not read.
//!
//! Invariant: the client takes all written data within [`limits::WRITE_STALL_MAX`], or the connection ends. The clock
//! stops at a flush, which comes only once everything was taken, so reading a byte now and then does not help.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::limits;

#[derive(Debug)]
pub(super) struct StallTimeout<S> {
    stream: S,
    // Runs from the first write that had to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> StallTimeout<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, timer: None }
    }

    fn check_stall(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            return written;
        }
        let clock = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limits::WRITE_STALL_MAX)));
        clock.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.check_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.timer = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Ends a test in which neither end gives up. It passes at once: the tests' clock advances when all tasks wait.
    const LONG: std::time::Duration = std::time::Duration::from_secs(3600);

    fn pair() -> (StallTimeout<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(16);
        (StallTimeout::new(ours), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let (mut ours, _theirs) = pair();
        let begun = tokio::time::Instant::now();
        let writing = tokio::time::timeout(LONG, ours.write_all(&[0; 64]));
        let error = writing.await.expect("it ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), limits::WRITE_STALL_MAX.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn reading_single_bytes_does_not_extend_the_timeout() {
        let (mut ours, mut theirs) = pair();
        let dripping = async {
            while theirs.read_u8().await.is_ok() {
                tokio::time::sleep(limits::WRITE_STALL_MAX / 2).await;
            }
        };
        let writing = tokio::time::timeout(LONG, ours.write_all(&[0; 64]));
        tokio::select! {
            () = dripping => panic!("the writer never closes"),
            result = writing => {
                assert_eq!(result.expect("it ends").unwrap_err().kind(), io::ErrorKind::TimedOut);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_buffer_has_its_own_timeout() {
        let (mut ours, mut theirs) = pair();
        for _ in 0..4 {
            let reading = async {
                tokio::time::sleep(limits::WRITE_STALL_MAX * 3 / 4).await;
                theirs.read_exact(&mut [0; 32]).await.unwrap();
            };
            let writing = async {
                ours.write_all(&[0; 32]).await.unwrap();
                ours.flush().await.unwrap();
            };
            tokio::join!(reading, writing);
        }
    }
}
