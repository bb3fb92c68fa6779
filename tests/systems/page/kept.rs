//! A user's focus, opened parts and typed text survive redraws, and no change is announced twice.
//!
//! Invariant: each test checks only after the page has shown the change.

use std::time::Duration;

use holdfast_fixtures::clock::pause;

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

/// The manifest of a service with this many endpoints; each new number begins a new part of its timeline.
fn backends(number: usize) -> String {
    let all: Vec<String> = (1..=number).map(|last| format!("10.1.0.{last}")).collect();
    service(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn skipping_to_the_content_stays_in_the_view() {
    let node = Node::demo();
    let mut browser = live(&node, "frontends?verdict=refusing");
    focus(&mut browser, ".skip");
    browser.keys(ENTER);
    browser.until("document.activeElement.id === 'main'");
    pause(Duration::from_millis(200));
    assert_eq!(
        browser.value("[location.hash, document.title.split(' ')[0]]").to_string(),
        "[\"#/frontends?verdict=refusing\",\"Frontends\"]"
    );
}

#[test]
fn typed_text_survives_a_new_suggestion() {
    let node = Node::start(&[("web.yaml", &backends(1))]);
    let mut browser = live(&node, "service/shop/web");
    focus(&mut browser, "#to");
    browser.value("(document.querySelector('#to').select(), 1)");
    browser.keys("10.96.");
    node.write("web.yaml", &backends(1).replace("10.96.0.10", "10.96.0.12"));
    browser.until_text(".ways", "10.96.0.12");
    browser.keys("7.7:80");
    assert_eq!(browser.value("document.querySelector('#to').value"), "10.96.7.7:80");
    let proposed = "document.querySelector('#to').getAttribute('value')";
    assert_eq!(browser.value(proposed), "10.96.0.12:80/TCP");
    assert_eq!(browser.value("document.querySelector('#dialled option').value"), "10.96.0.12:80/TCP");
}

#[test]
fn a_service_stays_visible_when_one_request_fails() {
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
fn opened_parts_of_a_diagnosis_stay_open_after_a_refresh() {
    let node = Node::demo();
    let mut browser = live(&node, "diagnose/demo/empty");
    browser.click("main summary");
    browser.until("document.querySelector('main details').open");
    let taken = browser.value("document.querySelector('main time').dateTime");
    browser.value("([...document.querySelectorAll('main button')].find(it => it.textContent === 'Look again').click(), 1)");
    browser.until(&format!("document.querySelector('main time').dateTime !== {taken}"));
    assert_eq!(browser.value("document.querySelector('main details').open"), true);
}

#[test]
fn focus_and_selection_stay_in_a_timelines_table() {
    let node = Node::start(&[("web.yaml", &backends(1))]);
    let mut browser = live(&node, "time?services=shop/web");
    focus(&mut browser, "main summary");
    browser.keys(ENTER);
    browser.until_text("[aria-label='What clients met']", "serving");
    browser.value("(getSelection().selectAllChildren(document.querySelector('main td b, main td')), 1)");
    let marked = browser.value("String(getSelection())");
    assert_ne!(marked, "");
    node.write("web.yaml", &backends(2));
    browser.until("document.querySelectorAll('g.part').length === 2");
    browser.until("document.querySelectorAll('main tbody tr').length === 2");
    assert_eq!(browser.value("document.activeElement.localName"), "summary");
    assert_eq!(browser.value("String(getSelection())"), marked);
    browser.keys(ENTER);
    browser.until("!document.querySelector('main details').open");
    browser.until("!document.querySelector('main tbody')");
}

#[test]
fn a_focused_part_of_a_timeline_is_announced_once() {
    let node = Node::start(&[("web.yaml", &backends(1))]);
    node.write("web.yaml", &backends(2));
    let mut browser = live(&node, "time?services=shop/web");
    browser.until("document.querySelectorAll('g.part').length === 2");
    focus(&mut browser, "g.part");
    browser.until_text("[aria-live=polite]", "1 backend");
    browser.value("(window.told = 0, window.part = document.activeElement, \
        new MutationObserver((all) => { window.told += all.length; })\
        .observe(document.querySelector('[aria-live=polite]'), {childList: true, characterData: true, subtree: true}), 1)");
    for number in 3..5 {
        node.write("web.yaml", &backends(number));
        browser.until(&format!("document.querySelectorAll('g.part').length === {number}"));
    }
    assert_eq!(
        browser.value("[window.told, document.activeElement === window.part]").to_string(),
        "[0,true]"
    );
}

#[test]
fn the_focus_stays_when_the_history_drops_the_first_part() {
    let node = Node::start(&[("web.yaml", &backends(1))]);
    let change = |number: usize| {
        node.write("web.yaml", &backends(1 + number % 7));
        pause(Duration::from_millis(30));
    };
    (1..100).for_each(change);
    let mut browser = live(&node, "time?services=shop/web");
    focus(&mut browser, "g.part:nth-of-type(40)");
    let (part, first) = (
        "document.activeElement.getAttribute('aria-label')",
        "document.querySelector('g.part').getAttribute('aria-label')",
    );
    let (known, oldest) = (browser.value(part), browser.value(first));
    assert_ne!(known, serde_json::Value::Null);
    (100..120).for_each(change);
    browser.until(&format!("{first} !== {oldest}"));
    pause(Duration::from_secs(3));
    assert_eq!(browser.value(part), known);
}

#[test]
fn a_row_keeps_its_place_when_its_service_is_refetched() {
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
fn the_focus_moves_to_the_table_when_its_row_scrolls_away() {
    let node = Node::with_services(400);
    let mut browser = live(&node, "frontends");
    focus(&mut browser, ".window tbody a");
    browser.value("(document.querySelector('.window').scrollTop = 8000, 1)");
    browser.until("document.querySelector('.window tbody tr:nth-of-type(2)').ariaRowIndex !== '2'");
    browser.until("document.querySelectorAll('.gap').length === 2");
    assert_eq!(browser.value("document.activeElement.className"), "window");
}

/// Whether the page shows at least this many seconds of silence: on a busy machine a test may miss the exact second.
fn silent_for(seconds: u32) -> String {
    format!(
        "Number(/has not answered for (\\d+) s/.exec(document.querySelector('#alive').textContent)?.[1]) >= {seconds}"
    )
}

#[test]
fn the_daemons_silence_is_not_announced_each_second() {
    let mut node = Node::start(&[("web.yaml", &backends(1))]);
    let mut browser = live(&node, "");
    node.stop();
    browser.until(&silent_for(2));
    // The first few tries may each show another error, so announcements count from here on.
    browser.value("(window.told = [], new MutationObserver((all) => all.filter(({target}) => \
        !(target.parentElement?.closest('[aria-live=off]') ?? target.closest?.('[aria-live=off]')))\
        .forEach(() => window.told.push(document.querySelector('#alive').textContent)))\
        .observe(document.querySelector('#alive'), {childList: true, characterData: true, subtree: true}), 1)");
    browser.until(&silent_for(7));
    assert_eq!(browser.value("window.told").to_string(), "[]");
}

#[test]
fn the_first_screens_console_stays_empty_during_changes() {
    let node = Node::start(&[("web.yaml", &backends(1))]);
    for kind in BOTH {
        node.write("web.yaml", &backends(1));
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until_text(".legend", "serving");
        node.write("web.yaml", &backends(0));
        browser.until("!!document.querySelector('.bar .refusing, .bar .held')");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}
