//! One request to the daemon: a query by the unix socket first, then by TCP; an order by the socket alone.
//!
//! Invariant: where both are configured, only root and the socket's group can serve the socket, but any process can
//! serve the TCP address while the daemon is down. So an order never goes there, and a query that does is reported.
//! Nothing waits or grows without bound; a truncated answer is an error, never a shorter answer. Callers see plain
//! blocking calls: each query has a small runtime of its own, on this thread. A connection serves one query.

mod stream;

use std::cell::RefCell;
use std::error::Error as _;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes};
use holdfast_status::printable::sanitise_lines;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::Exit;
use holdfast_api::hint::{COMMAND, WORDS_HEADER};
use holdfast_api::limits::HEADER_BYTES_MAX;
use holdfast_evidence::diagnose::EXIT_HEADER;
use stream::{Stream, WriteFirstStream, connect_socket, connect_tcp};

/// How long the daemon may stay silent: longer than its longest comparison before an answer.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// The most bytes of a status line and headers; the daemon's have some 500.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most bytes of an answer that is read before any of it is shown. The longest one is the list of all services,
/// with some 500 bytes for each.
const WHOLE_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of a message to show.
const REFUSAL_BYTES_MAX: u64 = 64 * 1024;

/// Why there is no answer; it decides the exit code.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("cannot reach the daemon:\n{}hint: {}", describe_attempts(.0), hint(.0))]
    Unreachable(Vec<(String, io::Error)>),
    #[error("cannot query the daemon: {0}\nhint: check this user's limit of open files, and try again")]
    NotSent(io::Error),
    #[error(
        "the daemon's answer cannot be used: {0}\nhint: another program may be listening there; see `ss -lxtp`"
    )]
    Broken(io::Error),
    #[error(
        "the request is too long: it has {0} bytes, and the daemon reads at most {HEADER_BYTES_MAX}\nhint: a service is \
         NAMESPACE/NAME, with at most 63 and 253 bytes"
    )]
    TooLong(usize),
    #[error("{message}")]
    Refused { status: u16, message: String },
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

fn hint(all: &[(String, io::Error)]) -> &'static str {
    let is_any = |kind| all.iter().any(|(_, error)| error.kind() == kind);
    if is_any(io::ErrorKind::PermissionDenied) {
        return "the socket is for root and the group of the daemon, `holdfast` with a package: try sudo";
    }
    match is_any(io::ErrorKind::InvalidInput) {
        true => {
            "give the host of --tcp as a name or an address of this host, such as localhost or 127.0.0.1:9890"
        }
        false => "is it running? try: systemctl status holdfast",
    }
}

fn describe_attempts(all: &[(String, io::Error)]) -> String {
    all.iter().map(|(place, error)| format!("  {place}: {error}\n")).collect()
}

impl ClientError {
    /// Reports the error, except that the reader of our output is gone, which is no error.
    pub(super) fn report(&self, err: &mut impl Write) -> Exit {
        if let Self::Output(error) = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return Exit::Good;
        }
        // If this write fails, nothing else can report it.
        let _ = writeln!(err, "holdfast: {}", sanitise_lines(&self.to_string()));
        match self {
            Self::Unreachable(_) | Self::NotSent(_) | Self::Broken(_) => Exit::Unreachable,
            Self::TooLong(_) => Exit::Usage,
            Self::Refused { status: 400, .. } => Exit::Usage,
            Self::Refused { status: 409, .. } => Exit::Finding,
            Self::Refused { status: 422, .. } => Exit::Config,
            Self::Refused { .. } => Exit::Unreachable,
            Self::Output(_) => Exit::Finding,
        }
    }
}

/// Where the daemon may listen.
#[derive(Clone, Debug)]
pub(super) struct Client {
    socket: Option<PathBuf>,
    address: Option<String>,
    silence_max: Duration,
    /// Why the last query went by TCP although the socket was tried.
    fallback: RefCell<Option<String>>,
}

