//! One request to the daemon: the unix socket first, then TCP.
//!
//! Invariant: nothing waits without end and nothing grows without bound; an answer that broke off is an error, never a
//! shorter answer. Deliberately absent: an HTTP library; one request of one kind to one known server needs a page of code,
//! and the command line starts without a runtime.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::Exit;
use crate::admin::hint::{COMMAND, WORDS_HEADER};
use crate::admin::limits::HEADER_BYTES_MAX;

/// Loopback connects at once or never.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Longer than the longest comparison that the daemon makes before it answers.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// Status line and headers; the daemon's have some 500 bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
/// The hexadecimal size of a chunk with its line end.
const SIZE_LINE_BYTES_MAX: u64 = 64;
/// A message that is shown to a person.
const REFUSAL_BYTES_MAX: u64 = 64 * 1024;

/// Why there is no answer, and how the program ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("cannot reach the daemon:\n{}hint: is it running? try: systemctl status holdfast", tried(.0))]
    Unreachable(Vec<(String, io::Error)>),
    #[error("the daemon's answer cannot be used: {0}\nhint: is it the daemon that listens there? try again")]
    Broken(io::Error),
    #[error(
        "the question is too long: it has {0} bytes, and the daemon reads no more than {HEADER_BYTES_MAX}\nhint: a service is \
         NAMESPACE/NAME, with at most 63 and 253 bytes"
    )]
    TooLong(usize),
    #[error("{message}")]
    Refused { status: u16, message: String },
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

fn tried(all: &[(String, io::Error)]) -> String {
    all.iter().map(|(place, error)| format!("  {place}: {error}\n")).collect()
}

impl ClientError {
    /// Says it, unless it is that the reader of our output has gone, which is no error.
    pub(super) fn report(&self, err: &mut impl Write) -> Exit {
        if let Self::Output(error) = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return Exit::Good;
        }
        // Nobody is left to tell if this cannot be written.
        let _ = writeln!(err, "holdfast: {self}");
        match self {
            Self::Unreachable(_) | Self::Broken(_) => Exit::Unreachable,
            Self::TooLong(_) => Exit::Usage,
            Self::Refused { status: 400, .. } => Exit::Usage,
            Self::Refused { status: 409, .. } => Exit::Finding,
            Self::Refused { status: 422, .. } => Exit::Config,
            Self::Refused { .. } => Exit::Unreachable,
            Self::Output(_) => Exit::Finding,
        }
    }
}

/// Where the daemon may be.
#[derive(Clone, Debug)]
pub(super) struct Client {
    socket: Option<PathBuf>,
    address: Option<String>,
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

impl Client {
    pub(super) fn new(socket: Option<PathBuf>, address: Option<String>) -> Self {
        Self { socket, address }
    }

    /// Asks for a path that begins with a slash and is encoded.
    pub(super) fn get(&self, path: &str) -> Result<Answer, ClientError> {
        self.ask("GET", path)
    }

    /// Has something done.
    pub(super) fn post(&self, path: &str) -> Result<Answer, ClientError> {
        self.ask("POST", path)
    }

    fn ask(&self, method: &str, path: &str) -> Result<Answer, ClientError> {
        let host = self.address.as_deref().unwrap_or("localhost");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/plain\r\n{WORDS_HEADER}: {COMMAND}\r\n\
             connection: close\r\n\r\n"
        );
        if request.len() > HEADER_BYTES_MAX {
            return Err(ClientError::TooLong(request.len()));
        }
        let mut stream = self.connect()?;
        stream.write_all(request.as_bytes()).map_err(ClientError::Broken)?;
        Answer::read(BufReader::new(stream)).map_err(ClientError::Broken)
    }

    fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let mut tried = Vec::new();
        if let Some(path) = &self.socket {
            match connect_socket(path) {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => tried.push((path.display().to_string(), error)),
            }
        }
        if let Some(address) = &self.address {
            match connect_tcp(address) {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => tried.push((address.clone(), error)),
            }
        }
        Err(ClientError::Unreachable(tried))
    }
}

fn connect_socket(path: &PathBuf) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "it has no address; write HOST:PORT");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME_MAX) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE_MAX))?;
                stream.set_write_timeout(Some(SILENCE_MAX))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What came back: a status, and a body that is read as it comes.
pub(super) struct Answer {
    pub(super) status: u16,
    body: Body,
}

type Source = BufReader<Box<dyn Stream>>;

impl Answer {
    fn read(mut source: Source) -> io::Result<Self> {
        let mut head = (&mut source).take(HEAD_BYTES_MAX);
        let status = status(&line(&mut head)?)?;
        let mut length = Length::UntilEnd;
        loop {
            let header = line(&mut head)?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').ok_or_else(|| malformed("a header has no colon"))?;
            match name.to_ascii_lowercase().as_str() {
                "transfer-encoding" => length = Length::Chunked { left: 0, ended: false },
                "content-length" => {
                    length = Length::Known(value.trim().parse().map_err(|_| malformed("a bad length"))?);
                }
                _ => {}
            }
        }
        Ok(Self { status, body: Body { source, length } })
    }

