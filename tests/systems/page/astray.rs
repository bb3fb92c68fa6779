//! Faults around the page: malformed URLs, differing clocks, a silent stream, a daemon without its history.

use std::time::Duration;

use holdfast_fixtures::clock::pause;

use crate::browser::{BOTH, Browser};
use crate::live::service;
use crate::node::Node;
use crate::tunnel::Tunnel;

#[test]
fn a_malformed_url_still_shows_a_page() {
    let node = Node::demo();
    let turned = "service/demo/%E2%80%AEbew";
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        for (view, words) in [
            ("%E0%A4%A", "frontends"),
            ("service/%E0%A4%A/%ff", "%ff"),
            ("service/demo", "Why does a service serve, or not?"),
            (turned, "\\u{202e}bew"),
            ("service/%2e%2e/..", ".."),
            ("__proto__", "frontends"),
            ("constructor/demo/web", "frontends"),
            ("time?services=demo/web,%E2%80%AEa/b,a%2Cb/c,,demo/,/,x", "demo/web"),
            ("history?service=%E2%80%AE", "service"),
            ("frontends?q=%00%E2%80%AE(&verdict=none", "0 of 8 frontends"),
        ] {
            browser.open("about:blank");
            browser.open(&node.url(view));
            browser.until_text("#alive", "live");
            browser.until_text("main", words);
            assert!(!browser.text("body").contains('\u{202e}'), "{kind:?} {view}");
        }
        let title = browser.value("document.title");
        assert!(!title.as_str().unwrap().contains('\u{202e}'), "{kind:?}: {title}");
        // The browser logs a rejected request in its own words; an error of the script is different.
        let faults: Vec<String> =
            browser.console().into_iter().filter(|it| !it.contains("400") && !it.contains("404")).collect();
        assert_eq!(faults, [""; 0], "{kind:?}");
    }
}

#[test]
fn a_failed_service_request_is_reported_and_others_are_drawn() {
    let node = Node::demo();
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url("time?services=demo/web,no_name/at all,demo/empty"));
    browser.until("document.querySelectorAll('.strips text.label').length === 3");
    browser.until_text(".strips .bad", "no_name/at all");
    assert_eq!(
        browser.value("document.querySelectorAll('g.part[aria-label^=\"demo/web: serving\"]').length"),
        1
    );
}

#[test]
fn a_timeline_uses_the_nodes_clock() {
    let node = Node::demo();
    for (hour, words) in [(3_600_000, "behind this computer's"), (-3_600_000, "ahead of this computer's")] {
        let mut browser = Browser::start(BOTH[0]);
        browser.first(&format!("() => {{ const now = Date.now; Date.now = () => now() + {hour}; }}"));
        browser.open(&node.url("time?services=demo/web,demo/empty"));
        browser.until("!!document.querySelector('g.part')");
        browser.until_text("#alive", words);
        let outside = "[...document.querySelectorAll('.strips rect.fill')].filter(it => \
                       it.x.baseVal.value < -1 || it.x.baseVal.value + it.width.baseVal.value > 963).length";
        assert_eq!(browser.value(outside), 0, "{hour}");
        // `new Date()` is the browser's original.
        let last = "(text => [...Array(30).keys()].some(second => \
                    new Date(new Date() - second * 1000).toTimeString().slice(0, 8) === text.slice(-8)))\
                    ([...document.querySelectorAll('.axis text')].at(-1).textContent)";
        assert_eq!(browser.value(last), true, "{hour}: {}", browser.text(".axis"));
    }
}

#[test]
fn a_daemon_without_its_history_is_asked_for_everything() {
    let mut node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url("frontends"));
    browser.until_text("#alive", "live");
    for last in 1..20 {
        node.write("web.yaml", &service(&["10.1.0.1", &format!("10.1.1.{last}")]));
        pause(Duration::from_millis(50));
    }
    browser.until_text(".window tbody td:nth-of-type(4)", "2");
    node.stop();
    browser.until_text("#alive", "the daemon has not answered for");
    node.forget();
    node.write("web.yaml", &service(&["10.1.2.1", "10.1.2.2", "10.1.2.3"]));
    node.run();
    browser.until_text("#alive", "live");
    browser.until_text(".window tbody td:nth-of-type(4)", "3");
    node.write("web.yaml", &service(&["10.1.2.1", "10.1.2.2", "10.1.2.3", "10.1.2.4"]));
    browser.until_text(".window tbody td:nth-of-type(4)", "4");
}

#[test]
fn a_silent_stream_is_reported_and_replaced_by_requests() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let tunnel = Tunnel::to(&node.socket());
    tunnel.mute(true);
    let mut browser = Browser::start(BOTH[0]);
    browser.first(
        "() => { window.states = []; setInterval(() => { \
        const said = document.querySelector('#alive')?.textContent; \
        if (said && window.states.at(-1) !== said) window.states.push(said); }, 20); }",
    );
    browser.open(&tunnel.url("frontends"));
    browser.until_text(".window tbody th", "10.96.0.10:80/TCP");
    browser.until_text("#alive", "asked every few seconds: the stream is silent");
    node.write("web.yaml", &service(&["10.1.0.1", "10.1.0.2"]));
    browser.until_text(".window tbody td:nth-of-type(4)", "2");
    let states = browser.value("window.states");
    assert!(!states.to_string().contains("\"live"), "it never was: {states}");
    tunnel.mute(false);
    browser.until("document.querySelector('#alive').textContent === 'live'");
}
