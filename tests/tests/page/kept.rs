//! What somebody has come to, opened or typed outlives what is drawn around it, and nothing is read out twice.
//!
//! Invariant: what is looked at was drawn anew meanwhile, and what changed has been seen.

use std::time::Duration;

use crate::browser::{BOTH, Browser};
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
