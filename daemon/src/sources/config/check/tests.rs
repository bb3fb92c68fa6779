//! Checks against tiny real servers on 127.0.0.1.

use tokio::net::{TcpListener, TcpSocket};

use super::*;

/// What a backend does with a connection.
#[derive(Clone, Copy)]
enum Server {
    Down,
    /// Takes connections and says nothing.
    Silent,
    /// Closes at once.
    Closes,
    /// Speaks first, answers nothing, and stays.
    Banner(&'static [u8]),
    /// Reads the request, then answers and closes.
    Answers(&'static [u8]),
    /// Reads the request, then answers byte by byte.
    Drips(&'static [u8], Duration),
    /// Reads the request, then sends `x` for ever.
    Floods,
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(request).unwrap()
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
        Server::Floods => {
            read_request(&mut stream).await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        }
    }
    // The connection stays open until the check closes it.
    let _ = stream.read_to_end(&mut Vec::new()).await;
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
    let check = HealthCheck { kind, interval: timeout, timeout, rise: 1, fall: 1 };
    let outcome = run(&check, backend).await.map_or_else(|failed| failed.to_string(), |()| "healthy".into());
    serving.inspect(tokio::task::JoinHandle::abort);
    outcome
}

async fn check_http(rule: &str, server: Server, expected: &str) {
    let kind = CheckKind::Http { path: "/healthz?full=1".into() };
    assert_eq!(outcome(server, kind, Duration::from_millis(400)).await, expected, "{rule}");
}

async fn check_tcp(rule: &str, server: Server, expected: &str) {
    assert_eq!(outcome(server, CheckKind::Tcp, Duration::from_millis(400)).await, expected, "{rule}");
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
        ("100 Continue", "status 100, healthy are 200 to 399"),
        ("199 x", "status 199, healthy are 200 to 399"),
        ("200 OK", "healthy"),
        ("204 No Content", "healthy"),
        ("302 Found", "healthy"),
        ("399 x", "healthy"),
        ("400 Bad Request", "status 400, healthy are 200 to 399"),
        ("500 Internal Server Error", "status 500, healthy are 200 to 399"),
        ("503", "status 503, healthy are 200 to 399"),
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
    check_http("says nothing", Server::Silent, "no answer within 400 ms").await;
    check_http(
        "too slow",
        Server::Drips(b"HTTP/1.1 200 OK\r\n", Duration::from_millis(60)),
        "no answer within 400 ms",
    )
    .await;
    check_http("never ends", Server::Floods, "the status line is longer than 8192 bytes").await;
    check_http("SSH", Server::Banner(b"SSH-2.0-x\r\n"), "not an HTTP/1 status line: \"SSH-2.0-x\"").await;
    check_http("a banner without an end", Server::Banner(b"220 mail"), "no answer within 400 ms").await;
}

/// A server that closes before it reads may break the write or the read: both are failures.
#[tokio::test]
async fn an_http_check_fails_if_the_backend_closes_at_once() {
    let kind = CheckKind::Http { path: "/".into() };
    let outcome = outcome(Server::Closes, kind, Duration::from_secs(1)).await;
    let closed = outcome.starts_with("closed before") || outcome.starts_with("the connection broke");
    assert!(closed, "{outcome}");
}

#[track_caller]
fn check_status(line: &str, expected: Option<u16>) {
    assert_eq!(status(line.as_bytes()), expected, "{line:?}");
}

#[test]
fn a_status_line_is_http_1_and_three_digits() {
    check_status("HTTP/1.1 200 OK", Some(200));
    check_status("HTTP/1.0 404", Some(404));
    check_status("HTTP/1.1 999 x", Some(999));
    check_status("", None);
    check_status("HTTP/1.1", None);
    check_status("HTTP/1.1 ", None);
    check_status("HTTP/1.1 20", None);
    check_status("HTTP/1.1 2000", None);
    check_status("HTTP/1.1 20x OK", None);
    check_status("HTTP/1.1 099 OK", None);
    check_status("HTTP/1.1  200 OK", None);
    check_status("HTTP/1.1\t200 OK", None);
    check_status("HTTP/1.x 200 OK", None);
    check_status("HTTP/2 200", None);
    check_status("http/1.1 200 OK", None);
    check_status(" HTTP/1.1 200 OK", None);
    check_status("HTTP/1.1 ２００", None);
}

#[tokio::test]
async fn the_request_names_the_backend_and_asks_for_a_close() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move { read_request(&mut listener.accept().await.unwrap().0).await });
    let timeout = Duration::from_secs(5);
    let kind = CheckKind::Http { path: "/healthz?full=1".into() };
    run(&HealthCheck { kind, interval: timeout, timeout, rise: 1, fall: 1 }, backend).await.unwrap_err();
    let asked = asked.await.unwrap();
    let expected = format!("GET /healthz?full=1 HTTP/1.1\r\nHost: {backend}\r\n");
    assert!(asked.starts_with(&expected), "{asked}");
    assert!(asked.contains("\r\nConnection: close\r\n"), "{asked}");
}

#[tokio::test]
async fn a_socket_joined_to_itself_is_no_backend() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let own = socket.local_addr().unwrap();
    assert!(is_own_socket(&socket.connect(own).await.unwrap()));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert!(!is_own_socket(&exempt::connect(listener.local_addr().unwrap()).await.unwrap()));
}