impl Client {
    pub(super) fn new(socket: Option<PathBuf>, address: Option<String>) -> Self {
        Self { socket, address, silence_max: SILENCE_MAX, fallback: RefCell::default() }
    }

    /// Why the last query went by TCP although the socket was tried.
    pub(super) fn fallback(&self) -> Option<String> {
        self.fallback.borrow().clone()
    }

    /// Reports the fallback once.
    pub(super) fn report_fallback(&self, err: &mut impl Write) {
        if let Some(why) = self.fallback.take() {
            // If this write fails, nothing else can report it.
            let _ = writeln!(err, "holdfast: {why}");
        }
    }

    /// Queries an encoded path that begins with a slash.
    pub(super) fn get(&self, path: &str) -> Result<Reply, ClientError> {
        self.exchange(self.request(Method::GET, path)?, self.connect(self.address.as_deref()))
    }

    /// Sends an order; the path is as for a query. It goes by TCP only without a socket: any process that listens there
    /// could claim success.
    pub(super) fn post(&self, path: &str) -> Result<Reply, ClientError> {
        let address = self.address.as_deref().filter(|_| self.socket.is_none());
        self.exchange(self.request(Method::POST, path)?, self.connect(address))
    }

    fn exchange(
        &self,
        request: Request<String>,
        connect: impl Future<Output = Result<Box<dyn Stream>, ClientError>>,
    ) -> Result<Reply, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ClientError::NotSent)?;
        let (answer, sender) = runtime.block_on(async {
            exchange(connect.await?, request, self.silence_max).await.map_err(ClientError::Broken)
        })?;
        Ok(Reply::new(answer, Connection { _sender: sender, runtime, silence_max: self.silence_max }))
    }

    fn request(&self, method: Method, path: &str) -> Result<Request<String>, ClientError> {
        // An address that is no legal header cannot be connected to either, and that error is reported.
        let host = self.address.as_deref().and_then(|address| HeaderValue::from_str(address).ok());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host.unwrap_or(HeaderValue::from_static("localhost")))
            .header(ACCEPT, "text/plain")
            .header(WORDS_HEADER, COMMAND)
            .header(CONNECTION, "close")
            .body(String::new());
        // The path is encoded, so only its length can make it illegal.
        let request = request.map_err(|_| ClientError::TooLong(path.len()))?;
        match count_head_bytes(&request) {
            bytes if bytes > HEADER_BYTES_MAX => Err(ClientError::TooLong(bytes)),
            _ => Ok(request),
        }
    }

    async fn connect(&self, address: Option<&str>) -> Result<Box<dyn Stream>, ClientError> {
        self.fallback.take();
        let mut tried = Vec::new();
        if let Some(path) = &self.socket {
            match connect_socket(path).await {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => tried.push((path.display().to_string(), error)),
            }
        }
        if let Some(address) = address {
            match connect_tcp(address) {
                Ok(stream) => {
                    self.fallback.replace(tried.first().map(|socket| describe_fallback(address, socket)));
                    return Ok(Box::new(stream));
                }
                Err(error) => tried.push((address.to_owned(), error)),
            }
        }
        Err(ClientError::Unreachable(tried))
    }
}

/// The message that a query went by TCP, and why.
fn describe_fallback(address: &str, (socket, error): &(String, io::Error)) -> String {
    let next = match error.kind() {
        io::ErrorKind::PermissionDenied => "sudo asks the socket",
        _ => "`systemctl status holdfast` says whether it runs",
    };
    format!(
        "the daemon's socket {socket} cannot be asked: {error}\nso this answer came from {address}, where another program \
         may answer while the daemon does not run\nhint: {next}"
    )
}

/// The bytes of a request before its body: `GET /path HTTP/1.1`, a line for each header, and an empty one.
fn count_head_bytes(request: &Request<String>) -> usize {
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    request.method().as_str().len() + path + " HTTP/1.1\r\n".len() + 1 + headers.sum::<usize>() + 2
}

