//! A fake apiserver with this many services, and the daemon that follows it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Stopwatch, wait_until};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::fake::{Authority, Cluster, Kind, Names, Server, many};
use serde_json::{Value, json};

/// The number of services and of the endpoints of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) services: u32,
    pub(super) endpoints: u32,
}

/// The endpoints of each service in all measurements.
pub(super) const ENDPOINTS: u32 = 10;

/// The apiserver, and the bed of it and its daemon.
pub(super) struct Stage {
    pub(super) size: Size,
    pub(super) cluster: Cluster,
    server: Server,
    authority: Authority,
    pub(super) bed: Bed,
}

impl Stage {
    pub(super) fn new(size: Size) -> Self {
        let bed = Bed::new().unwrap();
        let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-00000000a77a");
        let authority = Authority::new().unwrap();
        let identity = authority.server(&Names::Kubernetes).unwrap();
        let server = bed.within(Location::NODE, || Server::start(&cluster, &identity).unwrap()).unwrap();
        let stage = Self { size, cluster, server, authority, bed };
        let services = (0..size.services).map(many::service);
        services.chain([bystander()]).for_each(|object| stage.apply(object));
        (0..size.services).for_each(|at| stage.write(at, 1));
        stage.apply(bystander_slice("192.0.2.1"));
        stage
    }

    pub(super) fn apply(&self, object: Value) {
        self.cluster.apply(object).unwrap();
    }

    /// Writes the slice of a service; another version has other backends.
    pub(super) fn write(&self, at: u32, version: u32) {
        let Size { services, endpoints } = self.size;
        let mut slice = many::slice(at, at + services * (version % 2), endpoints, version.into());
        slice["metadata"]["name"] = format!("web-{at}-1").into();
        self.apply(slice);
    }

    /// A daemon that is not started yet.
    pub(super) fn daemon(&self) -> Daemon<'_> {
        self.daemon_with("")
    }

    /// The same, with more keys of `[apiserver]`.
    pub(super) fn daemon_with(&self, keys: &str) -> Daemon<'_> {
        let daemon = Daemon::new(&self.bed, "").unwrap().started_as(std::env::current_exe().unwrap());
        let ca = daemon.folder().join("ca.pem");
        fs::write(&ca, self.authority.pem()).unwrap();
        let url = self.server.url();
        let more = format!(
            "[node]\nname = \"n1\"\nzone = \"z\"\n[apiserver]\nendpoints = [{url:?}]\nca_file = {ca:?}\ndiscover = []\n\
             tls_server_name = \"kubernetes.default.svc\"\n{keys}"
        );
        daemon.configure(&more).unwrap();
        daemon
    }

    /// Sends a GET over TCP and reads the answer; `first` gets the time of the body's first byte.
    pub(super) fn get(&self, path: &str, first: &mut Duration) -> Vec<u8> {
        let begun = Stopwatch::start();
        let connect = || TcpStream::connect("127.0.0.1:9890").unwrap();
        let mut stream = self.bed.within(Location::NODE, connect).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost:9890\r\nconnection: close\r\n\r\n").unwrap();
        let (mut buffer, mut answer, mut body) = (vec![0; 1 << 18], Vec::new(), None);
        loop {
            let count = stream.read(&mut buffer).unwrap();
            answer.extend_from_slice(&buffer[..count]);
            body = body.or_else(|| answer.windows(4).position(|it| it == b"\r\n\r\n"));
            if *first == Duration::ZERO && body.is_some_and(|head| answer.len() > head + 4) {
                *first = begun.read();
            }
            if count == 0 {
                let found = [&b"HTTP/1.1 200"[..], b"HTTP/1.1 404"].iter().any(|it| answer.starts_with(it));
                assert!(found, "{path}: {}", String::from_utf8_lossy(&answer[..answer.len().min(300)]));
                return answer;
            }
        }
    }

    pub(super) fn metrics(&self) -> String {
        String::from_utf8(self.get("/metrics", &mut Duration::default())).unwrap()
    }

    /// Compacts a change that no watch gets and that changes nothing.
    pub(super) fn forget(&self) {
        let kinds = [Kind::Services, Kind::Slices];
        kinds.into_iter().for_each(|kind| self.server.mute(kind, true));
        self.apply(bystander());
        self.cluster.compact();
        kinds.into_iter().for_each(|kind| self.server.mute(kind, false));
    }

    /// Stops the apiserver.
    pub(super) fn away(&self) {
        self.server.stop();
    }
}

/// Starts a daemon, and returns the time until it is ready.
pub(super) fn start(daemon: &mut Daemon<'_>) -> Duration {
    let begun = Stopwatch::start();
    daemon.launch().unwrap();
    wait_until("the daemon is ready", || {
        assert!(daemon.is_running(), "{}", daemon.logged());
        is_ready(daemon)
    });
    begun.read()
}

fn is_ready(daemon: &Daemon<'_>) -> bool {
    let Ok(mut stream) = UnixStream::connect(daemon.socket()) else { return false };
    let mut answer = String::new();
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let read = asked.and_then(|()| BufReader::new(stream).read_line(&mut answer));
    read.is_ok() && answer.starts_with("HTTP/1.1 200")
}

const BYSTANDER: &str = "bystander/web";

fn bystander() -> Value {
    let address = "10.95.0.1";
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "bystander", "name": "web"},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": [{"name": "", "protocol": "TCP", "port": 80}]},
    })
}

fn bystander_slice(backend: &str) -> Value {
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "bystander", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": [backend], "conditions": {"ready": true}, "nodeName": "n1"}],
    })
}

/// Receives each change of one service from the socket; by then it is in the maps and recorded.
pub(super) struct Bystander {
    told: BufReader<UnixStream>,
    changes: u32,
}

impl Bystander {
    pub(super) fn arrive(daemon: &Daemon<'_>) -> Self {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let request = format!("GET /watch?service={BYSTANDER} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut bystander = Self { told: BufReader::new(stream), changes: 1 };
        bystander.hear(": watching");
        bystander
    }

    /// The time from the write at the apiserver until the change arrives here.
    pub(super) fn change(&mut self, stage: &Stage) -> Duration {
        self.changes = self.changes % 250 + 1;
        let backend = format!("192.0.2.{}", self.changes);
        let object = bystander_slice(&backend);
        let begun = Stopwatch::start();
        stage.apply(object);
        self.hear(&format!("{backend}:8080"));
        begun.read()
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.told.read_line(&mut line).unwrap() > 0, "sent away before {word}");
        }
    }
}
