//! From one endpoint to the next, and how long that takes.

use std::time::{Duration, Instant};

use super::access;
use super::server::{Authority, Manner, OUR_UID, Server, plain};

const IDLE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_request_is_answered_over_tls_and_its_connection_is_kept() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(&folder.path().join("ca.crt"));
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, plain()).await;
    let access = access(folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    let reply = access.get("/api/v1/services?limit=1", None).await.unwrap();
    assert_eq!((reply.status, &*reply.endpoint), (200, &*server.address.to_string()));
    let (body, kept) = reply.whole(100, IDLE).await.unwrap();
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
async fn a_refused_connection_costs_less_than_50_ms() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(&folder.path().join("ca.crt"));
    let server = Server::start(&authority.leaf("127.0.0.1"), Manner::Serve, plain()).await;
    let keys = format!("endpoints = [\"https://127.0.0.1:1\", {}]\nca_file = \"ca.crt\"", server.url());
    let access = access(folder.path(), &keys);
    let start = Instant::now();
    let reply = access.get("/readyz", None).await.unwrap();
    assert_eq!(*reply.endpoint, server.address.to_string());
    assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
}
