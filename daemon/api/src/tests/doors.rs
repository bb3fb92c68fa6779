//! Which clients get in and which do not, and that no client blocks others.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::fixture::{self, Folder, acts, everything, many, readings, serve, serve_to, serve_with};
use super::{Got, exchange, got};
use crate::{
    AdminError, AdminServer, ForgetRequest, RELOADS_WAITING_MAX, ReloadOutcome, ReloadRequest,
    RequestSenders, Settings, limits, start,
};
use holdfast_agent::readings::Liveness;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::{PacketStatus, Status};
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_kubernetes::apiserver::ForgetError;
use holdfast_status::views::datapath::DatapathView;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

#[test]
fn a_foreign_host_is_misdirected() {
    let served = serve(everything());
    for headers in ["host: evil.example\r\n", "host: evil.example:9890\r\n", "", "host: localhost\r\n"] {
        let got = served.send(&format!("GET /frontends HTTP/1.1\r\n{headers}connection: close\r\n\r\n"));
        assert_eq!(got.status, 421, "{headers}");
        assert!(got.body.starts_with("error: the Host header names another host\nhint: use localhost:"));
    }
    let host = served.host();
    let two = format!("GET / HTTP/1.1\r\nhost: {host}\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert_eq!(served.send(&two).status, 421);
    let absolute = format!("GET http://evil.example/ HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    assert_eq!(served.send(&absolute).status, 421);
}

#[test]
fn loopback_names_are_ours() {
    let served = serve(everything());
    let port = served.admin.address().port();
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n");
        assert_eq!(served.send(&request).status, 200, "{host}");
    }
}

#[test]
fn any_origin_is_forbidden() {
    let served = serve(everything());
    let own = format!("origin: http://{}\r\n", served.host());
    for origin in [own.as_str(), "origin: null\r\n"] {
        assert_eq!(served.get("/frontends", origin).status, 403);
    }
    let stream = UnixStream::connect(&served.socket).unwrap();
    let request = "GET / HTTP/1.1\r\nhost: x\r\norigin: http://x\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(stream, request).status, 403);
}

#[test]
fn browsers_keep_nothing() {
    let served = serve(everything());
    for path in ["/frontends", "/nowhere"] {
        let got = served.get(path, "");
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(got.header("x-frame-options"), Some("DENY"));
        assert_eq!(got.header("content-security-policy"), Some("default-src 'none'; frame-ancestors 'none'"));
        assert_eq!(got.header("cache-control"), Some("no-store"));
        assert_eq!(got.header("vary"), Some("accept"));
    }
}

#[test]
fn nothing_can_be_changed() {
    let served = serve(everything());
    let host = served.host();
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let request = format!("{method} /frontends HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let got = served.send(&request);
        assert_eq!((got.status, got.header("allow")), (405, Some("GET, HEAD")), "{method}");
        assert_eq!(
            got.body,
            "error: this path can only be read\nhint: use GET or HEAD; nothing can be changed here but by POST /reload, /apiserver/forget, /drain and /undrain on the unix socket\n"
        );
    }
    let body = "content-length: 2\r\n\r\nhi";
    let got = served.send(&format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{body}"));
    assert_eq!(got.status, 413);
}

/// Requests a reload, and answers it with `outcome`.
fn reload(
    served: &fixture::Served,
    wishes: &mut mpsc::Receiver<ReloadRequest>,
    outcome: Result<ReloadOutcome, String>,
    headers: &str,
) -> Got {
    let stream = UnixStream::connect(&served.socket).unwrap();
    let request = &format!("POST /reload HTTP/1.1\r\nhost: x\r\n{headers}connection: close\r\n\r\n");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| exchange(stream, request));
        let ReloadRequest { peer, answer } = wishes.blocking_recv().unwrap();
        assert_eq!(
            (peer.uid, peer.pid),
            (nix::unistd::getuid().as_raw(), Some(nix::unistd::getpid().as_raw()))
        );
        answer.send(outcome).unwrap();
        asked.join().unwrap()
    })
}

