//! The page's verdict on the node: green only if all is well, by the definition of `holdfast status`.
//!
//! Invariant: a test names what the page must not claim, and waits until the page shows the state that is meant.

use std::time::Duration;

use holdfast_fixtures::clock::pause;
use holdfast_tests::fake::Authority;
use serde_json::{Value, json};

use crate::browser::{BOTH, Browser};
use crate::live::service;
use crate::node::Node;

/// A held list stays: nobody finds out that its backends are not there.
pub(crate) const PATIENT: &str = "[hold]\nprobe_interval = \"10m\"\n";

fn health_is(tone: &str) -> String {
    format!("document.querySelector('#health').className === {tone:?}")
}

/// A service at an address, with its slice.
fn object(name: &str, address: &str, endpoints: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{type: ClusterIP, clusterIP: {address}, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{endpoints}]\n"
    )
}

const READY: &str = "{addresses: [10.1.0.1]}";
const UNREADY: &str = "{addresses: [10.1.0.1], conditions: {ready: false}}";
const LEAVING: &str = "{addresses: [10.1.0.1], conditions: {ready: false, serving: true, terminating: true}}";

/// What happens one after another, whether all is well then, and a word that only that state has on the first screen.
fn story() -> Vec<(String, bool, &'static str)> {
    let web = |endpoints| object("web", "10.96.0.10", endpoints);
    let thief = object("zoo", "10.96.0.10", READY);
    let broken = object("'<b>'", "10.96.0.11", READY);
    vec![
        (web(READY), true, "1 frontend"),
        (web(READY) + &object("gone", "10.96.0.11", ""), true, "refusing (no-endpoints)"),
        (web(READY) + &object("gone", "10.96.0.11", UNREADY), false, "refusing (all-unready)"),
        (web(READY) + &thief, false, "conflict (claimed)"),
        (web(READY) + &broken, false, "rejected"),
        (web(LEAVING), true, "draining"),
        (web(""), true, "refusing (scaled-down)"),
        (web(READY) + &object("zoo", "10.96.0.12", READY), true, "2 frontends"),
        (web(READY) + &object("zoo", "10.96.0.12", ""), true, "◐ held ("),
    ]
}

#[test]
fn the_page_is_green_exactly_if_status_ends_with_zero() {
    let node = Node::with(|_| PATIENT.to_owned());
    let mut browsers = BOTH.map(Browser::start);
    browsers.iter_mut().for_each(|browser| browser.open(&node.url("")));
    for (text, is_well, words) in story() {
        node.write("web.yaml", &text);
        for browser in &mut browsers {
            browser.until_text("main", words);
            browser.until(&health_is(if is_well { "good" } else { "bad" }));
        }
        assert_eq!(node.is_well(), is_well, "{words}");
    }
    for browser in &mut browsers {
        assert_eq!(browser.console(), [""; 0]);
    }
}

/// Records each tone of the verdict, however short.
const TONES: &str = "() => { window.tones = []; addEventListener('DOMContentLoaded', () => {
    const note = () => window.tones.push(document.querySelector('#health').className);
    new MutationObserver(note).observe(document.querySelector('#health'), {attributes: true}); }); }";

#[test]
fn a_node_whose_clients_fail_is_not_green_for_a_moment_while_it_is_read() {
    let node = Node::demo();
    node.write("gone.yaml", &object("gone", "10.96.7.7", UNREADY));
    node.until_rows(9);
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.first(TONES);
        for _ in 0..5 {
            browser.open("about:blank");
            browser.open(&node.url(""));
            browser.until(&health_is("bad"));
            assert_eq!(browser.value("window.tones.includes('good')"), false, "{kind:?}");
            assert_eq!(browser.value("window.tones.includes('bad')"), true, "{kind:?}");
        }
    }
}

#[test]
fn a_held_service_is_neither_a_failure_nor_one_that_does_not_serve() {
    let node = Node::with(|_| PATIENT.to_owned());
    node.write("web.yaml", &object("web", "10.96.0.10", READY));
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url(""));
    browser.until_text("main h2", "1 frontend");
    node.write("web.yaml", &object("web", "10.96.0.10", ""));
    browser.until_text("[aria-label='Services that are held or draining']", "◐ held (");
    browser.until_text("#health", "no client fails; 1 service on its last backends");
    let heads = browser.text("main h2");
    assert!(heads.starts_with("Served by their last backends"), "{heads}");
    for claim in ["Clients fail", "Not served", "Problems"] {
        assert!(!heads.contains(claim), "{heads}");
    }
    browser.open(&node.url("frontends?verdict=not-serving"));
    browser.until_text("[role=status]", "0 of 1 frontend");
}

