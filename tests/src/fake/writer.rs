//! Writes answers: heads, bodies of known length, chunked bodies.
//!
//! Invariant: after the bytes that a fault allows, it writes nothing more.

use std::io;

use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::fault::status;
use super::protobuf;

/// The encoding of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Encoding {
    #[default]
    Json,
    Protobuf,
}

impl Encoding {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// The writing side of a connection.
#[derive(Debug)]
pub(super) struct Writer<W> {
    to: W,
    /// How many body bytes remain until the cut.
    left: Option<usize>,
    /// The encoding of the current answer.
    pub(super) encoding: Encoding,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, left: None, encoding: Encoding::Json }
    }

    /// Cuts off the next answer after this many bytes of its body.
    pub(super) fn cut_after(&mut self, bytes: usize) {
        self.left = Some(bytes);
    }

    /// Writes exactly these bytes.
    pub(super) async fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes).await?;
        self.to.flush().await
    }

    /// Writes a complete JSON answer.
    pub(super) async fn whole(&mut self, code: u16, headers: &str, body: &str) -> io::Result<()> {
        self.whole_as(Encoding::Json, code, headers, body.as_bytes()).await
    }

    async fn whole_as(
        &mut self,
        encoding: Encoding,
        code: u16,
        headers: &str,
        body: &[u8],
    ) -> io::Result<()> {
        let length = body.len();
        let head = head(encoding, code, &format!("{headers}Content-Length: {length}\r\n"));
        self.to.write_all(head.as_bytes()).await?;
        self.body(body).await
    }

    /// Answers with a `Status`.
    pub(super) async fn status(
        &mut self,
        code: u16,
        reason: &str,
        retry_after: Option<u32>,
    ) -> io::Result<()> {
        let headers = retry_after.map_or(String::new(), |seconds| format!("Retry-After: {seconds}\r\n"));
        let status = status(code, reason, reason);
        let body = match self.encoding {
            Encoding::Json => status.to_string().into_bytes(),
            Encoding::Protobuf => protobuf::object(&status),
        };
        self.whole_as(self.encoding, code, &headers, &body).await
    }

    /// Answers that the object is missing; unlike for an unknown path, the body names it.
    pub(super) async fn missing(&mut self, name: &str) -> io::Result<()> {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
            "message": format!("{name:?} not found"), "details": {"name": name}, "code": 404,
        });
        self.whole(404, "", &body.to_string()).await
    }

    /// Writes the head of an answer of unknown length.
    pub(super) async fn begin(&mut self) -> io::Result<()> {
        self.raw(head(self.encoding, 200, "Transfer-Encoding: chunked\r\n").as_bytes()).await
    }

    /// Writes a line of a watch, in the answer's encoding.
    pub(super) async fn line(&mut self, line: &str) -> io::Result<()> {
        self.lines(line, 1).await
    }

    /// Writes the same line several times at once.
    pub(super) async fn lines(&mut self, line: &str, times: usize) -> io::Result<()> {
        match self.encoding {
            Encoding::Json => self.chunk(line.repeat(times).as_bytes()).await,
            Encoding::Protobuf => self.chunk(&protobuf::frame(line).repeat(times)).await,
        }
    }

    /// Writes a chunk.
    pub(super) async fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        // An empty chunk would end the body.
        if bytes.is_empty() {
            return Ok(());
        }
        self.to.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
        self.body(bytes).await?;
        self.raw(b"\r\n").await
    }

    /// Ends the body.
    pub(super) async fn end(&mut self) -> io::Result<()> {
        self.raw(b"0\r\n\r\n").await
    }

    /// Shuts the sending side down, so that the client receives all written bytes.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        self.to.shutdown().await
    }

    async fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        let said = bytes.get(..self.left.unwrap_or(usize::MAX).min(bytes.len())).unwrap_or_default();
        self.to.write_all(said).await?;
        self.to.flush().await?;
        if said.len() < bytes.len() {
            return Err(io::Error::other("cut off as the test asked for"));
        }
        self.left = self.left.map(|left| left - said.len());
        Ok(())
    }
}

fn head(encoding: Encoding, code: u16, headers: &str) -> String {
    let word = if code < 400 { "OK" } else { "Failure" };
    let content_type = encoding.content_type();
    format!("HTTP/1.1 {code} {word}\r\nContent-Type: {content_type}\r\n{headers}\r\n")
}
