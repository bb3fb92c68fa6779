//! Checks over TLS, with certificates made here.

use std::path::PathBuf;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

use super::*;
use holdfast_config::{CheckTls, ClientIdentity, FileAuthor, TlsFiles};
use holdfast_fixtures::{Authority, Leaf};

/// A client's files, and the authority that it trusts.
struct TlsCheckHarness {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl TlsCheckHarness {
    fn new() -> Self {
        let bed = Self { folder: tempfile::tempdir().unwrap(), authority: Authority::new() };
        bed.authority.write(&bed.path("ca.crt"));
        let client = bed.authority.leaf("client");
        std::fs::write(bed.path("client.crt"), client.certificate).unwrap();
        std::fs::write(bed.path("client.key"), client.key).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self, has_client: bool) -> TlsFiles {
        let client = has_client.then(|| ClientIdentity::Certificate {
            certificate_file: self.path("client.crt"),
            key_file: self.path("client.key"),
        });
        TlsFiles { ca_file: self.path("ca.crt"), client, author: FileAuthor::Administrator }
    }

    /// Checks a server with this certificate, which may require a client certificate.
    async fn check(&self, rule: &str, leaf: &Leaf, wants_client: bool, asked: &CheckTls, expected: &str) {
        let clients = wants_client.then_some(&self.authority);
        let outcome = ask(&ClientTls::new(&asked.files), asked, leaf, clients, None).await;
        assert!(outcome.starts_with(expected), "{rule}: {outcome}");
    }
}

fn server_config(leaf: &Leaf, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let certificates =
        |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect::<Vec<_>>();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            certificates(&authority.pem).into_iter().for_each(|root| roots.add(root).unwrap());
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    Arc::new(builder.with_single_cert(certificates(&leaf.certificate), key).unwrap())
}

async fn answer(listener: TcpListener, config: Arc<ServerConfig>) {
    let (stream, _) = listener.accept().await.unwrap();
    let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        request.push(byte);
    }
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nall is well";
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
}

/// The result of one check of one server.
async fn ask(
    tls: &ClientTls,
    asked: &CheckTls,
    leaf: &Leaf,
    clients: Option<&Authority>,
    expect_body: Option<&str>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    let serving = tokio::spawn(answer(listener, server_config(leaf, clients)));
    let expect_body = expect_body.map(str::to_owned);
    let kind = CheckKind::Http(HttpCheck { tls: Some(asked.clone()), expect_body, ..http("/") });
    assert_eq!(kind.as_str(), "https");
    let outcome = run_check(&check_of(kind, TEST_TIMEOUT), backend, Some(tls)).await;
    serving.abort();
    outcome.map_or_else(|failed| failed.to_string(), |()| "healthy".to_owned())
}

fn named(name: Option<&str>, files: TlsFiles) -> CheckTls {
    CheckTls { server_name: name.map(str::to_owned), files }
}

