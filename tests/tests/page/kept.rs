//! What somebody has come to, opened or typed outlives what is drawn around it, and nothing is read out twice.
//!
//! Invariant: what is looked at was drawn anew meanwhile, and what changed has been seen.

use std::time::Duration;

use crate::browser::{BOTH, Browser};
use crate::live::service;
use crate::node::Node;

const ENTER: &str = "\u{e007}";

fn live(node: &Node, view: &str) -> Browser {
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url(view));
    browser.until_text("#alive", "live");
    browser
}

fn focus(browser: &mut Browser, selector: &str) {
    browser.until(&format!("!!document.querySelector({selector:?})"));
    browser.value(&format!("(document.querySelector({selector:?}).focus(), 1)"));
}

/// So many endpoints, which is another part of a strip than with one more.
fn backends(number: usize) -> String {
    let all: Vec<String> = (1..=number).map(|last| format!("10.1.0.{last}")).collect();
    service(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn whoever_skips_to_the_content_stays_in_the_view() {
    let node = Node::demo();
    let mut browser = live(&node, "frontends?verdict=refusing");
    focus(&mut browser, ".skip");
    browser.keys(ENTER);
    browser.until("document.activeElement.id === 'main'");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        browser.value("[location.hash, document.title.split(' ')[0]]").to_string(),
        "[\"#/frontends?verdict=refusing\",\"Frontends\"]"
    );
}

#[test]
fn a_service_that_cannot_be_asked_once_stays_on_the_screen() {
    let node = Node::start(&[("web.yaml", &backends(1))]);
    let mut browser = Browser::start(BOTH[0]);
    browser.first("() => { const real = window.fetch; window.fetch = (url, options) => \
        window.fails && String(url).startsWith('/explain') ? Promise.reject(new Error('cut off')) : real(url, options); }");
    browser.open(&node.url("service/shop/web"));
    browser.until_text("#alive", "live");
    focus(&mut browser, "#from");
    browser.keys("198.18");
    browser.value("(window.fails = true, 1)");
    node.write("web.yaml", &backends(2));
    browser.until_text("main .bad", "cut off");
    browser.keys(".0.9");
    assert_eq!(browser.value("document.querySelector('#from')?.value"), "198.18.0.9");
    browser.value("(window.fails = false, 1)");
    browser.until_text(".ways", "10.1.0.2");
    assert_eq!(browser.value("document.querySelector('#from').value"), "198.18.0.9");
    assert!(!browser.text("main").contains("cut off"));
}

#[test]
fn a_row_stays_in_its_place_when_its_service_is_asked_for_anew() {
    let other = service(&["10.1.0.1"]).replace("web", "zoo").replace("0.10,", "0.11,");
    let node = Node::start(&[("web.yaml", &backends(1)), ("zoo.yaml", &other)]);
    let mut browser = live(&node, "frontends");
    let first = "document.querySelector('.window tbody a')?.textContent";
    browser.until(&format!("{first} === '10.96.0.10:80/TCP'"));
    node.write("web.yaml", &backends(1).replace("{port: 80}", "{name: a, port: 80}, {name: b, port: 81}"));
    browser.until_text(".window tbody", "10.96.0.10:81/TCP");
    assert_eq!(browser.value(first), "10.96.0.10:80/TCP");
}

#[test]
fn how_long_the_daemon_is_silent_is_not_read_out_each_second() {
    let mut node = Node::start(&[("web.yaml", &backends(1))]);
    let mut browser = live(&node, "");
    node.stop();
    browser.until_text("#alive", "does not answer since 2 s");
    // What is at fault may be told in other words by each try, and no later than the first few.
    browser.value("(window.told = [], new MutationObserver((all) => all.filter(({target}) => \
        !(target.parentElement?.closest('[aria-live=off]') ?? target.closest?.('[aria-live=off]')))\
        .forEach(() => window.told.push(document.querySelector('#alive').textContent)))\
        .observe(document.querySelector('#alive'), {childList: true, characterData: true, subtree: true}), 1)");
    browser.until_text("#alive", "does not answer since 7 s");
    assert_eq!(browser.value("window.told").to_string(), "[]");
}