#[test]
fn a_reload_is_answered_once_done_and_only_over_the_socket() {
    let (reloads, mut wishes) = mpsc::channel(RELOADS_WAITING_MAX);
    let served = serve_to(everything(), RequestSenders { reloads, ..acts() });
    let got = reload(&served, &mut wishes, Ok(ReloadOutcome { restart_keys: Vec::new() }), "");
    assert_eq!((got.status, got.body.as_str()), (200, "reloaded\n"));
    let got =
        reload(&served, &mut wishes, Ok(ReloadOutcome { restart_keys: vec!["node.name", "log.format"] }), "");
    assert_eq!(got.body, "reloaded; these keys take effect with the next restart: node.name, log.format\n");
    let got = reload(&served, &mut wishes, Err("holdfast.toml:3: no such key".to_owned()), "");
    assert_eq!(got.status, 422);
    assert!(got.body.starts_with("error: holdfast.toml:3: no such key\nhint: the old configuration stays"));
    let request = format!("POST /reload HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", served.host());
    assert_eq!(served.send(&request).status, 403);
    let stream = UnixStream::connect(&served.socket).unwrap();
    assert_eq!(exchange(stream, "GET /reload HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").status, 405);
    assert!(wishes.try_recv().is_err(), "no other request arrived");
}

/// The answer to each granted request, as JSON.
pub(super) fn answers_to_wishes() -> [(&'static str, String); 2] {
    let (reloads, mut reload_wishes) = mpsc::channel(RELOADS_WAITING_MAX);
    let (forgets, mut forget_wishes) = mpsc::channel::<ForgetRequest>(1);
    let served = serve_to(everything(), RequestSenders { reloads, forgets, ..acts() });
    let json = "accept: application/json\r\n";
    let reloaded =
        reload(&served, &mut reload_wishes, Ok(ReloadOutcome { restart_keys: vec!["node.name"] }), json);
    let target = "/apiserver/forget?endpoint=10.0.0.1:6443";
    let forgotten = std::thread::scope(|scope| {
        let stream = UnixStream::connect(&served.socket).unwrap();
        let request = format!("POST {target} HTTP/1.1\r\nhost: x\r\n{json}connection: close\r\n\r\n");
        let asked = scope.spawn(move || exchange(stream, &request));
        forget_wishes.blocking_recv().unwrap().answer.send(Ok(None)).unwrap();
        asked.join().unwrap()
    });
    [("/reload", reloaded.body), ("/apiserver/forget", forgotten.body)]
}

#[test]
fn an_address_is_forgotten_only_over_the_socket() {
    let (forgets, mut wishes) = mpsc::channel(1);
    let served = serve_to(everything(), RequestSenders { forgets, ..acts() });
    let target = "/apiserver/forget?endpoint=10.0.0.1:6443";
    let over_tcp = format!("POST {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", served.host());
    assert_eq!(served.send(&over_tcp).status, 403);
    let ask = |line: String| {
        let stream = UnixStream::connect(&served.socket).unwrap();
        exchange(stream, &format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    };
    assert_eq!(ask(format!("GET {target}")).status, 405);
    assert_eq!(ask("POST /apiserver/forget".to_owned()).status, 400);
    assert_eq!(ask("POST /apiserver/forget?endpoint=10.0.0.1".to_owned()).status, 400);
    assert!(wishes.try_recv().is_err(), "none of these requests arrived");
    let address = "10.0.0.1:6443".parse().unwrap();
    let outcomes = [Ok(None), Ok(Some("read-only".to_owned())), Err(ForgetError::Held(address))];
    for (outcome, status, words) in [
        (0, 200, "10.0.0.1:6443 is forgotten\n"),
        (1, 200, "10.0.0.1:6443 is forgotten, but not on disk yet: read-only\n"),
        (2, 409, "error: 10.0.0.1:6443 is held"),
    ] {
        let got = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(format!("POST {target}")));
            let wish = wishes.blocking_recv().unwrap();
            assert_eq!((wish.address, wish.peer.uid), (address, nix::unistd::getuid().as_raw()));
            wish.answer.send(outcomes[outcome].clone()).unwrap();
            asked.join().unwrap()
        });
        assert_eq!(got.status, status);
        assert!(got.body.starts_with(words), "{}", got.body);
    }
}