async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<String>,
    silence_max: Duration,
) -> io::Result<(Response<Incoming>, SendRequest<String>)> {
    let stream = TokioIo::new(WriteFirstStream::new(stream));
    let shaken = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(stream).await;
    let (mut sender, connection) = shaken.map_err(|error| answer_error(&error))?;
    tokio::spawn(async move {
        // Its error reaches the caller through the request or the body.
        let _ = connection.await;
    });
    let answer =
        timeout(silence_max, sender.send_request(request)).await.map_err(|_| silence_error(silence_max))?;
    answer.map(|answer| (answer, sender)).map_err(|error| answer_error(&error))
}

fn silence_error(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("nothing came for {} seconds", limit.as_secs_f32()))
}

/// Why an answer ended, without names of a library.
fn answer_error(error: &hyper::Error) -> io::Error {
    let of_the_stream = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let kind = of_the_stream.map(io::Error::kind);
    let hung_up = [
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::UnexpectedEof,
    ];
    if error.is_incomplete_message() || kind.is_some_and(|kind| hung_up.contains(&kind)) {
        return io::Error::new(io::ErrorKind::UnexpectedEof, "the answer broke off");
    }
    let is_garbage = [io::ErrorKind::InvalidData, io::ErrorKind::InvalidInput];
    match of_the_stream {
        Some(source) if !is_garbage.contains(&source.kind()) => {
            io::Error::new(source.kind(), source.to_string())
        }
        None if !error.is_parse() => io::Error::other(error.to_string()),
        _ => io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"),
    }
}

/// The parts that must outlive the read of a body.
struct Connection {
    _sender: SendRequest<String>,
    runtime: Runtime,
    silence_max: Duration,
}

/// A status, and a body that is read as it arrives.
pub(super) struct Reply {
    pub(super) status: u16,
    /// The exit that the daemon requests, if any.
    pub(super) exit: Option<Exit>,
    body: Body,
}

/// The exit for a code from the daemon; only one that a diagnosis may have.
fn parse_exit(code: &[u8]) -> Option<Exit> {
    let all = [Exit::Good, Exit::Finding, Exit::Errors, Exit::NoService, Exit::Incomplete];
    all.into_iter().find(|exit| exit.code().to_string().as_bytes() == code)
}

impl Reply {
    fn new(answer: Response<Incoming>, connection: Connection) -> Self {
        let status = answer.status().as_u16();
        let exit = answer.headers().get(EXIT_HEADER).and_then(|code| parse_exit(code.as_bytes()));
        Self { status, exit, body: Body { incoming: answer.into_body(), piece: Bytes::new(), connection } }
    }

    pub(super) fn body(&mut self) -> &mut impl Read {
        &mut self.body
    }

    /// This answer if its status is 200, else the daemon's refusal.
    pub(super) fn expect_ok(mut self) -> Result<Self, ClientError> {
        if self.status == 200 {
            return Ok(self);
        }
        let text = self.read_short()?;
        Err(ClientError::Refused { status: self.status, message: refusal_message(self.status, &text) })
    }

    /// The body of a short answer.
    pub(super) fn read_short(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut text = Vec::new();
        self.body.by_ref().take(REFUSAL_BYTES_MAX).read_to_end(&mut text).map_err(ClientError::Broken)?;
        Ok(text)
    }

    /// The whole body, for parsing before display.
    pub(super) fn read_whole(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        let read = self.body.by_ref().take(WHOLE_BYTES_MAX + 1).read_to_end(&mut bytes);
        match read.map_err(ClientError::Broken)? {
            length if length as u64 > WHOLE_BYTES_MAX => {
                let why = format!("the answer is longer than {WHOLE_BYTES_MAX} bytes");
                Err(ClientError::Broken(io::Error::new(io::ErrorKind::InvalidData, why)))
            }
            _ => Ok(bytes),
        }
    }