#[tokio::test]
async fn a_check_over_tls_passes_with_the_expected_certificate() {
    let bed = TlsCheckHarness::new();
    let address = bed.authority.leaf("127.0.0.1");
    let name = bed.authority.leaf("web.internal");
    let stranger = Authority::new().leaf("127.0.0.1");
    let by_address = named(None, bed.files(false));
    let by_name = named(Some("web.internal"), bed.files(false));
    bed.check("the address that is dialled", &address, false, &by_address, "healthy").await;
    bed.check("the name that is meant", &name, false, &by_name, "healthy").await;
    bed.check("a name where an address is meant", &name, false, &by_address, "no TLS: invalid peer").await;
    bed.check("another name", &address, false, &by_name, "no TLS: invalid peer").await;
    bed.check("another authority", &stranger, false, &by_address, "no TLS: invalid peer").await;
    let as_client = named(None, bed.files(true));
    bed.check("no certificate for one that wants it", &address, true, &by_address, "the connection broke")
        .await;
    bed.check("a certificate for one that wants it", &address, true, &as_client, "healthy").await;
    bed.check("a certificate for one that wants none", &address, false, &as_client, "healthy").await;
    let tls = ClientTls::new(&by_address.files);
    assert_eq!(ask(&tls, &by_address, &address, None, Some("all is well")).await, "healthy");
    let other = ask(&tls, &by_address, &address, None, Some("PONG")).await;
    assert_eq!(other, "\"PONG\" is not in the answer, which begins \"all is well\"");
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_not_healthy() {
    let bed = TlsCheckHarness::new();
    let tls = ClientTls::new(&bed.files(false));
    for (server, expected) in [
        (Server::Banner(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "no TLS: "),
        (Server::Closes, "no TLS: "),
        (Server::Silent, "no answer within 400 ms"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(server, listener));
        let kind = CheckKind::Http(HttpCheck { tls: Some(named(None, bed.files(false))), ..http("/") });
        let check = check_of(kind, Duration::from_millis(400));
        let outcome = run_check(&check, backend, Some(&tls)).await.unwrap_err().to_string();
        serving.abort();
        assert!(outcome.starts_with(expected), "{outcome}");
    }
}

/// Files rotate, and may be half-written or missing meanwhile: that is not the backend's fault.
#[tokio::test]
async fn unreadable_files_mark_no_backend_down() {
    let bed = TlsCheckHarness::new();
    let leaf = bed.authority.leaf("127.0.0.1");
    let asked = named(None, bed.files(false));
    let tls = ClientTls::new(&asked.files);
    std::fs::remove_file(bed.path("ca.crt")).unwrap();
    let outcome = ask(&tls, &asked, &leaf, None, None).await;
    assert!(outcome.starts_with("not checked: "), "{outcome}");
    bed.authority.write(&bed.path("ca.crt"));
    let until_read = async {
        while ask(&tls, &asked, &leaf, None, None).await != "healthy" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_read).await.expect("the file is looked at again");
    for content in ["", "-----BEGIN CERTIFICATE-----\nMIIB"] {
        std::fs::write(bed.path("ca.crt"), content).unwrap();
        tokio::time::sleep(holdfast_credentials::CHECK_EVERY).await;
        assert_eq!(ask(&tls, &asked, &leaf, None, None).await, "healthy", "what was good stays: {content:?}");
    }
}

#[tokio::test]
async fn changed_files_are_used() {
    let bed = TlsCheckHarness::new();
    let other = Authority::new();
    let leaf = other.leaf("127.0.0.1");
    let asked = named(None, bed.files(false));
    let tls = ClientTls::new(&asked.files);
    let outcome = ask(&tls, &asked, &leaf, None, None).await;
    assert!(outcome.starts_with("no TLS: "), "{outcome}");
    other.write(&bed.path("ca.crt"));
    let until_read = async {
        while ask(&tls, &asked, &leaf, None, None).await != "healthy" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_read).await.expect("the file is looked at again");
}

/// Root's key would give a check root's rights at any server it dials.
#[tokio::test]
async fn kernel_no_check_presents_a_key_that_its_author_may_not_read() {
    const USER: u32 = 61_183;
    let bed = TlsCheckHarness::new();
    let mode = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(bed.path(name), mode).unwrap();
    };
    mode("", 0o755);
    mode("client.key", 0o600);
    let leaf = bed.authority.leaf("127.0.0.1");
    let by_user = TlsFiles { author: FileAuthor::User(USER), ..bed.files(true) };
    let asked = named(None, by_user);
    bed.check("root's key", &leaf, true, &asked, "not checked: ").await;
    std::os::unix::fs::chown(bed.path("client.key"), Some(USER), None).unwrap();
    bed.check("the user's key", &leaf, true, &asked, "healthy").await;
    mode("ca.crt", 0o600);
    bed.check("root's authorities", &leaf, true, &asked, "not checked: ").await;
    bed.check("root says so", &leaf, true, &named(None, bed.files(true)), "healthy").await;
}

/// Serves gRPC, with these ALPN protocols.
async fn serve_grpc(listener: TcpListener, leaf: &Leaf, offered: &[&str]) {
    let mut config = server_config(leaf, None).as_ref().clone();
    config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
    let (stream, _) = listener.accept().await.unwrap();
    let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else { return };
    let chosen = stream.get_ref().1.alpn_protocol();
    assert_eq!(chosen, offered.contains(&"h2").then_some(&b"h2"[..]));
    stream.write_all(by_grpc::answer(1)).await.unwrap();
    stream.flush().await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn a_check_by_grpc_over_tls_asks_for_http_2() {
    let bed = TlsCheckHarness::new();
    let (own, stranger) = (bed.authority.leaf("127.0.0.1"), Authority::new().leaf("127.0.0.1"));
    let tls = ClientTls::new(&bed.files(false));
    for (rule, leaf, offered, expected) in [
        ("beside another one", &own, &["http/1.1", "h2"][..], "healthy"),
        ("none is agreed on", &own, &[], "healthy"),
        ("without it", &own, &["http/1.1"], "no TLS: "),
        ("another authority", &stranger, &["h2"], "no TLS: invalid peer"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = listener.local_addr().unwrap();
        let asked = GrpcCheck { tls: Some(named(None, bed.files(false))), ..GrpcCheck::default() };
        let check = check_of(CheckKind::Grpc(asked), TEST_TIMEOUT);
        let (outcome, ()) =
            tokio::join!(run_check(&check, backend, Some(&tls)), serve_grpc(listener, leaf, offered));
        let outcome = outcome.map_or_else(|failed| failed.to_string(), |()| "healthy".to_owned());
        assert!(outcome.starts_with(expected), "{rule}: {outcome}");
    }
}