#[test]
fn a_daemon_that_accepts_no_reload_answers_503() {
    let served = serve(everything());
    let stream = UnixStream::connect(&served.socket).unwrap();
    assert_eq!(exchange(stream, "POST /reload HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").status, 503);
}

#[test]
fn errors_have_the_requested_format() {
    let served = serve(everything());
    let got = served.get("/frontend", "accept: application/json\r\n");
    assert_eq!((got.status, got.header("content-type")), (404, Some("application/json")));
    let error: serde_json::Value = serde_json::from_str(&got.body).unwrap();
    assert_eq!(error["error"], "there is no such path");
    assert!(error["hint"].as_str().unwrap().contains("/frontends"));
    let got = served.get("/backends?type=ClusterIP&format=json", "");
    let error: serde_json::Value = serde_json::from_str(&got.body).unwrap();
    assert_eq!((got.status, &error["hint"]), (400, &"legal here: service, address, format".into()));
    assert_eq!(served.get("/metrics?format=json", "").status, 400);
}

#[test]
fn head_is_get_without_the_body() {
    let served = serve(everything());
    let host = served.host();
    for path in ["/frontends", "/version"] {
        let got = served.send(&format!("HEAD {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"));
        assert_eq!((got.status, got.body.as_str()), (200, ""), "{path}");
        assert_eq!(got.header("content-type"), Some("text/plain; charset=utf-8"));
    }
}

#[test]
fn a_connection_is_kept() {
    let served = serve(everything());
    let host = served.host();
    let request = |last| format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: {last}\r\n\r\n");
    let got = served.send(&format!("{}{}", request("keep-alive"), request("close")));
    assert_eq!(got.status, 200);
    assert!(got.body.starts_with("ok\nHTTP/1.1 200 OK\r\n"), "{}", got.body);
}

#[test]
fn an_oversized_header_is_refused() {
    let served = serve(everything());
    let got = served.get("/", &format!("x: {}\r\n", "y".repeat(limits::HEADER_BYTES_MAX)));
    assert_eq!(got.status, 431);
}

#[test]
fn a_slow_header_is_cut() {
    let served = serve(everything());
    let mut stream = served.connect();
    let begun = Instant::now();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: ").unwrap();
    let mut rest = Vec::new();
    // A reset is as good an end as a close.
    let _ = stream.read_to_end(&mut rest);
    let seconds = begun.elapsed().as_secs_f64();
    assert!((4.5..TEST_TIMEOUT.as_secs_f64()).contains(&seconds), "cut after {seconds} s");
}