#[test]
fn a_frozen_daemon_is_not_green_and_what_it_said_is_dated() {
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until_text("#alive", "live");
        node.freeze(true);
        browser.until(&health_is("unknown"));
        browser.until_text("#alive", "The page shows the state of 20");
        browser.until("document.body.classList.contains('old')");
        // The address of the page is opened again, as a user does who wonders.
        node.freeze(false);
        browser.until_text("#alive", "live");
        browser.until("!document.body.classList.contains('old')");
        browser.until(&health_is("good"));
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn a_loading_daemon_is_neither_green_nor_without_services() {
    let authority = Authority::new().unwrap();
    let node = Node::loading(|folder| {
        let [trusted, token] = ["ca.crt", "token"].map(|file| folder.join(file));
        std::fs::write(&trusted, authority.pem()).unwrap();
        std::fs::write(&token, "none").unwrap();
        format!(
            "[apiserver]\nendpoints = [\"https://127.0.0.1:1\"]\nca_file = {trusted:?}\ntoken_file = {token:?}\n\
             discover = []\n"
        )
    });
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        for (view, place) in [("", "main"), ("frontends", "main [role=status]"), ("diagnose", "main")] {
            browser.open("about:blank");
            browser.open(&node.url(view));
            browser.until_text("#alive", "live");
            browser.until_text(place, "not known yet, because no first list has come yet from kubernetes");
            browser.until(&health_is("bad"));
            let text = browser.text("main");
            for claim in ["0 frontends", "0 of 0", "none.", "No service"] {
                assert!(!text.contains(claim), "{kind:?} {view:?} claims {claim}: {text}");
            }
        }
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

/// From `fails` on, requests to one path fail.
fn failing(path: &str) -> String {
    format!(
        "() => {{ const real = window.fetch; window.fetch = (url, options) => window.fails && \
         String(url).startsWith('{path}') ? Promise.reject(new Error('cut off')) : real(url, options); }}"
    )
}

/// The answer about the apiserver as it is while no watch works.
const AWAY: &str = "() => { const real = window.fetch; window.fetch = async (url, options) => {
    const reply = await real(url, options);
    if (!String(url).startsWith('/apiserver')) return reply;
    return new Response(JSON.stringify({...await reply.json(), away: true}), reply); }; }";

#[test]
fn a_node_that_does_not_hear_the_apiserver_is_not_green() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let mut browser = Browser::start(BOTH[0]);
    browser.first(AWAY);
    browser.open(&node.url(""));
    browser.until_text("main", "the apiserver is not heard: this node goes on with what it knows");
    browser.until(&health_is("bad"));
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn data_that_cannot_be_refreshed_is_greyed_and_dated() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for (path, view, place) in [
        ("/datapath", "", ".stale"),
        ("/flows", "flows", "main .stale"),
        ("/refusals", "refusals", "main .stale"),
        ("/frontends", "", ".stale"),
    ] {
        let mut browser = Browser::start(BOTH[0]);
        browser.first(&failing(path));
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
        browser.until("!document.querySelector('main').innerText.includes('Asking…')");
        let ink = "getComputedStyle(document.querySelector('main p, main h2')).color";
        let fresh = browser.value(ink);
        browser.value("(window.fails = true, 1)");
        if path == "/frontends" {
            // The page asks for a service that it has not seen yet.
            node.write("zoo.yaml", &object("zoo", "10.96.0.11", READY));
        }
        browser.until_text(place, "The page shows the state of 20");
        let grey = browser.value("getComputedStyle(document.querySelector('.stale')).color");
        assert_ne!(grey, fresh, "{path}");
        if VERDICT.contains(&path) {
            browser.until(&health_is("unknown"));
        }
    }
}

/// Paths without which the page knows no verdict.
const VERDICT: [&str; 3] = ["/datapath", "/frontends", "/flows"];

#[test]
fn the_first_screen_has_failures_first_then_changes_then_numbers() {
    let node = Node::demo();
    node.write("early.yaml", &object("early", "10.96.7.6", UNREADY));
    node.until_rows(9);
    // Frontends have the second of their last change.
    pause(Duration::from_millis(1_100));
    node.write("gone.yaml", &object("gone", "10.96.7.7", UNREADY));
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until_text("main table", "shop/gone");
        browser.until_text("main h2", "10 frontends");
        let heads = browser.text("main h2");
        let places = ["Clients fail", "Latest changes", "10 frontends", "Not served, yet"]
            .map(|head| heads.find(head));
        assert!(places.is_sorted() && places[0] == Some(0), "{kind:?}: {heads}");
        let newest = "document.querySelector(\"[aria-label='Services whose clients fail'] td:nth-of-type(1) a\").textContent";
        assert_eq!(browser.value(newest), "shop/gone", "{kind:?}: the newest comes first");
    }
}

/// 774 services are three lines, and so are 10,000.
#[test]
fn ten_thousand_services_of_one_cause_are_one_line() {
    let node = Node::with_services(10_000);
    let group = "[aria-label^='Services that are scaled down']";
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until_text(group, "and 9,997 more");
        let rows = format!("document.querySelectorAll(\"{group} tbody tr\").length");
        assert_eq!(browser.value(&rows), 1, "{kind:?}");
        browser.click(&format!("{group} td a[href*='verdict=refusing']"));
        browser.until_text("[role=status]", "10,000 of 10,000 frontends");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn diagnose_offers_the_broken_services_and_completes_names() {
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url("diagnose"));
        browser.until_text("[aria-label^='Services that need a look']", "demo/empty");
        browser.until("!!document.querySelector(\"main a[href='#/diagnose/demo/empty']\")");
        browser.click("#service");
        browser.keys("kubernetes");
        let offered = browser.value("[...document.querySelectorAll('#names option')].map(it => it.value)");
        assert_eq!(offered, json!(["default/kubernetes", "default/kubernetes-intranet"]), "{kind:?}");
        browser.value("(document.querySelector('#service').value = '', 1)");
        browser.keys("empty\u{e007}");
        browser.until("location.hash === '#/diagnose/demo/empty'");
        browser.until_text("main h2", "Diagnosis of demo/empty");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

/// Words that readers misread, and that no view may have again.
#[test]
fn no_view_has_words_that_were_misread() {
    let node = Node::demo();
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url("service/demo/web"));
    browser.until_text("main", "From a client to its backends");
    browser.until_text("main", "What its clients met over time");
    browser.until_text("[aria-label='What clients dial']", "as decided");
    let text = browser.text("main");
    for words in ["the same, done", "The way", "Its time", "tries at all frontends"] {
        assert!(!text.contains(words), "{words}: {text}");
    }
    let heads = browser.value("[...document.querySelectorAll('main h3')].map(it => it.textContent)");
    assert!(heads.as_array().is_some_and(|it| it.iter().all(Value::is_string)), "{heads}");
}