    /// The body as it comes.
    pub(super) fn body(&mut self) -> &mut impl Read {
        &mut self.body
    }

    /// This answer if it is one, else what the daemon said against it.
    pub(super) fn expect_ok(mut self) -> Result<Self, ClientError> {
        if self.status == 200 {
            return Ok(self);
        }
        let text = self.rest()?;
        Err(ClientError::Refused { status: self.status, message: message(self.status, &text) })
    }

    /// The body of an answer that is known to be short.
    pub(super) fn rest(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut text = Vec::new();
        self.body.by_ref().take(REFUSAL_BYTES_MAX).read_to_end(&mut text).map_err(ClientError::Broken)?;
        Ok(text)
    }

    /// Writes the body through.
    pub(super) fn copy(&mut self, out: &mut impl Write) -> Result<(), ClientError> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = self.body.read(&mut buffer).map_err(ClientError::Broken)?;
            match buffer.get(..count) {
                None | Some([]) => break,
                Some(bytes) => out.write_all(bytes)?,
            }
        }
        out.flush()?;
        Ok(())
    }
}

/// A refusal in JSON.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    hint: String,
}

/// What the daemon said against a question, for a person, in whichever form it came.
fn message(status: u16, text: &[u8]) -> String {
    if let Ok(Refusal { error, hint }) = serde_json::from_slice(text) {
        return format!("{error}\nhint: {hint}");
    }
    let said = String::from_utf8_lossy(text);
    match said.strip_prefix("error: ").unwrap_or(&said).trim_end() {
        "" => format!("the daemon refused the question with status {status} and no word"),
        message => message.to_owned(),
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// One line without its end.
fn line(source: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    source.read_until(b'\n', &mut line)?;
    let line = line.strip_suffix(b"\n").ok_or_else(|| malformed("the answer broke off, or is no HTTP"))?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    String::from_utf8(line.to_vec()).map_err(|_| malformed("a header is no text"))
}

fn status(line: &str) -> io::Result<u16> {
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    code.and_then(|code| code.parse().ok()).ok_or_else(|| malformed("no HTTP status line"))
}

enum Length {
    Known(u64),
    Chunked { left: u64, ended: bool },
    UntilEnd,
}

struct Body {
    source: Source,
    length: Length,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        match &mut self.length {
            Length::UntilEnd => self.source.read(buffer),
            Length::Known(left) => read_some(&mut self.source, left, buffer),
            Length::Chunked { ended: true, .. } => Ok(0),
            Length::Chunked { left, ended } => {
                if *left == 0 {
                    *left = chunk_size(&mut self.source)?;
                    if *left == 0 {
                        *ended = true;
                        return Ok(0);
                    }
                }
                let count = read_some(&mut self.source, left, buffer)?;
                if *left == 0 && !line(&mut (&mut self.source).take(2))?.is_empty() {
                    return Err(malformed("a chunk is longer than it says"));
                }
                Ok(count)
            }
        }
    }
}

fn chunk_size(source: &mut Source) -> io::Result<u64> {
    let size = line(&mut source.take(SIZE_LINE_BYTES_MAX))?;
    let digits = size.split(';').next().unwrap_or_default();
    u64::from_str_radix(digits, 16).map_err(|_| malformed("a chunk has no size"))
}

fn read_some(source: &mut Source, left: &mut u64, buffer: &mut [u8]) -> io::Result<usize> {
    let count = source.take(*left).read(buffer)?;
    if count == 0 && *left > 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer broke off"));
    }
    *left = left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn read(answer: &str) -> io::Result<(u16, String)> {
        let stream: Box<dyn Stream> = Box::new(Cursor::new(answer.as_bytes().to_vec()));
        let mut answer = Answer::read(BufReader::with_capacity(3, stream))?;
        let mut text = String::new();
        answer.body.read_to_string(&mut text)?;
        Ok((answer.status, text))
    }

    #[test]
    fn bodies_of_all_lengths_are_read() {
        let ok = |text: &str| Some((200, text.to_owned()));
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r\nto the end").ok(), ok("to the end"));
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef").ok(), ok("abc"));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n, chunked.\r\n0\r\n\r\n";
        assert_eq!(read(chunked).ok(), ok("hello, chunked."));
    }

    #[track_caller]
    fn check_broken(answer: &str) {
        assert!(read(answer).is_err(), "{answer}");
    }

    #[test]
    fn an_answer_that_broke_off_is_an_error() {
        check_broken("");
        check_broken("HTTP/1.1 200 OK\r\n");
        check_broken("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc");
        check_broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel");
        check_broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        check_broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n");
        check_broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n");
        check_broken("SSH-2.0-OpenSSH_9.9\r\n");
        check_broken(&format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(20_000)));
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(answer in "(HTTP/1.1 200 OK\r\n)?(transfer-encoding: chunked\r\n)?(\r\n)?\\PC*") {
            let _ = read(&answer);
        }
    }
}