#[test]
fn a_slow_reader_blocks_no_other_client() {
    let served = serve(many(20_000, 10));
    let host = served.host();
    // More readers than threads that answer; each answer has begun, and waits for its reader.
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = served.connect();
            let request = format!("GET /frontends?format=json HTTP/1.1\r\nhost: {host}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    readers.iter().for_each(|stream| assert_eq!(stream.peek(&mut [0]).unwrap(), 1));
    let begun = Instant::now();
    assert_eq!(served.get("/healthz", "").body, "ok\n");
    // A request behind those readers would wait until they are disconnected.
    assert!(begun.elapsed() < limits::WRITE_STALL_MAX * 9 / 10, "{:?}", begun.elapsed());
    drop(readers);
}

#[test]
fn a_reader_that_stalls_is_cut_off() {
    let served = serve(many(20_000, 10));
    let mut stream = served.connect();
    let host = served.host();
    write!(stream, "GET /frontends?format=json HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    // A client stalls only if its answer waits for it; on a busy machine the answer itself takes a while.
    stream.peek(&mut [0]).unwrap();
    std::thread::sleep(limits::WRITE_STALL_MAX * 2);
    let mut bytes = Vec::new();
    // A reset is as good an end as a close.
    let _ = stream.read_to_end(&mut bytes);
    assert!(
        bytes.len() > limits::CHUNK_BYTES && !bytes.ends_with(b"0\r\n\r\n"),
        "{} bytes came",
        bytes.len()
    );
}

#[test]
fn an_idle_client_is_evicted_for_a_new_one() {
    let served = serve(everything());
    let mut idle: Vec<_> = (0..3 * limits::CONNECTIONS_MAX).map(|_| served.connect()).collect();
    assert_eq!(served.get("/livez", "").status, 200);
    // An incomplete request does not count as one.
    idle.iter_mut().for_each(|stream| drop(stream.write_all(b"GET /livez HT")));
    assert_eq!(served.get("/livez", "").status, 200);
}

#[test]
fn a_client_beyond_the_limit_is_rejected_with_503() {
    let served = serve(many(20_000, 10));
    let request = format!("GET /frontends?format=json HTTP/1.1\r\nhost: {}\r\n\r\n", served.host());
    let mut held: Vec<_> = (0..limits::CONNECTIONS_MAX).map(|_| served.connect()).collect();
    held.iter_mut().for_each(|stream| stream.write_all(request.as_bytes()).unwrap());
    // Each client has a running answer, and reads no more of it.
    held.iter_mut().for_each(|stream| assert_eq!(begun(stream, ""), 200));
    let mut late = served.connect();
    let mut bytes = Vec::new();
    late.read_to_end(&mut bytes).unwrap();
    let refused = got(&bytes);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let length = refused.header("content-length").unwrap().parse();
    assert_eq!(length, Ok(refused.body.len()));

    let stream = UnixStream::connect(&served.socket).unwrap();
    let request = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(stream, request).status, 200, "the socket has permits of its own");

    held.pop().unwrap().shutdown(Shutdown::Both).unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    while !is_let_in(&served) {
        assert!(Instant::now() < end, "no place is free again");
    }
}

/// Whether a client gets an answer. A rejected one may get a reset instead of a message.
fn is_let_in(served: &fixture::Served) -> bool {
    let (mut stream, mut bytes) = (served.connect(), Vec::new());
    let _ = write!(stream, "GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", served.host());
    let _ = stream.read_to_end(&mut bytes);
    bytes.starts_with(b"HTTP/1.1 200")
}

/// Sends a request, and returns the status at the start of the answer.
fn begun(mut stream: impl Read + Write, request: &str) -> u16 {
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

#[test]
fn full_watchers_of_one_listener_leave_the_other_usable() {
    let served = serve(everything());
    let request = format!("GET /watch HTTP/1.1\r\nhost: {}\r\n\r\n", served.host());
    let over_tcp: Vec<_> = (0..limits::WATCHERS_MAX + 1).map(|_| served.connect()).collect();
    let told: Vec<u16> = over_tcp.iter().map(|stream| begun(stream, &request)).collect();
    assert_eq!(told.iter().filter(|status| **status == 200).count(), limits::WATCHERS_MAX);
    assert_eq!(told.last(), Some(&503));
    let over_socket = UnixStream::connect(&served.socket).unwrap();
    assert_eq!(begun(&over_socket, &request), 200, "the socket has watchers of its own");
}

#[test]
fn full_queries_of_one_listener_leave_the_other_usable() {
    let (asker, mut heard) = holdfast_agent::engine::query::channel();
    let served = serve_with(everything(), |readings| readings.engine = asker);
    let request = format!(
        "GET /explain?endpoint=10.96.0.10:80 HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        served.host()
    );
    let _waiting: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = served.connect();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    while heard.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The next client comes after all of these.
    std::thread::sleep(Duration::from_millis(200));
    let stream = UnixStream::connect(&served.socket).unwrap();
    let asked = std::thread::spawn(move || exchange(stream, &request));
    std::thread::sleep(Duration::from_millis(200));
    while let Ok(ask) = heard.try_recv() {
        if let holdfast_agent::engine::query::EngineQuery::Read(keys, answer) = ask {
            let _ = answer.send(keys.iter().map(|_| Ok(None)).collect());
        }
    }
    let got = asked.join().unwrap();
    assert!(!got.body.contains("the engine does not answer now"), "{}", got.body);
}

#[test]
fn the_socket_is_for_owner_and_group() {
    let served = serve(everything());
    let mode = std::fs::metadata(&served.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let stream = UnixStream::connect(&served.socket).unwrap();
    let got = exchange(stream, "GET /version HTTP/1.1\r\nhost: anything\r\nconnection: close\r\n\r\n");
    assert_eq!(
        got.body,
        "holdfast 0.1.0 on node-1, datapath kernel, since 2026-01-08T11:10:55Z (4 min ago)\n"
    );
    let socket = served.socket.clone();
    let folder = served.folder;
    served.admin.stop();
    assert!(!socket.exists(), "the file goes with the daemon");
    drop(folder);
}

/// Starts another API, and returns why its listeners cannot open.
fn start_at(listen: &str, socket: &std::path::Path) -> (AdminServer, watch::Receiver<Vec<String>>) {
    let readings = readings(watch::channel(Arc::new(Snapshot::default())).1);
    let settings = Settings { listen: listen.parse().unwrap(), socket: socket.into() };
    let (shut_out, shut) = watch::channel(Vec::new());
    (start(&settings, (readings, EventStatus::default(), acts()), shut_out).unwrap(), shut)
}

/// Waits until exactly these errors are reported.
#[track_caller]
fn wait_for(shut: &watch::Receiver<Vec<String>>, expected: &[String]) {
    let begun = Instant::now();
    while *shut.borrow() != expected {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", shut.borrow());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The error names the address; the other listener opens, and the address is bound as soon as it is free.
#[test]
fn a_taken_address_is_reported_and_bound_once_free() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let folder = Folder::new();
    let socket = folder.0.join("admin.sock");
    let (admin, shut) = start_at(&address.to_string(), &socket);
    let said = format!(
        "cannot listen on {address}: another process does; stop that process (`ss -ltnp` names it) or set another \
         `listen` under [admin]"
    );
    wait_for(&shut, &[said]);
    assert!(UnixStream::connect(&socket).is_ok(), "the other listener is open");
    drop(other);
    wait_for(&shut, &[]);
    assert!(std::net::TcpStream::connect(address).is_ok());
    admin.stop();
}

/// A listener with a backlog of one client that accepts none.
fn deaf(path: &std::path::Path) -> OwnedFd {
    let socket =
        nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
    nix::sys::socket::bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    nix::sys::socket::listen(&socket, Backlog::new(0).unwrap()).unwrap();
    socket
}

#[test]
fn a_socket_owner_that_accepts_no_clients_blocks_nothing() {
    let folder = Folder::new();
    let path = folder.0.join("admin.sock");
    let _deaf = deaf(&path);
    let _first_in_its_queue = UnixStream::connect(&path).unwrap();
    let (admin, shut) = start_at("127.0.0.1:0", &path);
    wait_for(&shut, &[AdminError::SocketTaken(path).to_string()]);
    assert!(std::net::TcpStream::connect(admin.address()).is_ok());
    admin.stop();
}

#[test]
fn an_api_that_waits_for_its_address_can_be_stopped() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new();
    let (admin, _) = start_at(&other.local_addr().unwrap().to_string(), &folder.0.join("none/admin.sock"));
    admin.stop();
}

#[test]
fn a_socket_is_taken_over_only_from_the_dead() {
    let folder = Folder::new();
    let path = folder.0.join("admin.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead daemon's socket");
    let (admin, _) = start_at("127.0.0.1:0", &path);
    let (second, shut) = start_at("127.0.0.1:0", &path);
    wait_for(&shut, &[AdminError::SocketTaken(path.clone()).to_string()]);
    second.stop();
    assert!(UnixStream::connect(&path).is_ok(), "the living one still answers");
    admin.stop();
    std::fs::write(&path, "precious").unwrap();
    let (third, shut) = start_at("127.0.0.1:0", &path);
    wait_for(&shut, &[AdminError::NotASocket(path.clone()).to_string()]);
    third.stop();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let none = folder.0.join("none/admin.sock");
    let (_fourth, shut) = start_at("127.0.0.1:0", &none);
    wait_for(&shut, &[AdminError::NoFolder(none).to_string()]);
}

#[test]
fn stopping_lets_answers_finish_within_a_bound() {
    let served = serve(many(20_000, 10));
    let host = served.host();
    let whole = served.get("/frontends?format=json", "").body.len();
    let mut reading = served.connect();
    let mut sleeping = served.connect();
    let request = format!("GET /frontends?format=json HTTP/1.1\r\nhost: {host}\r\n\r\n");
    reading.write_all(request.as_bytes()).unwrap();
    sleeping.write_all(request.as_bytes()).unwrap();
    let idle = served.connect();
    // Most of the answer is read before the time to finish it begins, because that time is short on a busy machine.
    let mut bytes = vec![0; whole / 16 * 15];
    reading.read_exact(&mut bytes).unwrap();
    let reader = std::thread::spawn(move || reading.read_to_end(&mut bytes).map(|_| bytes));
    let begun = Instant::now();
    served.admin.stop();
    let waited = begun.elapsed();
    assert!(waited < limits::WRITE_STALL_MAX, "as long as for one that stalls: {waited:?}");
    let bytes = reader.join().unwrap().unwrap();
    assert!(bytes.ends_with(b"0\r\n\r\n"), "the answer under way was finished");
    drop((idle, sleeping));
}

#[test]
fn readiness_names_the_missing_part() {
    let mut snapshot = everything();
    snapshot.programmed = false;
    snapshot.sources =
        [(Source::Config, true), (Source::Manifests, false), (Source::Kubernetes, false)].into();
    let served = serve(snapshot.clone());
    let got = served.get("/readyz", "");
    assert_eq!((got.status, got.body.as_str()), (503, "no first list yet from: manifests, kubernetes\n"));
    let got = served.get("/readyz?format=json", "");
    let ready: serde_json::Value = serde_json::from_str(&got.body).unwrap();
    assert_eq!((got.status, &ready["sources"][1]["synced"]), (503, &false.into()));
    assert_eq!(served.get("/healthz", "").status, 200);
    snapshot.sources = everything().sources;
    served.snapshots.send_replace(Arc::new(snapshot));
    assert_eq!(served.get("/readyz", "").body, "waiting for clients of the maps' former owner\n");
    served.snapshots.send_replace(Arc::new(Snapshot { filling: true, ..everything() }));
    assert_eq!(served.get("/readyz", "").body, "the first lists are being written to the maps\n");
    served.snapshots.send_replace(Arc::new(everything()));
    assert_eq!(served.get("/readyz", "").body, "ok\n");
    served.snapshots.send_replace(Arc::default());
    assert_eq!(served.get("/readyz", "").body, "the engine has not published anything yet\n");
}

#[test]
fn a_daemon_whose_programs_wait_is_not_ready() {
    let served = serve_with(everything(), |readings| {
        let status = Status { waiting: true, ..fixture::status() };
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    });
    let got = served.get("/readyz", "");
    assert_eq!((got.status, got.body.as_str()), (503, "another version's programs still serve\n"));
}

/// A program that still serves, but would not outlive the daemon, is no reason to send clients away.
#[test]
fn readiness_needs_a_program_with_current_maps_at_each_hook() {
    let status = fixture::status;
    for (status, expected) in [
        (Status { broken_hooks: vec!["connect6"], ..status() }, "ok\n"),
        // Clients reach their service, but see its backend as the peer.
        (Status { detached_hooks: vec!["getpeername4"], ..status() }, "ok\n"),
        (
            Status {
                broken_hooks: vec!["connect4", "connect6"],
                detached_hooks: vec!["connect6"],
                ..status()
            },
            "no program of ours is attached at connect6\n",
        ),
        (
            Status { behind_hooks: vec!["connect6"], ..status() },
            "the programs at connect6 read maps that are no longer written\n",
        ),
    ] {
        let served = serve_with(everything(), |readings| {
            let devices = readings.datapath().devices().into();
            let view = DatapathView::for_kernel(status).with_devices(devices);
            readings.datapath = watch::channel(Arc::new(view)).1;
        });
        let got = served.get("/readyz", "");
        assert_eq!((got.status == 200, got.body.as_str()), (expected == "ok\n", expected));
    }
}

#[test]
fn a_daemon_that_has_not_looked_at_devices_yet_is_not_ready() {
    let served_with = |status| {
        let served = serve_with(everything(), |readings| {
            readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
        });
        served.get("/readyz", "").body
    };
    let status = fixture::status();
    assert_eq!(served_with(status.clone()), "the devices that lead to other hosts are not known yet\n");
    let failed = status.packets.clone().map(|it| PacketStatus { failure: Some("no".to_owned()), ..it });
    assert_eq!(served_with(Status { packets: failed, ..status.clone() }), "ok\n");
    assert_eq!(served_with(Status { packets: None, ..status }), "ok\n");
}

/// Without programs at devices, clients are served no worse than by a node that never had them; with those of a former
/// daemon clients get outdated services.
#[test]
fn a_daemon_with_programs_at_devices_that_follow_no_change_is_not_ready() {
    let served = serve_with(everything(), |readings| {
        let status = fixture::status();
        let behind = |it| PacketStatus { failure: Some("no memory".to_owned()), behind: true, ..it };
        let packets = status.packets.clone().map(behind);
        let status = Status { packets, ..status };
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    });
    let got = served.get("/readyz", "");
    let expected = "programs at devices follow no change: no memory\n";
    assert_eq!((got.status, got.body.as_str()), (503, expected));
    assert!(served.get("/metrics", "").body.contains("\nholdfast_packets_failed 1\n"));
}

#[test]
fn remembered_state_is_marked_stale_and_is_ready() {
    let mut snapshot = everything();
    snapshot.sources = [(Source::Config, true), (Source::Kubernetes, false)].into();
    snapshot.stale_since = Some(Timestamp(1_767_870_000));
    let served = serve(snapshot);
    assert_eq!(served.get("/readyz", "").body, "ok\n");
    let line =
        "\nstale: as remembered from 2026-01-08T11:00:00Z (14 min ago); no first list yet from: kubernetes\n";
    assert!(served.get("/frontends", "").body.ends_with(line));
    for path in ["/frontends", "/backends", "/services", "/readyz"] {
        let got = served.get(&format!("{path}?format=json"), "");
        let shown: serde_json::Value = serde_json::from_str(&got.body).unwrap();
        assert_eq!(shown["stale_since"], "2026-01-08T11:00:00Z", "{path}");
    }
    assert!(served.get("/metrics", "").body.contains("\nholdfast_stale 1\n"));
}

#[test]
fn a_removed_socket_is_created_again() {
    let served = serve(everything());
    let ask = || UnixStream::connect(&served.socket);
    drop(ask().unwrap());
    std::fs::remove_file(&served.socket).unwrap();
    let begun = Instant::now();
    while ask().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it was not created again");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut asked = ask().unwrap();
    asked.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn a_foreign_file_in_the_sockets_place_stays() {
    let served = serve(everything());
    let path = served.socket.clone();
    let beside = path.with_extension("other");
    let other = UnixListener::bind(&beside).unwrap();
    std::fs::rename(&beside, &path).unwrap();
    std::thread::sleep(2 * holdfast_host::ticker::TICK);
    drop(UnixStream::connect(&path).unwrap());
    other.accept().unwrap();
    served.admin.stop();
    assert!(path.exists(), "it is not ours to remove");
}

#[test]
fn liveness_follows_the_engine() {
    let served = serve_with(everything(), |readings| {
        readings.liveness = Liveness::new(|| Some(Duration::from_secs(33)));
    });
    let got = served.get("/livez", "");
    assert_eq!(
        (got.status, got.body.as_str()),
        (503, "events have waited for 33 s, and the engine does not take them\n")
    );
    assert_eq!(fixture::serve(everything()).get("/livez", "").status, 200);
}
