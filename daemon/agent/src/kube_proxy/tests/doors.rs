//! The ports themselves, over loopback sockets.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_core::facts::{NodeFacts, Timestamp};
use holdfast_core::snapshot::Snapshot;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::{PortThreads, limits};
use super::bed::{Answer, Rules, ask, balanced, free, slice};
use crate::readings::fixture;
use crate::readings::{ClosedPorts, Liveness, Readings};
use holdfast_config::{Config, KubeProxy, OuterAddresses};
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{pause, wait_until};

/// A daemon's ports, and the inputs of their responses.
struct Open {
    _ports: PortThreads,
    addresses: KubeProxy,
    snapshots: watch::Sender<Arc<Snapshot>>,
    closed: Arc<ClosedPorts>,
    config: watch::Sender<Arc<Config>>,
    // Dropping the runtime ends the follower.
    _runtime: tokio::runtime::Runtime,
}

impl Open {
    fn new(snapshot: Arc<Snapshot>) -> Self {
        let addresses = KubeProxy { health: Some(free("127.0.0.1")), metrics: Some(free("127.0.0.1")) };
        Self::at(addresses, snapshot, |_| ())
    }

    fn at(addresses: KubeProxy, snapshot: Arc<Snapshot>, change: impl FnOnce(&mut Readings)) -> Self {
        let (snapshots, seen) = watch::channel(snapshot);
        let mut readings = fixture::readings(seen);
        fixture::in_memory(&mut readings);
        readings.closed_ports = Arc::default();
        change(&mut readings);
        let config = Config { kube_proxy: addresses, ..Config::default() };
        let closed = Arc::clone(&readings.closed_ports);
        let (config, configured) = watch::channel(Arc::new(config));
        let (ports, follower) = PortThreads::start(configured, readings).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(follower.run());
        Self { _ports: ports, addresses, snapshots, closed, config, _runtime: runtime }
    }

    fn health(&self, path: &str) -> Answer {
        ask(self.addresses.health.unwrap(), path).unwrap()
    }

    fn metrics(&self, path: &str) -> Answer {
        ask(self.addresses.metrics.unwrap(), path).unwrap()
    }

    #[track_caller]
    fn until_healthy(&self) {
        let KubeProxy { health, metrics } = self.addresses;
        let is_good = |it, path| ask(it, path).is_ok_and(|answer| answer.status == "HTTP/1.1 200 OK");
        wait_until("healthy", || health.is_some_and(|it| is_good(it, "/healthz")));
        wait_until("open", || metrics.is_none_or(|it| is_good(it, "/healthz")));
    }

    /// Waits until the publisher has judged the current snapshot: it marks a node that leaves whatever else is wrong.
    fn wait_until_judged(&self) {
        let last = Arc::clone(&self.snapshots.borrow());
        let leaving = Arc::new(NodeFacts { is_leaving: true, ..(*last.node).clone() });
        let other = Arc::new(Snapshot { node: leaving, ..(*last).clone() });
        for (snapshot, is_eligible) in [(other, false), (last, true)] {
            self.snapshots.send_replace(snapshot);
            let answer = || ask(self.addresses.health.unwrap(), "/healthz");
            wait_until("judged", || answer().is_ok_and(|it| it.json()["nodeEligible"] == is_eligible));
        }
    }

    fn closed(&self) -> Vec<(String, String)> {
        let (closed, _) = self.closed.named_ports();
        closed.into_iter().map(|it| (it.address.to_string(), it.reason)).collect()
    }
}

/// A node that serves these objects.
fn serving(objects: &[Value]) -> (Rules, Arc<Snapshot>) {
    let mut rules = Rules::new(&["127.0.0.1"], objects);
    let snapshot = rules.snapshot();
    (rules, snapshot)
}

const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable";

#[test]
fn a_serving_node_is_healthy_and_a_leaving_one_gets_no_traffic() {
    let (_, snapshot) = serving(&[]);
    let open = Open::new(Arc::clone(&snapshot));
    open.until_healthy();
    let answer = open.health("/healthz");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!((&answer.json()["nodeEligible"], &answer.json()["healthy"]), (&json!(true), &json!(true)));
    let node = Arc::new(NodeFacts { is_leaving: true, ..(*snapshot.node).clone() });
    open.snapshots.send_replace(Arc::new(Snapshot { node, ..(*snapshot).clone() }));
    wait_until("told", || open.health("/healthz").status == UNAVAILABLE);
    assert_eq!(open.health("/livez").status, "HTTP/1.1 200 OK");
    assert_eq!(open.health("/livez").json().get("nodeEligible"), None);
    assert_eq!(open.health("/nothing").status, "HTTP/1.1 404 Not Found");
}

