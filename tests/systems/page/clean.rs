//! Automatic checks of usability: axe-core, and an empty console.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::browser::{BOTH, Browser};
use crate::node::Node;

const VIEWS: [&str; 12] = [
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

#[test]
fn every_view_is_clean_in_both_widths_with_an_empty_console() {
    let (node, axe) = (Node::demo(), axe());
    let mut browser = Browser::start(BOTH[0]);
    for (width, view) in [1280, 400].into_iter().flat_map(|width| VIEWS.map(|view| (width, view))) {
        browser.size(width, 900);
        browser.open("about:blank");
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
        browser.until("!document.querySelector('main').innerText.includes('Asking…')");
        browser.value(&format!("(() => {{ {axe}; return 1; }})()"));
        let found = browser.value("axe.run(document).then(it => it.violations)");
        let told = |one: &Value| format!("{}: {}", one["id"], one["nodes"][0]["html"]);
        let found: Vec<String> = found.as_array().unwrap().iter().map(told).collect();
        assert_eq!(found, [""; 0], "{view} at {width}");
    }
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn firefoxs_console_stays_empty_too() {
    let node = Node::demo();
    let mut browser = Browser::start(BOTH[1]);
    for view in VIEWS {
        browser.open("about:blank");
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
    }
    assert_eq!(browser.console(), [""; 0]);
}
