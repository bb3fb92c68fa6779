//! A stream with a limit on the bytes read.
//!
//! Invariant: reading beyond the limit is an error that names it, and never looks like the end of a reply.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// Limits reads, not writes.
#[derive(Debug)]
pub(super) struct LimitedStream<S> {
    stream: Take<S>,
    limit: u64,
}

impl<S: AsyncRead> LimitedStream<S> {
    pub(super) fn new(stream: S, most: u64) -> Self {
        // One byte more, to tell an end at the limit from an excess.
        Self { stream: stream.take(most.saturating_add(1)), limit: most }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stream.limit() == 0 {
            return Poll::Ready(Err(io::Error::other(format!("more than {} bytes came", self.limit))));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_beyond_the_limit_are_an_error() {
        let read = async |bytes: &[u8]| {
            let mut read = Vec::new();
            LimitedStream::new(bytes, 3).read_to_end(&mut read).await.map_err(|error| error.to_string())
        };
        assert_eq!(read(b"").await, Ok(0));
        assert_eq!(read(b"123").await, Ok(3));
        assert_eq!(read(b"1234").await, Err("more than 3 bytes came".to_owned()));
        let mut endless = LimitedStream::new(tokio::io::repeat(b'x'), 3);
        let (mut read, mut bytes) = (0, [0; 2]);
        while let Ok(came) = endless.read(&mut bytes).await {
            read += came;
        }
        assert_eq!(read, 4);
    }
}