#[test]
fn a_node_with_unwritten_maps_or_a_hung_engine_is_unhealthy() {
    let unprogrammed = Snapshot { programmed: false, published: Timestamp(1), ..Snapshot::default() };
    let open = Open::new(Arc::new(unprogrammed));
    open.wait_until_judged();
    assert_eq!(
        (open.health("/healthz").status, open.health("/livez").status),
        (UNAVAILABLE.into(), UNAVAILABLE.into())
    );
    let (_, snapshot) = serving(&[]);
    open.snapshots.send_replace(Arc::clone(&snapshot));
    open.until_healthy();
    let hangs = Liveness::new(|| Some(Duration::from_secs(7)));
    let addresses = KubeProxy { health: Some(free("127.0.0.1")), metrics: None };
    let open = Open::at(addresses, snapshot, |readings| readings.liveness = hangs);
    open.wait_until_judged();
    assert_eq!(open.health("/livez").status, UNAVAILABLE);
}

/// A daemon with one Service, and the open health check port of that Service.
fn checked() -> (SocketAddr, Open) {
    let at = free("127.0.0.1");
    let (_, snapshot) = serving(&[balanced("web", at.port(), 1), slice("web", &["10.0.0.1@n1"])]);
    let open = Open::new(snapshot);
    open.until_healthy();
    wait_until("open", || ask(at, "/").is_ok());
    (at, open)
}

