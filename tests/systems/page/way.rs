//! The path of a client: which backends may serve it, with which share, and why others do not.

use std::time::Duration;

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Location, finish};
use serde_json::Value;

use crate::browser::{BOTH, Browser};
use crate::node::Node;
use crate::tunnel::Tunnel;

/// Two backends in this node's zone, one in another, and one that is terminating and serving. Outside clients reach
/// only this node's own backend.
const ZONES: &str = "apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.20
  trafficDistribution: PreferSameZone
  externalTrafficPolicy: Local
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-x7k2p, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], nodeName: node-1, zone: zone-a, hints: {forZones: [{name: zone-a}]}}
- {addresses: [10.1.1.1], nodeName: node-2, zone: zone-a, hints: {forZones: [{name: zone-a}]}}
- {addresses: [10.1.2.1], nodeName: node-3, zone: zone-b, hints: {forZones: [{name: zone-b}]}}
- addresses: [10.1.1.2]
  nodeName: node-2
  zone: zone-a
  conditions: {ready: false, serving: true, terminating: true}
";

/// No backend is ready: the terminating ones get the traffic.
const ENDING: &str = "- addresses: [10.1.3.1]
  nodeName: node-1
  zone: zone-a
  conditions: {ready: false, serving: true, terminating: true}
- addresses: [10.1.3.2]
  nodeName: node-2
  zone: zone-b
  conditions: {ready: false, serving: true, terminating: true}
- addresses: [10.1.3.3]
  nodeName: node-2
  zone: zone-b
  conditions: {ready: false, serving: true, terminating: true}
";

/// The backends at the end of a path, each with its details.
fn ends(browser: &mut Browser, way: usize) -> Vec<String> {
    let ends = format!(
        "[...document.querySelectorAll('.ways > li:nth-of-type({way}) .backends li')].map(it => it.innerText)"
    );
    browser.value(&ends).as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

fn share(end: &str) -> f64 {
    end.split_once(' ').unwrap().1.split_once(" %").unwrap().0.parse().unwrap()
}

#[track_caller]
fn are_all(ends: &[String]) {
    let sum: f64 = ends.iter().map(|end| share(end)).sum();
    // Each share has one decimal.
    assert!((sum - 100.0).abs() <= 0.05 * ends.len() as f64 + 1e-9, "{sum} % of {ends:?}");
}

#[test]
fn the_path_shows_zones_shares_and_terminating_backends() {
    let node = Node::start(&[("cart.yaml", ZONES)]);
    let mut browser = Browser::start(BOTH[0]);
    browser.size(1_100, 660);
    browser.open(&node.url("service/shop/cart"));
    browser.until_text("#alive", "live");
    browser.until("document.querySelectorAll('.ways > li').length === 3");
    let of_zone =
        ["10.1.0.1:8080 50.0 %, active, node-1, zone-a", "10.1.1.1:8080 50.0 %, active, node-2, zone-a"];
    let own = ends(&mut browser, 1);
    assert_eq!(own, of_zone);
    are_all(&own);
    browser.until_text(".ways > li:nth-of-type(1) .list", "1 not used: zone");
    browser.until_text(".ways > li:nth-of-type(1) .list", "1 not used: terminating");
    assert!(browser.text(".ways > li:nth-of-type(3) .client").contains("outside"));
    assert_eq!(ends(&mut browser, 3), ["10.1.0.1:8080 100.0 %, active, node-1, zone-a"]);
    browser.picture("way");
    let (head, _) = ZONES.split_once("- {addresses: [10.1.0.1]").unwrap();
    node.write("cart.yaml", &format!("{head}{ENDING}"));
    browser.until_text(".ways > li:nth-of-type(1)", "10.1.3.3:8080");
    let ending = ends(&mut browser, 1);
    assert!(ending.len() == 3 && ending.iter().all(|end| end.contains(" %, draining, ")), "{ending:?}");
    are_all(&ending);
    assert_eq!(browser.console(), [""; 0]);
}

/// A backend on another node, whose replies return only if the node masquerades the client.
const OUTSIDE: &str = "apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.20
  ports: [{port: 80}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.50}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-x7k2p, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.1.10], nodeName: n1}
- {addresses: [10.244.1.11], nodeName: n1}
- {addresses: [10.244.9.10], nodeName: n2}
";

