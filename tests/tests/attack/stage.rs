//! The setup: a bed with a daemon, a bystander with timed changes, an apiserver with a journal, and an unprivileged
//! user.
//!
//! Invariant: the bystander's service shares nothing with the attacked ones, so only the attack can delay it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use holdfast_fixtures::clock::measure;
use holdfast_tests::bed::crowd::{ApiClients, Question};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Errand, Location};
use holdfast_tests::fake::{Authority, Cluster, Names, Server};
use serde_json::{Value, json};

/// The unprivileged user's id on Linux.
pub(crate) const NOBODY: u32 = 65_534;

/// The API's TCP address, open to every process of the node.
pub(crate) const TCP: &str = "127.0.0.1:9890";

/// How many times longer than before the attack a bystander's change may take. It takes milliseconds, and up to half a
/// second if maps grow; this leaves room for ten times that. A change that waited for an attack would take as long as
/// the attack.
const DELAY_FACTOR_MAX: u32 = 500;

/// How many changes are timed before an attack.
const QUIET_CHANGES: usize = 10;

/// How many changes are timed during an attack. The slowest does not count: when maps grow, it waits some hundred
/// milliseconds while the kernel verifies the programs again.
const CHANGES: usize = 100;

/// The timeout of any wait in a test.
pub(crate) use holdfast_fixtures::TEST_TIMEOUT as SOON;

/// Starts unprivileged clients that request this path over TCP in a loop.
pub(crate) fn nobody_asks(bed: &Bed, clients: usize, path: &str) -> ApiClients {
    let question = Question { uid: NOBODY, clients, door: TCP, method: "GET", path };
    bed.crowd(Location::NODE, &question).unwrap()
}

/// A service with one port and one backend.
pub(crate) fn service(name: &str, address: &str, backend: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{type: ClusterIP, clusterIP: {address}, ports: [{{port: 80}}]}}\n---\n{}",
        slice(name, "port: 8080", backend)
    )
}

/// The only slice of such a service, with this port.
pub(crate) fn slice(service: &str, port: &str, backend: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {service}-1, namespace: default, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv4\nports: [{{{port}}}]\nendpoints: [{{addresses: [{backend}]}}]\n"
    )
}

/// The reply to an unprivileged process that dials an address: the server's name, or an errno.
pub(crate) fn nobody_dials(bed: &Bed, address: &str) -> String {
    bed.errand(Location::NODE, NOBODY, Errand::Dial, address.parse().unwrap()).unwrap()
}

/// The first row of `frontends` with this address.
pub(crate) fn row(daemon: &Daemon<'_>, address: &str) -> Value {
    daemon.ask(&["frontends", "--address", address]).unwrap()["frontends"][0].clone()
}

/// A tenant on the same node that takes no part in the attack: it changes its backend, and waits until the maps and
/// the record have the change.
pub(crate) struct Bystander<'a> {
    daemon: &'a Daemon<'a>,
    told: BufReader<UnixStream>,
    changes: u8,
    /// The usual time of a change, before an attack.
    pub(crate) quiet: Duration,
}

impl<'a> Bystander<'a> {
    pub(crate) fn arrive(daemon: &'a Daemon<'a>) -> Self {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let request = "GET /watch?service=default/bystander HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut bystander = Self { daemon, told: BufReader::new(stream), changes: 0, quiet: Duration::ZERO };
        bystander.hear(": watching");
        bystander.change();
        bystander.quiet = bystander.measure_changes(QUIET_CHANGES)[QUIET_CHANGES / 2];
        bystander
    }

    /// Changes its backend, and waits for the record of the new one.
    pub(crate) fn change(&mut self) {
        self.changes = self.changes % 250 + 1;
        let backend = format!("192.0.2.{}", self.changes);
        self.daemon.write_manifest("bystander.yaml", &service("bystander", "10.96.99.1", &backend)).unwrap();
        self.hear(&format!("{backend}:8080"));
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            let length = self.told.read_line(&mut line).unwrap_or_else(|error| {
                panic!("the bystander waits for {word} in vain: {error}; {}", self.daemon.logged())
            });
            assert!(length > 0, "the bystander was sent away: {}", self.daemon.logged());
        }
    }

    /// Checks that the attack that goes on delays no change but the slowest hundredth.
    #[track_caller]
    pub(crate) fn check_undelayed(&mut self) {
        let times = self.measure_changes(CHANGES);
        let [median, p99] = [CHANGES / 2, (CHANGES * 99).div_ceil(100) - 1].map(|rank| times[rank]);
        println!("a bystander's change: quiet {:?}, now median {median:?}, p99 {p99:?}", self.quiet);
        assert!(p99 <= self.quiet * DELAY_FACTOR_MAX, "{p99:?} instead of {:?}", self.quiet);
    }

    /// The times of so many changes, in order of length.
    fn measure_changes(&mut self, count: usize) -> Vec<Duration> {
        let mut times: Vec<_> = (0..count).map(|_| measure(|| self.change()).0).collect();
        times.sort();
        times
    }
}

/// An apiserver of a small cluster in the node's network.
pub(crate) struct Apiserver {
    pub(crate) cluster: Cluster,
    pub(crate) server: Server,
    authority: Authority,
}

impl Apiserver {
    pub(crate) fn start(bed: &Bed) -> Self {
        let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-00000000a77a");
        let authority = Authority::new().unwrap();
        let identity = authority.server(&Names::Kubernetes).unwrap();
        let server = bed.within(Location::NODE, || Server::start(&cluster, &identity).unwrap()).unwrap();
        let it = Self { cluster, server, authority };
        it.serve("10.0.0.1");
        it
    }

    /// Writes `default/web` with this backend.
    fn serve(&self, backend: &str) {
        let service = json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "default", "name": "web"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"port": 80}]},
        });
        self.cluster.apply(service).unwrap();
        self.cluster.apply(Self::slice(backend)).unwrap();
    }

    pub(crate) fn slice(backend: &str) -> Value {
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4", "ports": [{"port": 8080}],
            "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}],
        })
    }

    /// The configuration of a daemon that uses it.
    pub(crate) fn configure(&self, daemon: &Daemon<'_>) -> String {
        let ca = daemon.folder().join("ca.pem");
        std::fs::write(&ca, self.authority.pem()).unwrap();
        format!(
            "[node]\nzone = \"z\"\n[apiserver]\nendpoints = [\"{}\"]\nca_file = {:?}\ndiscover = []\ntls_server_name = \"kubernetes.default.svc\"\n",
            self.server.url(),
            ca.display().to_string()
        )
    }
}
