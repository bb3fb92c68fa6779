//! Automatic checks of usability: axe-core, and an empty console.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::browser::{BOTH, Browser, Kind};
use crate::node::Node;

const VIEWS: [&str; 13] = [
    "",
    "frontends",
    "service/demo/web",
    "service/demo/empty",
    "time?services=demo/web,demo/empty",
    "history",
    "refusals",
    "flows",
    "apiserver",
    "events",
    "diagnose",
    "diagnose/demo/empty",
    "rejected",
];

/// The script from `scripts/setup page`.
fn axe() -> String {
    let target = std::env::current_exe().unwrap();
    let target = target.ancestors().find(|folder| folder.join("page/axe.min.js").exists());
    let path = target.unwrap_or(Path::new("target")).join("page/axe.min.js");
    fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run scripts/setup page", path.display()))
}

/// A phone, a tablet and a desk.
const WIDTHS: [u32; 3] = [390, 820, 1440];

/// What axe-core finds in the document.
fn violations(browser: &mut Browser, axe: &str) -> Vec<String> {
    browser.value(&format!("(() => {{ {axe}; return 1; }})()"));
    let found = browser.value("axe.run(document).then(it => it.violations)");
    let told = |one: &Value| format!("{}: {}", one["id"], one["nodes"][0]["html"]);
    found.as_array().unwrap().iter().map(told).collect()
}

/// Every view in every width is clean, and the console stays empty.
fn is_clean(kind: Kind, is_dark: bool) {
    let (node, axe) = (Node::demo(), axe());
    let mut browser = Browser::start_in(kind, is_dark);
    browser.open(&node.url(""));
    assert_eq!(browser.value("matchMedia('(prefers-color-scheme: dark)').matches"), is_dark, "{kind:?}");
    for (width, view) in WIDTHS.into_iter().flat_map(|width| VIEWS.map(|view| (width, view))) {
        browser.size(width, 900);
        browser.open("about:blank");
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
        browser.until("!document.querySelector('main').innerText.includes('Asking…')");
        assert_eq!(violations(&mut browser, &axe), [""; 0], "{kind:?} {view} at {width}");
    }
    assert_eq!(browser.console(), [""; 0], "{kind:?}");
}

#[test]
fn every_view_is_clean_in_chromium() {
    is_clean(Kind::Chromium, false);
}

#[test]
fn every_view_is_clean_in_a_dark_chromium() {
    is_clean(Kind::Chromium, true);
}

#[test]
fn every_view_is_clean_in_firefox() {
    is_clean(Kind::Firefox, false);
}

#[test]
fn every_view_is_clean_in_a_dark_firefox() {
    is_clean(Kind::Firefox, true);
}

#[test]
fn the_grey_of_a_stopped_daemon_can_be_read() {
    let axe = axe();
    for is_dark in [false, true] {
        let mut node = Node::demo();
        let mut browser = Browser::start_in(BOTH[0], is_dark);
        browser.size(WIDTHS[0], 900);
        browser.open(&node.url(""));
        browser.until_text("main table", "demo/empty");
        node.stop();
        browser.until("document.body.classList.contains('old')");
        assert_eq!(violations(&mut browser, &axe), [""; 0], "dark: {is_dark}");
    }
}
