//! Each browser shows the page: the part of these tests that `make test` runs.
//!
//! Invariant: a missing browser fails the test with the remedy.

use crate::browser::{Browser, Kind, lacking};
use crate::node::Node;

/// The node's state, and what it does not serve.
fn shows_the_first_screen(kind: Kind) {
    let node = Node::demo();
    let mut browser = Browser::start(kind);
    browser.open(&node.url(""));
    browser.until_text("#alive", "live");
    browser.until_text("main", "8 frontends");
    browser.until_text("main table", "refusing (no-endpoints)");
    browser.until_text("main table a[href='#/service/demo/empty']", "demo/empty");
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn chromium_shows_the_first_screen() {
    shows_the_first_screen(Kind::Chromium);
}

#[test]
fn firefox_shows_the_first_screen() {
    shows_the_first_screen(Kind::Firefox);
}

#[test]
fn a_missing_browser_is_reported_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let folders = folder.path().to_str().unwrap();
    let has = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
    let told = |kind, name: &str| {
        assert_eq!(lacking(kind, folders), Some(format!("{name} is not installed: run scripts/setup page")));
    };
    told(Kind::Firefox, "firefox-esr");
    told(Kind::Chromium, "chromium");
    has("chromium");
    told(Kind::Chromium, "chromedriver");
    has("chromedriver");
    assert_eq!(lacking(Kind::Chromium, folders), None);
}