#[test]
fn an_outside_packet_is_explained_with_device_and_seen_source() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut daemon = Daemon::new(&bed, "[node]\nname = \"n1\"\n").unwrap();
    daemon.write_manifest("cart.yaml", OUTSIDE).unwrap();
    daemon.start().unwrap();
    let said = |daemon: &Daemon<'_>| daemon.ask(&["explain", "203.0.113.50:80", "--from", "198.18.0.9"]);
    daemon
        .wait_until(|daemon| {
            Ok(said(daemon)?["packet"]["backends"].as_array().is_some_and(|it| it.len() == 3))
        })
        .unwrap();
    let packet = said(&daemon).unwrap()["packet"].take();
    let tunnel = Tunnel::to(&daemon.socket());
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&tunnel.url("service/shop/cart"));
    browser.until_text("#alive", "live");
    browser.click("#from");
    browser.keys("198.18.0.9");
    browser.value("(document.querySelector('#to').value = '203.0.113.50:80/TCP', 1)");
    browser.keys("\u{e007}");
    browser.until("!!document.querySelector('.packet')");
    let steps = browser.text(".packet");
    for step in packet["steps"].as_array().unwrap() {
        assert!(steps.contains(step["says"].as_str().unwrap()), "{step} is not in {steps}");
    }
    assert!(steps.contains("device: "), "{steps}");
    let rows = browser.value(
        "[...document.querySelectorAll(\"[aria-label='Possible backends'] tbody tr\")].map(row => \
         [...row.cells].map(cell => cell.innerText))",
    );
    let rows = rows.as_array().unwrap();
    let seen = |row: &Value| row[2].as_str().unwrap().to_owned();
    let share = |row: &Value| row[1].as_str().unwrap().trim_end_matches(" %").parse::<f64>().unwrap();
    assert!((rows.iter().map(share).sum::<f64>() - 100.0).abs() <= 0.2, "{rows:?}");
    let shares = packet["backends"].as_array().unwrap().iter().map(|it| it["share"].as_f64().unwrap());
    assert!((shares.sum::<f64>() - 1.0).abs() < 1e-6, "{packet}");
    let told: Vec<&str> =
        packet["backends"].as_array().unwrap().iter().map(|it| it["seen_as"].as_str().unwrap()).collect();
    assert_eq!(rows.iter().map(seen).collect::<Vec<_>>(), told);
    assert!(told.iter().any(|it| *it != told[0]), "one sees the client, another one the node: {told:?}");
    browser.value("(location.hash = '#/service/shop/cart?from=nobody&to=203.0.113.50:80', 1)");
    browser.until_text("main .bad", "nobody");
    assert!(!browser.text(".ways").is_empty(), "the rest of it stays");
}

/// One client of a port with two frontends.
#[test]
fn the_tries_of_a_port_are_shown_once_for_all_of_its_frontends() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut daemon = Daemon::new(&bed, "[node]\nname = \"n1\"\n").unwrap();
    daemon.write_manifest("cart.yaml", OUTSIDE).unwrap();
    daemon.start().unwrap();
    let mut dial = bed.command(Location::NODE, "bash").unwrap();
    // The backend does not answer; that the client got one is what counts.
    dial.args(["-c", "exec 3<>/dev/tcp/10.96.0.20/80"]);
    let _ = finish(dial, Duration::from_secs(2));
    let counted = |daemon: &Daemon<'_>| {
        let told = daemon.ask(&["explain", "shop/cart"])?;
        let rows = told["services"][0]["frontends"].as_array().cloned().unwrap_or_default();
        Ok(rows.len() == 2 && rows.iter().all(|row| row["applied"]["clients"]["connects"] == 1))
    };
    daemon.wait_until(counted).unwrap();
    let tunnel = Tunnel::to(&daemon.socket());
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&tunnel.url("service/shop/cart"));
        browser.until_text("[aria-label='Tries of clients']", "10.96.0.20:80/TCP");
        let cells = browser.value(
            "[...document.querySelectorAll(\"[aria-label='Tries of clients'] tbody tr\")].map(row => \
             [...row.cells].map(cell => cell.innerText))",
        );
        let both = "10.96.0.20:80/TCP\n203.0.113.50:80/TCP";
        assert_eq!(cells, serde_json::json!([["TCP IPv4", both, "1", "0", "0"]]), "{kind:?}");
        browser.until_text("main small", "3 dropped may be one client");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}
