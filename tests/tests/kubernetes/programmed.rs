//! The latency of endpoint changes in kube-proxy's metric, from the trigger time in the slice, served at kube-proxy's
//! port.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::Stopwatch;
use holdfast_tests::fake::Kind;
use serde_json::{Value, json};

use crate::node::{Node, Setup, backend, ms, slice_object, web};

const METRIC: &str = "kubeproxy_network_programming_duration_seconds";

/// The slice of a service, with a trigger time.
fn slice_since(number: u8, backends: &[IpAddr], since: &str) -> Value {
    let mut object = slice_object(&web(number), backends);
    object["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": since});
    object
}

fn now() -> String {
    holdfast_host::clock::now().to_string()
}

/// A node that serves two services and kube-proxy's metrics.
struct MetricNode {
    node: Node,
    port: SocketAddr,
    started: Stopwatch,
}

impl MetricNode {
    /// The services have their backends before the node starts.
    fn new() -> Self {
        let setup = Setup::new(1);
        setup.services(2);
        for number in 0..2 {
            setup.cluster.apply(slice_since(number, &[backend(number)], &now())).unwrap();
        }
        let started = Stopwatch::start();
        let mut node = Node::start(setup);
        node.wait_until_synced();
        let port = node.answer_at_the_port_for_metrics();
        node.wait("the port is open", |_| TcpStream::connect(port).is_ok());
        Self { node, port, started }
    }

    /// The value of this name in the metric for IPv4.
    fn number(&self, name: &str) -> Option<f64> {
        let start = format!("{METRIC}_{name}{{ip_family=\"IPv4\"");
        let text = self.ask().ok()?;
        let line = text.lines().rfind(|line| line.starts_with(&start))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    fn ask(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.port)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: prometheus\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    }

    /// Checks that this many changes were counted, and that none took longer than the node has run.
    #[track_caller]
    fn check(&self, counted: f64) {
        let most = self.started.read().as_secs_f64() * counted;
        let [count, all, sum] = ["count", "bucket", "sum"].map(|name| self.number(name));
        assert_eq!((count, all), (Some(counted), Some(counted)), "{:?}", self.ask());
        assert!(sum.is_some_and(|sum| (0.0..=most).contains(&sum)), "{sum:?}, {most}");
    }

    /// Applies a slice of a service, and waits until these backends are served.
    #[track_caller]
    fn apply(&mut self, number: u8, object: Value, backends: &[IpAddr]) {
        self.node.cluster().apply(object).unwrap();
        self.node.wait("served", |node| node.serves(number, backends));
    }
}

#[test]
fn changes_are_counted_and_initial_state_is_not() {
    let mut asked = MetricNode::new();
    asked.check(0.0);
    for (counted, last) in (1..=3).zip([7, 8, 9]) {
        let object = slice_since(0, &[backend(last)], &now());
        asked.apply(0, object, &[backend(last)]);
        asked.check(f64::from(counted));
    }
}

#[test]
fn an_old_future_or_invalid_trigger_time_changes_no_number() {
    let mut asked = MetricNode::new();
    for (since, last) in [("0001-01-01T00:00:00Z", 7), ("soon", 8), ("2020-01-08T11:11:55Z", 9)] {
        asked.apply(0, slice_since(0, &[backend(last)], since), &[backend(last)]);
        asked.check(0.0);
    }
    asked.apply(0, slice_since(0, &[backend(7)], "9999-12-31T23:59:59.999999999Z"), &[backend(7)]);
    asked.check(1.0);
    assert_eq!(asked.number("sum"), Some(0.0), "what lies ahead takes no time");
}

#[test]
fn deletions_and_held_backends_are_not_counted() {
    let mut asked = MetricNode::new();
    asked.node.cluster().apply(slice_since(0, &[], &now())).unwrap();
    asked.node.wait("held", |node| !node.snapshots.borrow().held.is_empty());
    asked.check(0.0);
    assert!(asked.node.serves(0, &[backend(0)]), "its last backend stays");
    asked.apply(0, slice_since(0, &[backend(7)], &now()), &[backend(7)]);
    asked.check(1.0);
    asked.node.hold_nothing(1);
    asked.node.cluster().delete(Kind::Slices, "default/web-1-1").unwrap();
    asked.node.wait("gone", |node| node.serves(1, &[]));
    asked.check(1.0);
}

#[test]
fn a_change_found_by_a_list_is_counted_with_its_delay() {
    let mut asked = MetricNode::new();
    asked.node.server().stop();
    asked.node.cluster().apply(slice_since(0, &[backend(7)], &now())).unwrap();
    asked.node.live(ms(300));
    asked.node.cluster().compact();
    asked.node.server().start_again().unwrap();
    asked.node.wait("listed", |node| node.serves(0, &[backend(7)]));
    asked.check(1.0);
    assert!(asked.number("sum").is_some_and(|sum| sum > 0.25), "{:?}", asked.number("sum"));
}
