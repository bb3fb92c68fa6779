//! Errors in the operator's words.

use std::path::Path;

use rcgen::{CertificateParams, date_time_ymd};

use super::super::AccessError;
use super::access;
use super::server::{
    Asked, Authority, Leaf, Manner, OUR_UID, Script, Server, answer, create_authority, namespace, ours, plain,
};

/// The error of a single endpoint, with `SERVER` for its address.
async fn trouble(folder: &Path, server: &Server) -> String {
    let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"\ntoken_file = \"token\"", server.url());
    match access(folder, &keys).get("/api/v1/services", None).await {
        Ok(reply) => format!("answered {}", reply.status),
        Err(AccessError::NoEndpoint) => "no endpoint".to_owned(),
        Err(AccessError::Failed(failures)) => failures[0].trouble.to_string(),
    }
}

struct TroubleHarness {
    folder: tempfile::TempDir,
    good: Leaf,
    authority: Authority,
}

impl TroubleHarness {
    fn new() -> Self {
        let (folder, authority) = create_authority();
        std::fs::write(folder.path().join("token"), "secret\n").unwrap();
        Self { folder, good: authority.leaf("127.0.0.1"), authority }
    }

    async fn check(&self, name: &str, leaf: &Leaf, manner: Manner, script: Script, expected: &str) {
        let server = Server::start(leaf, manner, script).await;
        assert_eq!(trouble(self.folder.path(), &server).await, expected, "{name}");
    }

    async fn check_manner(&self, manner: Manner, expected: &str) {
        self.check(&format!("{manner:?}"), &self.good, manner, plain(), expected).await;
    }

    async fn check_leaf(&self, name: &str, leaf: &Leaf, expected: &str) {
        self.check(name, leaf, Manner::Serve, plain(), expected).await;
    }

    async fn check_answer(&self, status: &'static str, body: &'static str, expected: &str) {
        let script = ours(move |_| answer(status, body));
        self.check(status, &self.good, Manner::Serve, script, expected).await;
    }
}

#[tokio::test]
async fn a_failing_socket_is_named() {
    let fixture = TroubleHarness::new();
    fixture.check_manner(Manner::Close, "closed the connection").await;
    fixture.check_manner(Manner::CloseAfterRequest, "closed the connection").await;
    fixture.check_manner(Manner::PlainText, "not an apiserver: it does not speak TLS").await;
    fixture.check_manner(Manner::SilentTcp, "accepts but does not answer").await;
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let keys = format!("endpoints = [\"https://{address}\"]\nca_file = \"ca.crt\"");
    let error = access(fixture.folder.path(), &keys).get("/", None).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{address}: connection refused"));
}

#[tokio::test]
async fn an_invalid_certificate_is_named() {
    let fixture = TroubleHarness::new();
    let other = fixture.authority.leaf("other.example");
    fixture.check_leaf("name", &other, "certificate is for other.example, not 127.0.0.1").await;
    let stranger = Authority::new().leaf("127.0.0.1");
    fixture.check_leaf("authority", &stranger, "certificate not signed by the given CA").await;
    let mut old = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    old.not_before = date_time_ymd(2001, 1, 1);
    old.not_after = date_time_ymd(2002, 1, 1);
    fixture.check_leaf("old", &fixture.authority.leaf_with(&old), "certificate expired").await;
    let mut young = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    young.not_before = date_time_ymd(2090, 1, 1);
    let young = fixture.authority.leaf_with(&young);
    fixture.check_leaf("young", &young, "certificate not valid yet: compare the clocks").await;
}

#[tokio::test]
async fn an_invalid_reply_is_named() {
    let fixture = TroubleHarness::new();
    let message = r#"{"kind":"Status","message":"etcd is away"}"#;
    fixture.check_answer("503 Service Unavailable", message, "503: etcd is away").await;
    fixture.check_answer("502 Bad Gateway", "<html>nginx</html>", "502: Bad Gateway").await;
    fixture.check_answer("307 Temporary Redirect", "", "307: Temporary Redirect").await;
    fixture.check_answer("401 Unauthorized", "", "401: token rejected").await;
    // The caller judges a status about the request.
    for (status, expected) in [
        ("403 Forbidden", "403"),
        ("404 Not Found", "404"),
        ("410 Gone", "410"),
        ("429 Too Many Requests", "429"),
        ("500 Internal Server Error", "500"),
    ] {
        fixture.check_answer(status, "{}", &format!("answered {expected}")).await;
    }
    let good = &fixture.good;
    let html: Script = std::sync::Arc::new(|_: &Asked| answer("200 OK", "<html>"));
    fixture.check("proxy", good, Manner::Serve, html, "not an apiserver: its kube-system has no uid").await;
    let http: Script = std::sync::Arc::new(|_: &Asked| "SSH-2.0-x\r\n\r\n".to_owned());
    fixture
        .check("no http", good, Manner::Serve, http, "not an apiserver: invalid HTTP version parsed")
        .await;
    let short: Script =
        std::sync::Arc::new(|_: &Asked| "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned());
    fixture.check("short", good, Manner::Serve, short, "accepts but does not answer").await;
    let large: Script = std::sync::Arc::new(|_: &Asked| answer("200 OK", &"x".repeat(300_000)));
    fixture.check("large", good, Manner::Serve, large, "the answer has more than 262144 bytes").await;
}

#[tokio::test]
async fn another_cluster_is_refused_and_named() {
    let fixture = TroubleHarness::new();
    let ours = Server::start(&fixture.good, Manner::Serve, plain()).await;
    let strange: Script = std::sync::Arc::new(|_: &Asked| namespace("uid-b"));
    let other = Server::start(&fixture.good, Manner::Serve, strange).await;
    let keys = format!("endpoints = [{}, {}]\nca_file = \"ca.crt\"", ours.url(), other.url());
    let access = access(fixture.folder.path(), &keys);
    access.get("/", None).await.unwrap();
    ours.set(Manner::Close);
    let error = access.get("/", None).await.unwrap_err().to_string();
    let expected = format!("{}: another cluster (uid uid-b, not {OUR_UID})", other.address);
    assert!(error.contains(&expected), "{error}");
    assert_eq!(other.paths(), ["/api/v1/namespaces/kube-system"], "nothing else was asked of it");
}

#[tokio::test]
async fn without_permission_for_the_uid_the_certificate_suffices() {
    let fixture = TroubleHarness::new();
    let script: Script = std::sync::Arc::new(|asked: &Asked| match asked.path.ends_with("/kube-system") {
        true => answer("403 Forbidden", r#"{"message":"no"}"#),
        false => answer("200 OK", "{}"),
    });
    let server = Server::start(&fixture.good, Manner::Serve, script).await;
    let access =
        access(fixture.folder.path(), &format!("endpoints = [{}]\nca_file = \"ca.crt\"", server.url()));
    assert_eq!(access.get("/", None).await.unwrap().status, 200);
    assert_eq!((access.cluster(), access.view().unverified_reason.as_deref()), (None, Some("403: no")));
}
