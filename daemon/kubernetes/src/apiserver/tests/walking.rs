//! Failover of a request from endpoint to endpoint, and its timing.

use std::path::Path;
use std::time::Duration;

use holdfast_status::views::apiserver::ApiserverState;

use super::super::{Access, AccessError, JSON, WriteRequest, maintenance};
use super::access;
use super::server::{Authority, Manner, OUR_UID, SLOWLY, Server, answer, create_authority, ours, plain};
use holdfast_fixtures::clock::await_event;
use holdfast_fixtures::{TEST_TIMEOUT as IDLE, few_ports};

#[tokio::test]
async fn a_request_is_answered_over_tls_and_its_connection_is_kept() {
    let (folder, authority) = create_authority();
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, plain()).await;
    let access = access(folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    let reply = access.get("/api/v1/services?limit=1", None).await.unwrap();
    assert_eq!((reply.status, &*reply.endpoint), (200, &*server.address.to_string()));
    let (body, kept) = reply.read_body(100, IDLE).await.unwrap();
    assert_eq!(&body[..], b"{}");
    access.get("/api/v1/services?limit=2", Some(kept)).await.unwrap();
    let asked = ["/api/v1/namespaces/kube-system", "/api/v1/services?limit=1", "/api/v1/services?limit=2"];
    assert_eq!(server.paths(), asked, "the identity is asked once for each connection");
    assert_eq!(access.cluster().unwrap().as_str(), OUR_UID);
    let first = server.asked.lock().unwrap()[0].clone();
    assert_eq!(first.header("user-agent"), Some(concat!("holdfast/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(first.header("accept-encoding"), Some("identity"));
}

#[tokio::test]
async fn after_a_refused_connection_the_next_endpoint_is_asked() {
    let (folder, authority) = create_authority();
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, plain()).await;
    let keys = format!("endpoints = [\"https://127.0.0.1:1\", {}]\nca_file = \"ca.crt\"", server.url());
    let access = access(folder.path(), &keys);
    let reply = access.get("/readyz", None).await.unwrap();
    assert_eq!(*reply.endpoint, server.address.to_string());
}

#[test]
fn a_local_error_is_not_blamed_on_the_endpoint() {
    few_ports::run_in_network(async || {
        let (folder, authority) = create_authority();
        let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, plain()).await;
        let access = access(folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
        access.get("/readyz", None).await.unwrap();
        let taken = few_ports::take_ports(server.address).await;
        let error = access.get("/readyz", None).await.unwrap_err().to_string();
        assert!(error.contains("this host could not connect: "), "{error}");
        let id = access.inner.endpoints.lock().rows()[0].id;
        let target = access.inner.endpoints.target(id).unwrap();
        maintenance::check_endpoint(&access.inner, &target).await;
        maintenance::check_endpoint(&access.inner, &target).await;
        assert_eq!(access.inner.endpoints.lock().rows()[0].state, ApiserverState::Healthy);
        drop(taken);
        access.get("/readyz", None).await.unwrap();
    });
}

#[tokio::test]
async fn a_silent_server_is_dialled_for_the_first_request_only() {
    let (folder, authority) = create_authority();
    let leaf = authority.leaf("127.0.0.1");
    for manner in [Manner::SilentTcp, Manner::SilentHttp] {
        let silent = Server::start(&leaf, manner, plain()).await;
        let good = Server::start(&leaf, Manner::Serve, plain()).await;
        let keys = format!("endpoints = [{}, {}]\nca_file = \"ca.crt\"", silent.url(), good.url());
        let access = access(folder.path(), &keys);
        for _ in 0..2 {
            assert_eq!(*access.get("/", None).await.unwrap().endpoint, good.address.to_string());
        }
        assert_eq!((silent.dials(), good.dials()), (1, 2), "{manner:?}");
    }
}

#[tokio::test]
async fn a_refusal_that_trickles_delays_no_other_endpoint() {
    let (folder, authority) = create_authority();
    let leaf = authority.leaf("127.0.0.1");
    let refusal = format!("HTTP/1.1 502 No\r\ncontent-length: 60000\r\n\r\n{SLOWLY}{}", "x".repeat(60_000));
    let slow = Server::start(&leaf, Manner::Serve, ours(move |_| refusal.clone())).await;
    let good = Server::start(&leaf, Manner::Serve, plain()).await;
    let keys = format!("endpoints = [{}, {}]\nca_file = \"ca.crt\"", slow.url(), good.url());
    let access = access(folder.path(), &keys);
    let reply = await_event("a reply", access.get("/", None)).await;
    assert_eq!(*reply.unwrap().endpoint, good.address.to_string());
}

/// Two servers: the first replies 500 to everything but its identity, the second like this.
async fn failing_inside(folder: &Path, second: &'static str) -> (Access, [Server; 2]) {
    answering(folder, ["500 Internal Server Error", second]).await
}

/// Two servers that reply like this to everything but their identity.
async fn answering(folder: &Path, answers: [&'static str; 2]) -> (Access, [Server; 2]) {
    let authority = Authority::new();
    authority.write(&folder.join("ca.crt"));
    let leaf = authority.leaf("127.0.0.1");
    let [first, second] = answers.map(|it| ours(move |_| answer(it, "{}")));
    let first = Server::start(&leaf, Manner::Serve, first).await;
    let second = Server::start(&leaf, Manner::Serve, second).await;
    let keys = format!("endpoints = [{}, {}]\nca_file = \"ca.crt\"", first.url(), second.url());
    (access(folder, &keys), [first, second])
}

/// An apiserver without etcd fails every list, but its certificate and identity are valid.
#[tokio::test]
async fn a_read_that_gets_a_500_goes_to_the_next_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (access, [_first, second]) = failing_inside(folder.path(), "200 OK").await;
    let reply = access.get("/x", None).await.unwrap();
    assert_eq!((reply.status, &*reply.endpoint), (200, &*second.address.to_string()));
    let row = access.view().endpoints.remove(0);
    assert_eq!(
        (row.state, row.last_error.unwrap().0.as_str()),
        (ApiserverState::Unknown, "500: Internal Server Error")
    );
}

/// A gateway lost its apiserver after the connection was verified.
#[tokio::test]
async fn an_endpoint_error_fails_over_on_a_verified_connection_too() {
    let statuses = ["302 Found", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"];
    for status in statuses {
        let folder = tempfile::tempdir().unwrap();
        let (access, [first, second]) = answering(folder.path(), [status, "200 OK"]).await;
        let reply = access.get("/api/v1/services", None).await.unwrap();
        assert_eq!((reply.status, &*reply.endpoint), (200, &*second.address.to_string()), "{status}");
        assert_eq!(first.paths(), ["/api/v1/namespaces/kube-system", "/api/v1/services"], "{status}");
        assert_eq!(access.view().endpoints[0].state, ApiserverState::Failed, "{status}");
    }
}

/// One object may make every apiserver fail.
#[tokio::test]
async fn a_read_that_gets_only_500s_asks_each_once_a_write_one() {
    let folder = tempfile::tempdir().unwrap();
    let (access, servers) = failing_inside(folder.path(), "500 Internal Server Error").await;
    let reply = access.get("/x", None).await.unwrap();
    assert_eq!((reply.status, &*reply.endpoint), (500, &*servers[0].address.to_string()));
    let asked = |path: &str| {
        servers.each_ref().map(|server| server.paths().iter().filter(|asked| *asked == path).count())
    };
    assert_eq!(asked("/x"), [1, 1]);
    assert!(access.view().endpoints.iter().all(|row| row.state == ApiserverState::Unknown));
    assert_eq!(access.write_best_effort("/y", &WriteRequest::Create("{}")).await.unwrap().status, 500);
    assert_eq!(asked("/y"), [1, 0]);
}

#[tokio::test]
async fn a_large_reply_that_starts_late_is_no_dial_failure() {
    let (folder, authority) = create_authority();
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, ours(|_| String::new())).await;
    let access = access(folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    let error = access.get_large(JSON, "/x").await.unwrap_err();
    assert_eq!(error.to_string(), format!("{}: does not begin its answer within 10 s", server.address));
    assert!(error.is_unanswered());
    assert_eq!(access.view().endpoints[0].state, ApiserverState::Unknown);
}

#[tokio::test]
async fn when_all_have_failed_all_are_asked_in_order() {
    let (folder, authority) = create_authority();
    let leaf = authority.leaf("127.0.0.1");
    let servers = [
        Server::start(&leaf, Manner::Close, plain()).await,
        Server::start(&leaf, Manner::Close, plain()).await,
    ];
    let keys = format!("endpoints = [{}, {}]\nca_file = \"ca.crt\"", servers[0].url(), servers[1].url());
    let access = access(folder.path(), &keys);
    for _ in 0..2 {
        let AccessError::Failed(failures) = access.get("/", None).await.unwrap_err() else { panic!() };
        let asked: Vec<_> = failures.iter().map(|it| it.endpoint.to_string()).collect();
        assert_eq!(asked, servers.each_ref().map(|it| it.address.to_string()));
    }
    servers[1].set(Manner::Serve);
    access.get("/", None).await.unwrap();
}

#[tokio::test]
async fn a_kept_connection_that_died_is_replaced_without_blame() {
    let (folder, authority) = create_authority();
    let closing = ours(|_| "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}".to_owned());
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, closing).await;
    let access = access(folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    let mut kept = None;
    for _ in 0..3 {
        let reply = access.get("/", kept.take()).await.unwrap();
        kept = Some(reply.read_body(10, IDLE).await.unwrap().1);
    }
    let row = access.view().endpoints.remove(0);
    assert_eq!((row.state, row.last_error, row.connections), (ApiserverState::Healthy, None, 1));
    drop(kept);
    assert_eq!(access.view().endpoints[0].connections, 0);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_with_its_endpoint() {
    let (folder, authority) = create_authority();
    let script = ours(|_| "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n".to_owned());
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, script).await;
    let access = access(folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    let mut reply = access.get("/", None).await.unwrap();
    assert_eq!(reply.next_chunk(IDLE).await.unwrap().as_deref(), Some(&b"{}"[..]));
    let silent = reply.next_chunk(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(silent.to_string(), format!("{}: accepts but does not answer", server.address));
    drop(server);
    let closed = reply.next_chunk(IDLE).await.unwrap_err();
    assert!(closed.to_string().ends_with(": closed the connection"), "{closed}");
    assert!(access.view().endpoints[0].last_error.is_some());
}

/// A preferred endpoint that returns gets the next connection.
#[tokio::test]
async fn a_check_finds_a_preferred_endpoint_that_is_back() {
    let (folder, authority) = create_authority();
    let leaf = authority.leaf("127.0.0.1");
    let first = Server::start(&leaf, Manner::Close, plain()).await;
    let second = Server::start(&leaf, Manner::Serve, plain()).await;
    let keys = format!("endpoints = [{}, {}]\nca_file = \"ca.crt\"", first.url(), second.url());
    let access = access(folder.path(), &keys);
    let _held = access.get("/", None).await.unwrap();
    assert_eq!(access.view().endpoints[0].state, ApiserverState::Failed);
    first.set(Manner::Serve);
    let id = access.inner.endpoints.lock().rows()[0].id;
    let target = access.inner.endpoints.target(id).unwrap();
    for expected in [ApiserverState::Recovering, ApiserverState::Healthy] {
        maintenance::check_endpoint(&access.inner, &target).await;
        assert_eq!(access.view().endpoints[0].state, expected);
    }
    assert_eq!(*access.get("/", None).await.unwrap().endpoint, first.address.to_string());
}