    /// Writes the body to `out` as it arrives.
    pub(super) fn copy_body(&mut self, out: &mut impl Write) -> Result<(), ClientError> {
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

#[derive(Deserialize)]
struct Refusal {
    error: String,
    hint: String,
}

/// The daemon's refusal for a person, from either format.
fn refusal_message(status: u16, text: &[u8]) -> String {
    let said = match serde_json::from_slice(text) {
        Ok(Refusal { error, hint }) => format!("{error}\nhint: {hint}"),
        Err(_) => String::from_utf8_lossy(text).into_owned(),
    };
    match said.strip_prefix("error: ").unwrap_or(&said).trim_end() {
        "" => format!("the daemon refused the request with status {status} and no reason"),
        message => message.to_owned(),
    }
}

struct Body {
    incoming: Incoming,
    /// Received bytes that are not read yet.
    piece: Bytes,
    connection: Connection,
}

impl Body {
    /// The next piece of the body, or `None` at its end.
    fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        let Self { incoming, connection: Connection { runtime, silence_max, .. }, .. } = self;
        loop {
            let frame = runtime.block_on(async { timeout(*silence_max, next_frame(incoming)).await });
            match frame.map_err(|_| silence_error(*silence_max))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(answer_error(&error)),
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }
}

async fn next_frame(incoming: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
    poll_fn(|context| Pin::new(&mut *incoming).poll_frame(context)).await
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.next_piece()? {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        (&mut self.piece).reader().read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Instant;

    use nix::sys::socket::{Backlog, listen};

    use super::stream::CONNECT_TIME_MAX;
    use super::*;

    fn client() -> Client {
        Client { silence_max: Duration::from_millis(100), ..Client::new(None, None) }
    }

    /// The client's result when it reads from this end.
    fn read_over(ours: UnixStream) -> Result<(u16, String), ClientError> {
        let client = client();
        let connect = async {
            ours.set_nonblocking(true)?;
            Ok(Box::new(tokio::net::UnixStream::from_std(ours)?) as Box<dyn Stream>)
        };
        let mut answer = client.exchange(client.request(Method::GET, "/x")?, connect)?;
        let mut text = String::new();
        answer.body().read_to_string(&mut text).map_err(ClientError::Broken)?;
        Ok((answer.status, text))
    }

    /// The client's result for an answer if the sender hung up before the client began.
    fn read(answer: &str) -> Result<(u16, String), ClientError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answer.as_bytes()).unwrap();
        drop(theirs);
        read_over(ours)
    }

    #[test]
    fn bodies_of_all_lengths_are_read() {
        let ok = |text: &str| Some((200, text.to_owned()));
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r\nto the end").ok(), ok("to the end"));
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef").ok(), ok("abc"));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n, chunked.\r\n0\r\n\r\n";
        assert_eq!(read(chunked).ok(), ok("hello, chunked."));
    }

    #[test]
    fn a_rejected_client_reads_the_reason_without_a_query() {
        let told = read("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull").unwrap();
        assert_eq!(told, (503, "full".to_owned()));
    }

    #[test]
    fn a_hangup_or_reset_truncates_the_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // Closing with unread data resets the connection.
        let hangs_up = std::thread::spawn(move || {
            let mut theirs = theirs;
            theirs.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\nabc").unwrap();
            theirs.read_exact(&mut [0]).unwrap();
        });
        let error = read_over(ours).unwrap_err().to_string();
        hangs_up.join().unwrap();
        assert!(error.contains("the answer broke off"), "{error}");
    }