#[test]
fn several_checkers_at_once_are_all_answered() {
    let (at, _open) = checked();
    let together = 3 * limits::SERVICE_CONNECTIONS_MIN;
    let mut checkers: Vec<TcpStream> = (0..together).map(|_| TcpStream::connect(at).unwrap()).collect();
    checkers.iter_mut().for_each(|it| it.write_all(b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n").unwrap());
    for mut checker in checkers {
        checker.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut answer = [0; 15];
        checker.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }
}

#[test]
fn a_port_that_moves_from_one_address_to_all_of_them_stays_open() {
    let (at, open) = checked();
    open.config.send_modify(|config| {
        Arc::make_mut(config).node.node_port_addresses.outer = OuterAddresses::All;
    });
    wait_until("everywhere", || {
        assert_eq!(open.closed(), []);
        ask(SocketAddr::new([127, 0, 0, 2].into(), at.port()), "/").is_ok()
    });
}

#[test]
fn a_health_check_port_follows_its_service() {
    let port = free("127.0.0.1").port();
    let at = SocketAddr::new([127, 0, 0, 1].into(), port);
    let (mut rules, snapshot) =
        serving(&[balanced("web", port, 1), slice("web", &["10.0.0.1@n1", "10.0.0.2@n1"])]);
    let open = Open::new(snapshot);
    open.until_healthy();
    wait_until("open", || ask(at, "/whatever").is_ok_and(|answer| answer.status.ends_with("200 OK")));
    let answer = ask(at, "/").unwrap();
    let service = json!({"namespace": "default", "name": "web"});
    assert_eq!(answer.json(), json!({"service": service, "localEndpoints": 2, "serviceProxyHealthy": true}));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("x-load-balancing-endpoint-weight"), Some("2"));
    open.snapshots.send_replace(rules.apply(&slice("web", &["10.0.0.1@n1 ST", "10.0.0.9@n2"])));
    wait_until("drained", || ask(at, "/").is_ok_and(|answer| answer.status == UNAVAILABLE));
    assert_eq!(ask(at, "/").unwrap().header("x-load-balancing-endpoint-weight"), Some("0"));
    let mut changed = balanced("web", port, 1);
    changed["spec"]["externalTrafficPolicy"] = json!("Cluster");
    open.snapshots.send_replace(rules.apply(&changed));
    wait_until("closed", || ask(at, "/").is_err());
}

#[test]
fn a_port_in_use_is_reported_retried_and_stops_nothing() {
    let (taken, check) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = check.local_addr().unwrap().port();
    let (_, snapshot) = serving(&[balanced("web", port, 1), slice("web", &["10.0.0.1@n1"])]);
    let addresses = KubeProxy { health: Some(free("127.0.0.1")), metrics: taken.local_addr().ok() };
    let open = Open::at(addresses, snapshot, |_| ());
    wait_until("healthy", || {
        ask(addresses.health.unwrap(), "/healthz").is_ok_and(|it| it.json()["healthy"] == true)
    });
    let why = "another process listens there (`ss -ltnp` names it)";
    let both =
        [addresses.metrics.unwrap(), check.local_addr().unwrap()].map(|it| (it.to_string(), why.to_owned()));
    wait_until("both are told", || open.closed() == both);
    drop((taken, check));
    wait_until("both are open", || open.closed().is_empty());
    assert_eq!(open.metrics("/proxyMode").body, "ebpf");
    assert_eq!(ask(SocketAddr::new([127, 0, 0, 1].into(), port), "/").unwrap().status, "HTTP/1.1 200 OK");
}

/// Idle clients, and one that sends half a request, a hundred times as many as fit.
#[test]
fn clients_that_fill_one_port_block_no_other_client() {
    let (at, open) = checked();
    for (filled, places) in [
        (open.addresses.health.unwrap(), limits::CONNECTIONS_MAX),
        (open.addresses.metrics.unwrap(), limits::CONNECTIONS_MAX),
        (at, limits::CONNECTIONS_MAX),
    ] {
        let mut idle: Vec<TcpStream> = (0..3 * places).map(|_| TcpStream::connect(filled).unwrap()).collect();
        idle.iter_mut().for_each(|stream| stream.write_all(b"GET /healthz HT").unwrap());
        assert_eq!(open.health("/healthz").status, "HTTP/1.1 200 OK");
        assert_eq!(open.metrics("/healthz").body, "ok");
        assert_eq!(ask(at, "/").unwrap().status, "HTTP/1.1 200 OK");
        // The port has evicted the client that was idle for longest.
        let first = &mut idle[0];
        first.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        assert!(matches!(first.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
}

/// Connects repeatedly without sending anything, some two thousand times per second, until it is dropped.
struct Idlers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Idlers {
    /// Returns when there are more than a port and its queue can hold.
    fn at(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, many) = (Arc::clone(&stop), Arc::new(AtomicBool::new(false)));
        let is_many = Arc::clone(&many);
        let thread = std::thread::spawn(move || {
            let mut idle = VecDeque::new();
            while !told.load(Ordering::Relaxed) {
                // A connect to a full queue takes long.
                idle.extend(TcpStream::connect_timeout(&address, Duration::from_millis(2)).ok());
                is_many.fetch_or(idle.len() > 180, Ordering::Relaxed);
                idle.drain(..idle.len().saturating_sub(600));
                pause(Duration::from_micros(400));
            }
        });
        wait_until("many are idle", || many.load(Ordering::Relaxed));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Idlers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A balancer's check: the third failure takes the node out.
fn is_answered_in_three_tries(address: SocketAddr, path: &str) -> bool {
    (0..3).any(|_| {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&address, TEST_TIMEOUT)?;
            stream.set_read_timeout(Some(TEST_TIMEOUT))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: n1\r\n\r\n")?;
            let mut answer = [0; 15];
            stream.read_exact(&mut answer).map(|()| answer)
        };
        ask().is_ok_and(|answer: [u8; 15]| &answer == b"HTTP/1.1 200 OK")
    })
}

#[test]
fn checks_are_answered_while_idle_clients_keep_coming() {
    let (at, open) = checked();
    let health = open.addresses.health.unwrap();
    for (address, path) in [(at, "/"), (health, "/healthz")] {
        let _idlers = Idlers::at(address);
        (0..20).for_each(|_| assert!(is_answered_in_three_tries(address, path), "{address}{path}"));
    }
}

#[test]
fn the_metrics_have_kube_proxys_names_and_true_values() {
    let mut service = balanced("web", 30_000, 1);
    service["spec"]["internalTrafficPolicy"] = json!("Local");
    let (_, snapshot) = serving(&[service, slice("web", &["10.0.0.1@n2"])]);
    let addresses = KubeProxy { health: Some(free("127.0.0.1")), metrics: Some(free("127.0.0.1")) };
    let open = Open::at(addresses, snapshot, |readings| {
        readings.watches = fixture::readings(readings.snapshots.clone()).watches;
        readings.liveness.steps.durations.add(Duration::from_millis(3));
        let (_, four) = readings.liveness.steps.programming_latency.by_family().next().unwrap();
        [0, 1, 200, 70_000].into_iter().for_each(|ms| four.add(Duration::from_millis(ms)));
    });
    open.until_healthy();
    let answer = open.metrics("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.002\"} 0",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.004\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"+Inf\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_sum 0.003",
        "kubeproxy_sync_proxy_rules_duration_seconds_count 1",
        "# HELP kubeproxy_network_programming_duration_seconds In Cluster Network Programming Latency in seconds",
        "# TYPE kubeproxy_network_programming_duration_seconds histogram",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0\"} 1",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.001\"} 2",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.128\"} 2",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"} 3",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"70\"} 4",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"+Inf\"} 4",
        "kubeproxy_network_programming_duration_seconds_sum{ip_family=\"IPv4\"} 70.201",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 4",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"} 0",
        "kubeproxy_sync_proxy_rules_service_changes_total 40",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"} 2",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv4\"} 2",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv6\"} 0",
        "kubeproxy_proxy_livez_total{code=\"200\"} 0",
    ] {
        assert!(answer.body.lines().any(|it| it == line), "{line}: {}", answer.body);
    }
    assert!(answer.body.contains("kubeproxy_proxy_healthz_total{code=\"200\"}"));
    let names = answer.body.lines().filter(|line| !line.starts_with('#'));
    names.for_each(|line| assert!(line.starts_with("kubeproxy_") || line.starts_with("process_"), "{line}"));
}

#[test]
fn the_proxy_mode_is_plain_text() {
    let open = Open::new(serving(&[]).1);
    open.until_healthy();
    let answer = open.metrics("/proxyMode");
    assert_eq!((&*answer.status, &*answer.body), ("HTTP/1.1 200 OK", "ebpf"));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(open.metrics("/debug/pprof").status, "HTTP/1.1 404 Not Found");
}
