//! An operator's first steps in an outage: look, and find the cause.

use crate::browser::{BOTH, Browser};
use crate::live::service;
use crate::node::Node;

const KUBERNETES: &str = "default/kubernetes";
const INTRANET: &str = "default/kubernetes-intranet";

#[test]
fn one_click_from_the_first_screen_shows_why_a_service_refuses() {
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until_text("#alive", "live");
        browser.click("a[href='#/service/demo/empty']");
        browser.until_text(
            ".sentence",
            "refuses every connection (ECONNREFUSED), because this daemon has seen no usable endpoint of it yet",
        );
        browser.until_text(".step.nobody", "It is served with the first endpoint that is ready.");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn two_clicks_from_make_run_show_why_a_service_refuses() {
    let told = include_str!("../../../scripts/run.sh");
    assert!(told.contains("http://localhost:$port/"), "make run does not say where the page is");
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url("").replace("#/", ""));
        browser.until_text("#alive", "live");
        browser.click("a[href='#/frontends?verdict=refusing']");
        browser.until_text("[role=status]", "1 of 8 frontends");
        browser.click(".window tbody th a");
        browser.until_text(".sentence", "seen no usable endpoint of it yet");
        assert!(browser.text("h2").contains("demo/empty"), "{kind:?}");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn the_first_screen_shows_the_nodes_state() {
    let node = Node::demo();
    let unready = "endpoints: [{addresses: [10.1.0.1], conditions: {ready: false}}]";
    node.write("shop.yaml", &service(&[]).replace("endpoints: []", unready));
    node.until_rows(9);
    let mut browser = Browser::start(BOTH[0]);
    browser.size(1_000, 940);
    browser.open(&node.url(""));
    browser.until_text("#health", "clients of 1 service fail");
    browser.until_text("main", "9 frontends");
    browser.until_text("main table", "refusing (no-endpoints)");
    browser.picture("now");
    browser.click("a[href='#/frontends?verdict=refusing']");
    browser.until_text("[role=status]", "2 of 9 frontends");
    assert_eq!(browser.console(), [""; 0]);
}

/// An accidentally emptied slice of the Service whose name only begins like the apiserver's.
const EMPTIED: &str = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kubernetes-intranet-qxgk4
  namespace: default
  labels: {kubernetes.io/service-name: kubernetes-intranet}
  managedFields: [{manager: cleanup-job, operation: Update, time: '2026-01-08T11:11:55Z'}]
addressType: IPv4
ports: [{name: https, port: 60002}]
endpoints: []
";

#[test]
fn the_incident_shows_the_service_the_time_and_the_writer() {
    let node = Node::demo();
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url(&format!("time?services={KUBERNETES},{INTRANET}")));
    browser.until(&strip_ends(INTRANET, "serving"));
    node.write("incident.yaml", &emptied());
    browser.until(&strip_ends(INTRANET, "held"));
    assert_eq!(browser.value(&strip_ends(KUBERNETES, "serving")), true, "the other one is as it was");
    browser.click(&format!("g.part[aria-label^='{INTRANET}: held']"));
    browser.until_text(".strips + div", "written by cleanup-job (Update)");
    browser.size(1_000, 720);
    browser.value("(scrollTo(0, 0), 1)");
    browser.picture("incident");
    assert_eq!(browser.console(), [""; 0]);
}

/// Whether the last part of a service's timeline shows this verdict.
fn strip_ends(service: &str, verdict: &str) -> String {
    format!(
        "(all => all.length > 0 && all.at(-1).getAttribute('aria-label').startsWith({:?}))\
         ([...document.querySelectorAll(\"g.part[aria-label^='{service}: ']\")])",
        format!("{service}: {verdict}")
    )
}

/// The demo's file with that slice in place of its own.
fn emptied() -> String {
    let text = include_str!("../../../examples/demo/manifests/incident.yaml");
    let object = |object| if str::contains(object, "kubernetes-intranet-qxgk4") { EMPTIED } else { object };
    text.split("\n---\n").map(object).collect::<Vec<_>>().join("\n---\n")
}

#[test]
fn ten_thousand_services_are_filtered_while_typing() {
    let node = Node::with_services(10_000);
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url("frontends"));
    browser.until_text("[role=status]", "10,000 of 10,000 frontends");
    let rows = "document.querySelectorAll('.window tbody tr').length";
    assert!(browser.value(rows).as_u64().unwrap() < 100, "only what is in sight");
    browser.click("#words");
    browser.keys("shop-9871");
    browser.until_text("[role=status]", "1 of 10,000 frontends");
    browser.until_text(".window tbody th", "10.100.39.122:80/TCP");
    browser.until("location.hash.includes('q=shop-9871')");
    let painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime";
    println!("first paint with 10,000 services: {} ms", browser.value(painted));
    assert_eq!(browser.console(), [""; 0]);
}