    #[test]
    fn a_refusal_is_shown_in_either_format_without_cursor_moves() {
        for (text, expected) in [
            ("error: no\nhint: yes\n", "no\nhint: yes"),
            (r#"{"error":"no","hint":"yes"}"#, "no\nhint: yes"),
            ("error: \u{1b}[2Jno\u{9b}K\r\n", "?[2Jno?K"),
            (r#"{"error":"\u001b[2Jno","hint":"y\u0007"}"#, "?[2Jno\nhint: y?"),
            ("", "the daemon refused the request with status 500 and no reason"),
        ] {
            let mut told = Vec::new();
            ClientError::Refused { status: 500, message: refusal_message(500, text.as_bytes()) }
                .report(&mut told);
            assert_eq!(String::from_utf8(told).unwrap(), format!("holdfast: {expected}\n"));
        }
    }

    #[track_caller]
    fn check_broken(answer: &str, expected: &str) {
        let error = read(answer).unwrap_err();
        assert!(matches!(error, ClientError::Broken(_)), "{answer}: {error:?}");
        assert!(error.to_string().contains(expected), "{answer}: {error}");
    }

    #[test]
    fn an_answer_that_broke_off_is_an_error() {
        check_broken("", "the answer broke off");
        check_broken("HTTP/1.1 200 OK\r\n", "the answer broke off");
        check_broken("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "the answer broke off");
        let chunked = |rest: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{rest}");
        check_broken(&chunked("5\r\nhel"), "the answer broke off");
        check_broken(&chunked("5\r\nhello\r\n"), "the answer broke off");
        check_broken(&chunked("2\r\nhello\r\n0\r\n\r\n"), "the answer is not HTTP");
        check_broken(&chunked("ffffffffffffffffffff\r\n"), "the answer is not HTTP");
        check_broken("SSH-2.0-OpenSSH_9.9\r\n", "the answer is not HTTP");
        check_broken(
            &format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(20_000)),
            "the answer is not HTTP",
        );
    }

    #[test]
    fn a_silent_daemon_times_out() {
        for said in ["", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc"] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(said.as_bytes()).unwrap();
            let error = read_over(ours).unwrap_err().to_string();
            assert!(error.contains("nothing came for 0.1 seconds"), "{said}: {error}");
        }
    }

    #[test]
    fn a_socket_without_accept_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        let listener = UnixListener::bind(&path).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        let begun = Instant::now();
        let error = Client::new(Some(path), None).get("/x").map(|_| ()).unwrap_err();
        assert!(matches!(error, ClientError::Unreachable(_)), "{error}");
        assert!(begun.elapsed() >= CONNECT_TIME_MAX, "it may have room in a moment");
    }

    /// Nothing listens on the socket, and any process may listen on the TCP address.
    #[test]
    fn orders_use_the_socket_alone_and_a_tcp_fallback_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nholdfast-exit: 0\r\nContent-Length: 4\r\n\r\ndone")
                .unwrap();
            let mut asked = [0; 64];
            let count = stream.read(&mut asked).unwrap();
            String::from_utf8_lossy(&asked[..count]).into_owned()
        });
        let socket = folder.path().join("none.sock");
        let client = Client::new(Some(socket.clone()), Some(address.clone()));
        let refused = client.post("/drain?backend=192.0.2.1").map(|_| ()).unwrap_err();
        let ClientError::Unreachable(tried) = &refused else { panic!("{refused}") };
        assert_eq!(
            tried.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(),
            [socket.to_str().unwrap()]
        );
        assert_eq!(client.fallback(), None);
        assert_eq!(client.get("/livez").unwrap().read_short().unwrap(), b"done");
        assert!(answers.join().unwrap().starts_with("GET /livez"), "the order did not go there");
        let mut told = Vec::new();
        client.report_fallback(&mut told);
        client.report_fallback(&mut told);
        let expected = format!(
            "holdfast: the daemon's socket {} cannot be asked: No such file or directory (os error 2)\nso this answer came \
             from {address}, where another program may answer while the daemon does not run\nhint: `systemctl status \
             holdfast` says whether it runs\n",
            socket.display()
        );
        assert_eq!(String::from_utf8(told).unwrap(), expected);
    }

    #[test]
    fn an_order_goes_by_tcp_when_only_tcp_is_configured() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(None, Some(listener.local_addr().unwrap().to_string()));
        let answers = std::thread::spawn(move || {
            listener
                .accept()
                .unwrap()
                .0
                .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
                .unwrap();
        });
        assert_eq!(client.post("/reload").unwrap().status, 403);
        assert_eq!(client.fallback(), None, "only TCP is configured");
        answers.join().unwrap();
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(answer in "(HTTP/1.1 200 OK\r\n)?(transfer-encoding: chunked\r\n)?(\r\n)?\\PC*") {
            let _ = read(&answer);
        }
    }
}
