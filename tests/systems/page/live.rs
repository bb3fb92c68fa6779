//! The page follows changes, and reports when it cannot.

use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause};

use crate::browser::{BOTH, Browser};
use crate::node::Node;

pub(crate) fn service(backends: &[&str]) -> String {
    let endpoints: Vec<String> =
        backends.iter().map(|backend| format!("{{addresses: [{backend}]}}")).collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{}]\n",
        endpoints.join(", ")
    )
}

#[test]
fn a_change_appears_on_the_page_without_a_request() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for (kind, more) in BOTH.into_iter().zip(["10.1.0.2", "10.1.0.3"]) {
        node.write("web.yaml", &service(&["10.1.0.1"]));
        let mut browser = Browser::start(kind);
        browser.open(&node.url("frontends"));
        browser.until_text("#alive", "live");
        browser.until_text(".window tbody td:nth-of-type(4)", "1");
        node.write("web.yaml", &service(&["10.1.0.1", more]));
        browser.until_text(".window tbody td:nth-of-type(4)", "2");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn a_stopped_daemon_is_reported_and_missed_changes_are_filled_in() {
    let mut node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for kind in BOTH {
        node.write("web.yaml", &service(&["10.1.0.1"]));
        let mut browser = Browser::start(kind);
        browser.open(&node.url("frontends"));
        browser.until_text("#alive", "live");
        node.stop();
        browser.until_text("#alive", "the daemon has not answered for");
        browser.until_text("#health", "not known: the daemon does not answer");
        browser.until("document.querySelector('#health').className === 'unknown'");
        browser.until("document.body.classList.contains('old')");
        browser.until_text(".window tbody th", "10.96.0.10:80/TCP");
        node.write("web.yaml", &service(&["10.1.0.1", "10.1.0.2", "10.1.0.3"]));
        node.run();
        browser.until_text("#alive", "live");
        browser.until_text(".window tbody td:nth-of-type(4)", "3");
        browser.until("!document.body.classList.contains('old')");
        browser.until_text("#health", "no problem");
    }
}

/// A request without an answer: the page claims nothing that it has not received.
#[test]
fn a_page_without_data_yet_claims_neither_none_nor_nothing() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for (silent, view, says) in [
        ("/frontends", "", "The services of this node are not known yet."),
        ("/frontends", "frontends", "Asking for the frontends"),
        ("/datapath", "", "The fill of the tables is not known yet."),
    ] {
        let mut browser = Browser::start(BOTH[0]);
        browser.first(&format!(
            "() => {{ const real = window.fetch; window.fetch = (url, options) => \
             String(url).startsWith('{silent}') ? new Promise(() => {{}}) : real(url, options); }}"
        ));
        browser.open(&node.url(view));
        browser.until_text("main", says);
        for claim in ["0 frontends", "none.", "in memory only"] {
            let claims =
                browser.value(&format!("document.querySelector('main').textContent.includes({claim:?})"));
            assert_eq!((claims, claim), (false.into(), claim), "{silent} at {view:?}");
        }
    }
}

#[test]
fn unreadable_events_are_not_shown_as_none() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url("events/shop/web"));
    browser.until_text("main .bad", "Events could not be read: ");
    assert_eq!(browser.value("document.querySelector('main').textContent.includes('none')"), false);
}

/// How many requests the page has sent to a path.
fn asked(path: &str) -> String {
    format!(
        "performance.getEntriesByType('resource').filter(it => new URL(it.name).pathname === {path:?}).length"
    )
}

#[test]
fn a_view_sends_at_most_one_request_a_second() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url("time?services=shop/web"));
    browser.until("!!document.querySelector('g.part')");
    let before = browser.value(&asked("/history")).as_u64().unwrap();
    let begun = Stopwatch::start();
    for number in 0..200_u8 {
        node.write("web.yaml", &service(&["10.1.0.1", &format!("10.1.1.{number}")]));
        pause(Duration::from_millis(20));
    }
    browser.until("!!document.querySelector('g.part[aria-label*=\"serving, 2 backends\"]')");
    let more = browser.value(&asked("/history")).as_u64().unwrap() - before;
    assert!(more >= 2 && more <= begun.read().as_secs() + 2, "{more} in {:?}", begun.read());
}

#[test]
fn keyboard_focus_on_a_link_survives_changes() {
    let node = Node::start(&[("web.yaml", &service(&[]))]);
    for (kind, backend) in BOTH.into_iter().zip(["10.1.0.1", "10.1.0.2"]) {
        node.write("web.yaml", &service(&[]));
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until_text("main table", "refusing");
        browser.value("document.querySelector(\"main a[href='#/frontends?verdict=refusing']\").focus()");
        let there = "document.activeElement.getAttribute('href')";
        assert_eq!(browser.value(there), "#/frontends?verdict=refusing");
        let other = format!(
            "{}---\n{}",
            service(&[]),
            service(&[backend]).replace("web", "more").replace(".0.10,", ".0.11,")
        );
        node.write("web.yaml", &other);
        browser.until_text("main", "2 frontends");
        assert_eq!(browser.value(there), "#/frontends?verdict=refusing", "{kind:?}");
    }
}
