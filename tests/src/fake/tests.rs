//! Tests that the fake behaves as an apiserver, and that each fault does what its name says.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use super::*;

/// How long a client reads in vain where nothing may come.
const SILENCE: Duration = Duration::from_millis(500);

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

struct ServedCluster {
    cluster: Cluster,
    authority: Authority,
    server: Server,
}

impl ServedCluster {
    fn new() -> Self {
        let cluster = Cluster::new("cluster-one");
        let authority = Authority::new().unwrap();
        let server = Server::start(&cluster, &authority.server(&Names::Kubernetes).unwrap()).unwrap();
        Self { cluster, authority, server }
    }

    fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    fn try_client(&self) -> std::io::Result<Client> {
        Client::dial(&self.server, &self.authority.pem(), None)
    }

    fn get(&self, target: &str) -> (u16, String) {
        self.client().get(target)
    }

    fn slice(&self, name: &str, address: &str) -> u64 {
        self.cluster.apply(slice(name, address)).unwrap()
    }
}

fn slice(name: &str, address: &str) -> Value {
    json!({
        "kind": "EndpointSlice",
        "metadata": {"namespace": "default", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": null,
        "endpoints": [{"addresses": [address]}],
    })
}

struct Client {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

impl Client {
    fn dial(server: &Server, authority: &str, client: Option<&ClientIdentity>) -> std::io::Result<Self> {
        Self::dial_within(TEST_TIMEOUT, server, authority, client)
    }

    fn dial_within(
        limit: Duration,
        server: &Server,
        authority: &str,
        client: Option<&ClientIdentity>,
    ) -> std::io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some(it) => {
                let certificate = CertificateDer::from_pem_slice(it.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(it.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        let tcp = TcpStream::connect_timeout(&server.address(), TEST_TIMEOUT)?;
        tcp.set_read_timeout(Some(limit))?;
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(tls, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { stream: BufReader::new(stream) })
    }

    fn get(&mut self, target: &str) -> (u16, String) {
        self.ask(target, "");
        let status = self.status().unwrap();
        (status, self.body())
    }

    fn ask(&mut self, target: &str, headers: &str) {
        let text = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn status(&mut self) -> Option<u16> {
        self.line().ok()?.split(' ').nth(1)?.parse().ok()
    }

    fn body(&mut self) -> String {
        let mut length = None;
        loop {
            let line = self.line().unwrap();
            if line.is_empty() {
                break;
            }
            length = line.strip_prefix("Content-Length: ").map(|it| it.parse().unwrap()).or(length);
        }
        match length {
            Some(length) => self.read(length),
            None => std::iter::from_fn(|| self.chunk().unwrap()).collect(),
        }
    }

    fn read(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn chunk(&mut self) -> std::io::Result<Option<String>> {
        let line = self.line()?;
        let length = usize::from_str_radix(&line, 16).map_err(|_| ErrorKind::UnexpectedEof)?;
        let text = self.read(length);
        self.line()?;
        Ok((length > 0).then_some(text))
    }

    /// Begins a watch and reads its head.
    fn watch(&mut self, target: &str) -> u16 {
        self.ask(target, "");
        let status = self.status().unwrap();
        while !self.line().unwrap().is_empty() {}
        status
    }

    /// The next event: its type, name or message, and version.
    fn event(&mut self) -> (String, String, String) {
        let event: Value = serde_json::from_str(&self.chunk().unwrap().unwrap()).unwrap();
        let text = |pointer| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = text("/object/metadata/name") + &text("/object/message");
        (text("/type"), name, text("/object/metadata/resourceVersion"))
    }

    fn is_silent(&mut self) -> bool {
        self.stream.get_ref().sock.set_read_timeout(Some(SILENCE)).unwrap();
        let read = self.stream.read(&mut [0]);
        self.stream.get_ref().sock.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        read.is_err_and(|error| is_timeout(&error))
    }

    fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => !is_timeout(&error),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn event(word: &str, name: &str, version: u64) -> (String, String, String) {
    (word.to_owned(), name.to_owned(), version.to_string())
}

fn names(list: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(list).unwrap();
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_list_comes_in_pages_of_one_moment() {
    let fixture = ServedCluster::new();
    for name in ["a", "b", "c"] {
        fixture.slice(name, "10.0.0.1");
    }
    let mut client = fixture.client();
    let (status, first) = client.get(&format!("{SLICES}?limit=2"));
    let page: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((status, names(&first)), (200, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    fixture.cluster.delete(Kind::Slices, "default/c").unwrap();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let (_, second) = client.get(&format!("{SLICES}?limit=2&continue={token}"));
    assert_eq!(names(&second), ["c"], "as it was when the list began");
    fixture.cluster.compact();
    let (status, expired) = client.get(&format!("{SLICES}?limit=2&continue={token}"));
    assert_eq!((status, expired.contains("Expired")), (410, true));
    assert_eq!(fixture.server.connections(), 1, "one connection, kept");
}

#[test]
fn single_objects_have_kind_and_version() {
    let fixture = ServedCluster::new();
    fixture.slice("a", "10.0.0.1");
    let (_, list) = fixture.get(SLICES);
    assert!(list.starts_with(r#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata""#));
    let item = &serde_json::from_str::<Value>(&list).unwrap()["items"][0];
    assert_eq!(item.get("kind"), None, "items of lists do not say their kind");
    assert_eq!(item["ports"], Value::Null);
    let (status, uid) = fixture.get("/api/v1/namespaces/kube-system");
    assert_eq!((status, uid.contains("cluster-one")), (200, true));
    assert_eq!(fixture.get("/readyz"), (200, "ok".to_owned()));
    assert_eq!(fixture.get("/api/v1/nodes/none").0, 404);
    assert_eq!(fixture.get("/api/v1/secrets").0, 404);
    assert_eq!(fixture.get(&format!("{SLICES}?resourceVersion=999999")).0, 504);
}

#[test]
fn an_audit_gets_names_and_versions_only() {
    let fixture = ServedCluster::new();
    let version = fixture.slice("a", "10.0.0.1");
    let mut client = fixture.client();
    client.ask(SLICES, "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1\r\n");
    assert_eq!(client.status(), Some(200));
    let list: Value = serde_json::from_str(&client.body()).unwrap();
    let item = &list["items"][0];
    assert_eq!(item["metadata"]["resourceVersion"], version.to_string());
    assert_eq!((item.get("endpoints"), &item["kind"]), (None, &json!("PartialObjectMetadata")));
    assert_eq!(
        (
            fixture.server.request_count(RequestFilter::audit(Kind::Slices)),
            fixture.server.request_count(RequestFilter::list(Kind::Slices))
        ),
        (1, 0)
    );
}

#[test]
fn a_watch_sends_the_changes_after_its_version() {
    let fixture = ServedCluster::new();
    fixture.slice("before", "10.0.0.1");
    let mut client = fixture.client();
    let from = fixture.cluster.version();
    assert_eq!(client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}")), 200);
    let added = fixture.slice("a", "10.0.0.1");
    let changed = fixture.slice("a", "10.0.0.2");
    let deleted = fixture.cluster.delete(Kind::Slices, "default/a").unwrap();
    let expected =
        [event("ADDED", "a", added), event("MODIFIED", "a", changed), event("DELETED", "a", deleted)];
    assert_eq!([(); 3].map(|()| client.event()), expected);
    fixture.server.end_watches(Kind::Slices);
    assert_eq!(client.chunk().unwrap(), None, "a clean end");
    assert_eq!(client.get("/readyz").0, 200, "and the connection is still good");
}

#[test]
fn an_object_that_no_longer_matches_is_deleted_for_the_watcher() {
    let fixture = ServedCluster::new();
    let mut client = fixture.client();
    let from = fixture.cluster.version();
    client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}&labelSelector=%21hidden"));
    let added = fixture.slice("a", "10.0.0.1");
    let mut hidden = slice("a", "10.0.0.1");
    hidden["metadata"]["labels"]["hidden"] = json!("");
    let gone = fixture.cluster.apply(hidden).unwrap();
    assert_eq!([(); 2].map(|()| client.event()), [event("ADDED", "a", added), event("DELETED", "a", gone)]);
}

#[test]
fn only_a_watch_that_asked_gets_bookmarks() {
    let fixture = ServedCluster::new();
    fixture.server.set_bookmarks(Some(Duration::from_millis(20)));
    let from = fixture.cluster.version();
    let watch = format!("{SLICES}?watch=true&resourceVersion={from}");
    let (mut with, mut without) = (fixture.client(), fixture.client());
    with.watch(&format!("{watch}&allowWatchBookmarks=true"));
    without.watch(&watch);
    assert_eq!(with.event(), event("BOOKMARK", "", from));
    let untold = fixture.cluster.apply_without_event(slice("lost", "10.0.0.1")).unwrap();
    let lied = std::iter::repeat_with(|| with.event()).find(|it| it.2 == untold.to_string()).unwrap();
    assert_eq!(lied.0, "BOOKMARK", "the event is lost, and the bookmark says that nothing is");
    assert!(without.is_silent());
}

#[test]
fn a_watch_ends_at_its_timeout() {
    let fixture = ServedCluster::new();
    let mut client = fixture.client();
    let from = fixture.cluster.version();
    client.watch(&format!("{SLICES}?watch=true&timeoutSeconds=0&resourceVersion={from}"));
    assert_eq!(client.chunk().unwrap(), None);
}

#[test]
fn a_watch_from_a_compacted_version_gets_an_error_event() {
    let fixture = ServedCluster::new();
    let from = fixture.cluster.version();
    fixture.slice("a", "10.0.0.1");
    fixture.cluster.compact();
    let mut client = fixture.client();
    assert_eq!(client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}")), 200);
    let (word, message, _) = client.event();
    assert_eq!((word.as_str(), message.as_str()), ("ERROR", "too old resource version: 1001 (1002)"));
    assert_eq!(client.chunk().unwrap(), None);
}

#[test]
fn a_watch_from_a_future_version_stays_silent() {
    let fixture = ServedCluster::new();
    fixture.server.set_bookmarks(Some(Duration::from_millis(20)));
    let mut client = fixture.client();
    let watch = format!("{SLICES}?watch=true&resourceVersion=5000&allowWatchBookmarks=true");
    assert_eq!(client.watch(&watch), 200);
    fixture.slice("a", "10.0.0.1");
    assert!(client.is_silent());
    fixture.cluster.rewind(5_000);
    let version = fixture.slice("b", "10.0.0.1");
    let seen = std::iter::repeat_with(|| client.event()).find(|it| it.0 != "BOOKMARK").unwrap();
    assert_eq!(seen, event("ADDED", "b", version));
}

#[test]
fn a_mute_watch_sends_its_events_once_unmuted() {
    let fixture = ServedCluster::new();
    let mut client = fixture.client();
    let from = fixture.cluster.version();
    client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}"));
    fixture.server.mute(Kind::Slices, true);
    let version = fixture.slice("a", "10.0.0.1");
    assert!(client.is_silent());
    fixture.server.mute(Kind::Slices, false);
    assert_eq!(client.event(), event("ADDED", "a", version));
}

#[track_caller]
fn check_answer(fault: Fault, expected: u16, inside: &str) {
    let fixture = ServedCluster::new();
    fixture.slice("a", "10.0.0.1");
    fixture.server.once(RequestFilter::list(Kind::Slices), fault);
    let mut client = fixture.client();
    client.ask(SLICES, "");
    assert_eq!(client.status(), Some(expected));
    let mut rest = String::new();
    while !rest.contains(inside) {
        rest.push_str(&client.read(1));
    }
    assert_eq!(fixture.get(SLICES).0, 200, "only the next request");
}

#[test]
fn each_fault_with_an_answer_sends_it() {
    let retry = Fault::Status { code: 429, reason: "TooManyRequests", retry_after: Some(7) };
    check_answer(retry, 429, "Retry-After: 7\r\n");
    check_answer(Fault::status(403, "Forbidden"), 403, r#""reason":"Forbidden""#);
    check_answer(
        Fault::raw("502 Bad Gateway", &["Content-Type: text/html"], "<html>"),
        502,
        "\r\n\r\n<html>",
    );
    check_answer(Fault::raw("302 Found", &["Location: https://x/"], ""), 302, "Location: https://x/\r\n");
    check_answer(Fault::CutAfter(10), 200, "\r\n{\"kind\":\"E");
    check_answer(Fault::error_event(500, "InternalError"), 200, r#""type":"ERROR""#);
    check_answer(Fault::say(""), 200, "chunked\r\n\r\n0\r\n\r\n");
    check_answer(Fault::SilentBody, 200, "chunked\r\n\r\n");
    check_answer(Fault::Slow(Duration::from_millis(5)), 200, "EndpointSliceList");
}

#[test]
fn each_fault_without_an_answer_ends_as_named() {
    let fixture = ServedCluster::new();
    fixture.server.once(RequestFilter::ANYTHING, Fault::Silent);
    let mut client = fixture.client();
    client.ask(SLICES, "");
    assert!(client.is_silent());
    for fault in [Fault::Close, Fault::Reset] {
        fixture.server.once(RequestFilter::for_kind(Kind::Slices), fault);
        let mut client = fixture.client();
        client.ask(SLICES, "");
        assert!(client.is_closed());
    }
}

#[test]
fn events_can_come_twice_and_lines_in_halves() {
    let fixture = ServedCluster::new();
    fixture.server.once(RequestFilter::watch(Kind::Slices), Fault::Twice);
    let mut client = fixture.client();
    let from = fixture.cluster.version();
    client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}"));
    fixture.slice("a", "10.0.0.1");
    assert_eq!(client.chunk().unwrap().unwrap().lines().count(), 2);
    fixture.server.say(Kind::Slices, "{\"type\":\"MOD");
    assert_eq!(client.chunk().unwrap().unwrap(), "{\"type\":\"MOD");
    assert_eq!(fixture.server.watches(Kind::Slices), 1);
    fixture.server.reset_connections();
    assert!(client.is_closed());
}

#[test]
fn each_greeting_treats_connections_as_named() {
    let fixture = ServedCluster::new();
    for greeting in [Greeting::Close, Greeting::ClearText] {
        fixture.server.greet(greeting);
        let error = fixture.try_client().err().unwrap();
        assert!(!is_timeout(&error), "{greeting:?}: {error}");
    }
    fixture.server.greet(Greeting::Silent);
    let silent = Client::dial_within(SILENCE, &fixture.server, &fixture.authority.pem(), None);
    assert!(is_timeout(&silent.err().unwrap()));
    fixture.server.greet(Greeting::Serve);
    assert_eq!(fixture.get("/readyz").0, 200);
}

#[test]
fn a_stopped_server_refuses_and_comes_back_at_its_address() {
    let fixture = ServedCluster::new();
    let mut client = fixture.client();
    fixture.server.stop();
    assert!(client.is_closed());
    let refused = TcpStream::connect_timeout(&fixture.server.address(), TEST_TIMEOUT).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    fixture.server.start_again().unwrap();
    assert_eq!(fixture.get("/readyz").0, 200);
}

#[test]
fn dropped_packets_are_silence_until_they_arrive_again() {
    let fixture = ServedCluster::new();
    let mut client = fixture.client();
    fixture.server.drop_packets(true);
    client.ask("/readyz", "");
    assert!(client.is_silent());
    let lost = TcpStream::connect_timeout(&fixture.server.address(), SILENCE).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::TimedOut);
    fixture.server.drop_packets(false);
    assert_eq!(fixture.get("/readyz").0, 200);
}

#[track_caller]
fn check_certificate(names: &Names, expected: &str) {
    let fixture = ServedCluster::new();
    fixture.server.show(&fixture.authority.server(names).unwrap());
    let seen = fixture.try_client().err().unwrap().to_string();
    assert!(seen.contains(expected), "{names:?}: {seen}");
}

#[test]
fn a_client_refuses_each_wrong_certificate() {
    check_certificate(&Names::Other("somebody.example".to_owned()), "not valid for name");
    check_certificate(&Names::Address(IpAddr::from([127, 0, 0, 1])), "not valid for name");
    check_certificate(&Names::Expired, "expired");
    let fixture = ServedCluster::new();
    let stranger = Authority::new().unwrap();
    fixture.server.show(&stranger.server(&Names::Kubernetes).unwrap());
    assert!(fixture.try_client().err().unwrap().to_string().contains("BadSignature"));
}

#[test]
fn only_known_credentials_are_accepted() {
    let fixture = ServedCluster::new();
    fixture.server.accept_client(Some("sesame"), None);
    assert_eq!(fixture.get(SLICES).0, 401);
    let mut client = fixture.client();
    client.ask(SLICES, "Authorization: Bearer sesame\r\n");
    assert_eq!(client.status(), Some(200));
    let node = fixture.authority.client("system:node:a").unwrap();
    let mut client = Client::dial(&fixture.server, &fixture.authority.pem(), Some(&node)).unwrap();
    assert_eq!(client.get(SLICES).0, 401);
    fixture.server.accept_client(None, Some(&node.der));
    assert_eq!(client.get(SLICES).0, 200);
    assert_eq!(fixture.server.requests().last().unwrap().certificate.as_ref(), Some(&node.der));
    fixture.server.reject_all_clients();
    assert_eq!(client.get(SLICES).0, 401);
}

#[test]
fn two_servers_of_a_cluster_agree() {
    let fixture = ServedCluster::new();
    let other =
        Server::start(&fixture.cluster, &fixture.authority.server(&Names::Kubernetes).unwrap()).unwrap();
    fixture.slice("a", "10.0.0.1");
    let mut client = Client::dial(&other, &fixture.authority.pem(), None).unwrap();
    assert_eq!(client.get(SLICES), fixture.get(SLICES));
    assert_eq!(
        (other.request_count(RequestFilter::ANYTHING), fixture.server.request_count(RequestFilter::ANYTHING)),
        (1, 1)
    );
    other.forget_requests();
    assert_eq!(other.request_count(RequestFilter::ANYTHING), 0);
}

#[test]
fn an_object_without_a_name_or_known_kind_is_refused() {
    let cluster = Cluster::new("a");
    assert!(matches!(cluster.apply(json!({"kind": "Service"})), Err(FakeError::Object(_))));
    assert!(matches!(
        cluster.apply(json!({"kind": "Thing", "metadata": {"name": "a"}})),
        Err(FakeError::Object(_))
    ));
    assert!(matches!(cluster.delete(Kind::Slices, "default/a"), Err(FakeError::Missing(..))));
}
