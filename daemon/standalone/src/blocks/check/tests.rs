//! Checks against tiny real servers on 127.0.0.1.

mod by_grpc;
mod by_this_node;
mod over_tls;

use tokio::net::{TcpListener, TcpSocket};

use super::super::HttpCheck;
use super::*;
use holdfast_config::GrpcCheck;
use holdfast_fixtures::TEST_TIMEOUT;

/// The behaviour of a backend.
#[derive(Clone, Copy)]
enum Server {
    Down,
    /// Accepts, then silence.
    Silent,
    /// Closes at once.
    Closes,
    /// Speaks first, ignores requests, and stays open.
    Banner(&'static [u8]),
    /// Reads the request, replies and closes.
    Answers(&'static [u8]),
    /// Reads the request, then replies byte by byte.
    Drips(&'static [u8], Duration),
    /// Reads the request, then sends this and endless `x`.
    Floods(&'static [u8]),
    /// Reads the request, then sends one text, and another one endlessly.
    GoesOn(&'static [u8], &'static [u8]),
    /// Sends one text, then another one endlessly, and reads nothing.
    Repeats(&'static [u8], &'static [u8]),
    /// Reads this many bytes, replies, and stays open.
    Replies(usize, &'static [u8]),
    /// Replies, shuts down its half, and stays open.
    HalfCloses(&'static [u8]),
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(request).unwrap()
}

async fn go_on(stream: &mut TcpStream, first: &[u8], then: &[u8]) {
    read_request(stream).await;
    stream.write_all(first).await.unwrap();
    while stream.write_all(then).await.is_ok() {}
}

async fn serve(server: Server, listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    match server {
        Server::Down | Server::Closes => return,
        Server::Silent => (),
        Server::Banner(banner) => stream.write_all(banner).await.unwrap(),
        Server::Answers(answer) => {
            read_request(&mut stream).await;
            stream.write_all(answer).await.unwrap();
            return;
        }
        Server::Drips(answer, gap) => {
            read_request(&mut stream).await;
            for byte in answer {
                stream.write_all(&[*byte]).await.unwrap();
                tokio::time::sleep(gap).await;
            }
        }
        Server::Replies(bytes, answer) => {
            stream.read_exact(&mut vec![0; bytes]).await.unwrap();
            stream.write_all(answer).await.unwrap();
        }
        Server::HalfCloses(answer) => {
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        Server::Repeats(first, then) => {
            stream.write_all(first).await.unwrap();
            while stream.write_all(then).await.is_ok() {}
        }
        Server::Floods(first) => go_on(&mut stream, first, &[b'x'; 4096]).await,
        Server::GoesOn(first, then) => go_on(&mut stream, first, then).await,
    }
    // The connection stays open until the check closes it.
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

fn check_of(kind: CheckKind, timeout: Duration) -> HealthCheck {
    HealthCheck { kind, interval: timeout, timeout, ..HealthCheck::default() }
}

fn http(path: &str) -> HttpCheck {
    HttpCheck { path: path.into(), ..HttpCheck::default() }
}

async fn outcome(server: Server, kind: CheckKind, timeout: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    let serving = match server {
        Server::Down => {
            drop(listener);
            None
        }
        _ => Some(tokio::spawn(serve(server, listener))),
    };
    let check = check_of(kind, timeout);
    let outcome = run_check(&check, backend, None)
        .await
        .map_or_else(|failed| failed.to_string(), |()| "healthy".into());
    serving.inspect(tokio::task::JoinHandle::abort);
    outcome
}

const LATE: &str = "no answer within 400 ms";

/// Only a check that must time out has a short timeout, so that a busy machine does no harm.
async fn check(rule: &str, server: Server, kind: CheckKind, expected: &str) {
    let timeout = if expected == LATE { Duration::from_millis(400) } else { TEST_TIMEOUT };
    assert_eq!(outcome(server, kind, timeout).await, expected, "{rule}");
}

async fn check_http(rule: &str, server: Server, expected: &str) {
    check(rule, server, CheckKind::Http(http("/healthz?full=1")), expected).await;
}

async fn check_tcp(rule: &str, server: Server, expected: &str) {
    check(rule, server, CheckKind::Tcp, expected).await;
}

const REFUSED: &str = "cannot connect: Connection refused (os error 111)";

#[tokio::test]
async fn a_tcp_check_passes_if_a_connection_opens() {
    check_tcp("nothing listens", Server::Down, REFUSED).await;
    check_tcp("accepts and says nothing", Server::Silent, "healthy").await;
    check_tcp("accepts and closes", Server::Closes, "healthy").await;
    check_tcp("speaks first", Server::Banner(b"220 mail\r\n"), "healthy").await;
}

#[tokio::test]
async fn an_http_check_passes_from_200_to_399() {
    for (status, expected) in [
        ("100 Continue", "status 100, healthy are 200-399"),
        ("199 x", "status 199, healthy are 200-399"),
        ("200 OK", "healthy"),
        ("204 No Content", "healthy"),
        ("302 Found", "healthy"),
        ("399 x", "healthy"),
        ("400 Bad Request", "status 400, healthy are 200-399"),
        ("500 Internal Server Error", "status 500, healthy are 200-399"),
        ("503", "status 503, healthy are 200-399"),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").leak();
        check_http(status, Server::Answers(answer.as_bytes()), expected).await;
    }
}

#[tokio::test]
async fn an_http_check_reads_the_status_line_and_no_more() {
    check_http("HTTP/1.0", Server::Answers(b"HTTP/1.0 200 OK\r\n\r\n"), "healthy").await;
    check_http("no carriage return", Server::Answers(b"HTTP/1.1 200 OK\n"), "healthy").await;
    check_http("no reason", Server::Answers(b"HTTP/1.1 200\r\n"), "healthy").await;
    check_http("headers that are none", Server::Answers(b"HTTP/1.1 200 OK\r\n\x00\xff"), "healthy").await;
    check_http("stays open after the line", Server::Banner(b"HTTP/1.1 200 OK\r\n"), "healthy").await;
    check_http(
        "slow but in time",
        Server::Drips(b"HTTP/1.1 200 OK\r\n", Duration::from_millis(5)),
        "healthy",
    )
    .await;
}

#[tokio::test]
async fn an_http_check_that_fails_says_why() {
    check_http("nothing listens", Server::Down, REFUSED).await;
    check_http("closes half-way", Server::Answers(b"HTTP/1.1 20"), "closed before a status line came").await;
    check_http("answers nothing", Server::Answers(b""), "closed before a status line came").await;
    check_http("says nothing", Server::Silent, LATE).await;
    check_http("too slow", Server::Drips(b"HTTP/1.1 200 OK\r\n", Duration::from_millis(60)), LATE).await;
    check_http("never ends", Server::Floods(b""), "the status line is longer than 8192 bytes").await;
    check_http("SSH", Server::Banner(b"SSH-2.0-x\r\n"), "not an HTTP/1 status line: \"SSH-2.0-x\"").await;
    check_http("a banner without an end", Server::Banner(b"220 mail"), LATE).await;
}

/// A server that closes before it reads may break the write or the read: both are failures.
#[tokio::test]
async fn an_http_check_fails_if_the_backend_closes_at_once() {
    let kind = CheckKind::Http(http("/"));
    let outcome = outcome(Server::Closes, kind, Duration::from_secs(1)).await;
    let closed = outcome.starts_with("closed before") || outcome.starts_with("the connection broke");
    assert!(closed, "{outcome}");
}

/// The request that a backend gets, and its address.
async fn asked(http: HttpCheck) -> (String, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move { read_request(&mut listener.accept().await.unwrap().0).await });
    run_check(&check_of(CheckKind::Http(http), Duration::from_secs(5)), backend, None).await.unwrap_err();
    (asked.await.unwrap(), backend)
}

#[tokio::test]
async fn the_request_names_the_backend_and_asks_for_a_close() {
    let expect_body = || Some("well".to_owned());
    for body in [None, expect_body()] {
        let (request, backend) = asked(HttpCheck { expect_body: body, ..http("/healthz?full=1") }).await;
        let request = request.to_lowercase();
        assert!(request.starts_with("get /healthz?full=1 http/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("\r\nhost: {backend}\r\n")), "{request}");
        assert!(request.contains("\r\nconnection: close\r\n"), "{request}");
    }
    for body in [None, expect_body()] {
        let host = Some("web.example.com:8080".to_owned());
        let (request, _) = asked(HttpCheck { host, expect_body: body, ..http("/") }).await;
        let request = request.to_lowercase();
        assert_eq!(request.matches("\r\nhost: web.example.com:8080\r\n").count(), 1, "{request}");
    }
}

#[tokio::test]
async fn a_check_asks_the_port_that_it_names() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = std::num::NonZeroU16::new(listener.local_addr().unwrap().port());
    let check = HealthCheck { port, ..check_of(CheckKind::Tcp, Duration::from_secs(5)) };
    // Nothing listens at the backend's own port.
    run_check(&check, "127.0.0.1:1".parse().unwrap(), None).await.unwrap();
}

async fn check_body(rule: &str, server: Server, expected: &str) {
    let asked = HttpCheck { expect_body: Some("all is well".into()), ..http("/") };
    check(rule, server, CheckKind::Http(asked), expected).await;
}

#[tokio::test]
async fn a_check_with_a_body_passes_if_its_text_is_there() {
    let at_end = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\nso all is well";
    check_body("with a length", Server::Answers(at_end), "healthy").await;
    check_body("until the end", Server::Answers(b"HTTP/1.0 200 OK\r\n\r\nall is well"), "healthy").await;
    let chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nall i\r\n6\r\ns well\r\n0\r\n\r\n";
    check_body("across two chunks", Server::Answers(chunked), "healthy").await;
    check_body("byte by byte", Server::Drips(at_end, Duration::from_millis(2)), "healthy").await;
    check_body("endless behind it", Server::Floods(b"HTTP/1.1 200 OK\r\n\r\nall is well"), "healthy").await;
    let early = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nall is well";
    check_body("before the end is missed", Server::Answers(early), "healthy").await;
}

#[tokio::test]
async fn a_check_with_a_body_that_fails_says_why() {
    check_body("nothing listens", Server::Down, REFUSED).await;
    let only_head = b"HTTP/1.1 200 OK\r\nX: all is well\r\nContent-Length: 4\r\n\r\nfail";
    check_body(
        "a header is no body",
        Server::Answers(only_head),
        "\"all is well\" is not in the answer, which begins \"fail\"",
    )
    .await;
    let bad = b"HTTP/1.1 500 x\r\nContent-Length: 11\r\n\r\nall is well";
    check_body("another status", Server::Answers(bad), "status 500, healthy are 200-399").await;
    let moved = b"HTTP/1.1 302 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    check_body(
        "a redirect is not followed",
        Server::Answers(moved),
        "\"all is well\" is not in the answer, which begins \"\"",
    )
    .await;
    let endless = "\"all is well\" is not in the first 16 KiB of the answer, which begins \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"";
    check_body("an endless body", Server::Floods(b"HTTP/1.1 200 OK\r\n\r\n"), endless).await;
    let too_large = "no whole answer of HTTP/1: message head is too large";
    check_body("an endless header", Server::Floods(b"HTTP/1.1 200 OK\r\nX: "), too_large).await;
    let dripped = Server::Drips(b"HTTP/1.1 200 OK\r\n\r\nall", Duration::from_millis(60));
    check_body("a byte at a time", dripped, LATE).await;
    check_body("says nothing", Server::Silent, LATE).await;
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nall is";
    check_body(
        "cut off",
        Server::Answers(cut),
        "no whole answer of HTTP/1: error reading a body from connection: end of file before message length reached",
    )
    .await;
    let other = "no whole answer of HTTP/1: invalid HTTP version parsed";
    check_body("another protocol", Server::Answers(b"SSH-2.0-x\r\n"), other).await;
}

/// Interim heads, and chunks that are mostly sizes, are read and dropped.
#[tokio::test]
async fn heads_and_chunk_sizes_are_read_up_to_the_limit() {
    let interim = Server::GoesOn(b"", b"HTTP/1.1 100 Continue\r\n\r\n");
    let head = "no whole answer of HTTP/1: connection error: more than 32768 bytes came";
    check_body("interim answers", interim, head).await;
    let chunks = Server::GoesOn(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n");
    let body = "no whole answer of HTTP/1: error reading a body from connection: more than 32768 bytes came";
    check_body("chunks of a byte", chunks, body).await;
    let early = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nall is well";
    check_body("an interim answer before the answer", Server::Answers(early), "healthy").await;
}

#[tokio::test]
async fn the_expected_statuses_are_healthy() {
    let text = "[[service]]\nname = \"web\"\nfrontends = [\"10.0.0.1:80\"]\nbackends = [\"192.0.2.1:80\"]\n\
                health_check = { kind = \"http\", expect_status = \"200-204, 401\" }";
    let (mut config, _) = holdfast_config::Config::parse(text, "").unwrap();
    let kind = config.services.remove(0).health_check.unwrap().kind;
    for (status, expected) in [
        ("199 x", "status 199, healthy are 200-204,401"),
        ("200 OK", "healthy"),
        ("204 x", "healthy"),
        ("205 x", "status 205, healthy are 200-204,401"),
        ("401 x", "healthy"),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\n\r\n").leak();
        let server = Server::Answers(answer.as_bytes());
        assert_eq!(outcome(server, kind.clone(), Duration::from_secs(5)).await, expected, "{status}");
    }
}

async fn check_exchange(rule: &str, send: Option<&str>, server: Server, expected: &str) {
    let kind = CheckKind::SendExpect { send: send.map(str::to_owned), expect: "+PONG".into() };
    check(rule, server, kind, expected).await;
}

#[tokio::test]
async fn a_send_expect_check_passes_if_the_answer_has_the_text() {
    let ping = Some("PING\r\n");
    check_exchange("nothing listens", ping, Server::Down, REFUSED).await;
    check_exchange("the text", ping, Server::Replies(6, b"+PONG\r\n"), "healthy").await;
    check_exchange("in the midst", ping, Server::Replies(6, b"hello\r\n+PONG\r\n"), "healthy").await;
    check_exchange("speaks first, and nothing is sent", None, Server::Banner(b"+PONG\r\n"), "healthy").await;
    check_exchange("half-closed behind it", ping, Server::HalfCloses(b"+PONG\r\n"), "healthy").await;
    let error = "\"+PONG\" is not in the answer, which begins \"-ERR \\\"x\\\"\\r\\n\"";
    check_exchange("another text, and the end", ping, Server::HalfCloses(b"-ERR \"x\"\r\n"), error).await;
    check_exchange("another text, and stays", ping, Server::Replies(6, b"-ERR\r\n"), LATE).await;
    check_exchange("says nothing", ping, Server::Silent, LATE).await;
    let endless = "\"+PONG\" is not in the first 16 KiB of the answer, which begins \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"";
    check_exchange("floods", Some("GET\r\n\r\n"), Server::Floods(b""), endless).await;
}

#[tokio::test]
async fn a_socket_connected_to_itself_is_no_backend() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let own = socket.local_addr().unwrap();
    assert!(is_own_socket(&socket.connect(own).await.unwrap(), own));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = listener.local_addr().unwrap();
    assert!(!is_own_socket(&exempt::connect(other).await.unwrap(), other));
}

/// The kernel's TIME_WAIT sockets of connections to this port.
fn waiting_for_late_packets(port: u16) -> usize {
    const TIME_WAIT: &str = "06";
    let all = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_its = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        let (remote, state) = (fields.next().unwrap_or_default(), fields.next());
        remote.ends_with(&format!(":{port:04X}")) && state == Some(TIME_WAIT)
    };
    all.lines().skip(1).filter(is_its).count()
}

#[tokio::test]
async fn a_check_leaves_no_socket_behind() {
    let exchange = CheckKind::SendExpect { send: None, expect: "mail".into() };
    for (kind, says) in [
        (CheckKind::Tcp, &b""[..]),
        (exchange, b"220 mail"),
        (CheckKind::Http(http("/")), b"HTTP/1.1 200 OK\r\n"),
        (CheckKind::Grpc(GrpcCheck::default()), by_grpc::answer(1)),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = listener.local_addr().unwrap();
        // The kernel may give out a port again that others had connected to.
        let of_others = waiting_for_late_packets(backend.port());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The check ends the connection, not this side; a check that only connects does so at once.
            let _ = stream.write_all(says).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        };
        let check = check_of(kind, Duration::from_secs(5));
        let (_, outcome) = tokio::join!(server, run_check(&check, backend, None));
        outcome.unwrap();
        assert!(waiting_for_late_packets(backend.port()) <= of_others, "{}", check.kind.as_str());
    }
}
