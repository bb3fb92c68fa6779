//! How the page looks to those who see no colours, have no mouse, or hold a phone.
//!
//! Invariant: a test measures what is drawn, in both browsers.

use holdfast_fixtures::clock::pause;
use serde_json::json;

use crate::browser::{BOTH, Browser, Kind};
use crate::live::service;
use crate::node::Node;
use crate::verdict::PATIENT;

/// A phone, as wide as most.
const PHONE: (u32, u32) = (390, 844);

const VIEWS: [&str; 11] = [
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
];

/// Opens a view, once its data is there.
fn open(browser: &mut Browser, node: &Node, view: &str) {
    browser.open("about:blank");
    browser.open(&node.url(view));
    browser.until_text("#alive", "live");
    browser.until("!document.querySelector('main').innerText.includes('Asking…')");
    browser.until("!document.querySelector('main').innerText.includes('Looking…')");
}

/// Whether the verdict is whole on the screen, and nothing has to be scrolled sideways but tables.
const IN_SIGHT: &str = "(() => { const {top, bottom, left, right} = document.querySelector('#health').getBoundingClientRect();
    const page = document.documentElement;
    return [top >= 0 && bottom <= innerHeight && left >= 0 && right <= innerWidth, page.scrollWidth <= innerWidth]; })()";

#[test]
fn a_phone_has_the_verdict_in_sight_wherever_it_scrolls() {
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.size(PHONE.0, PHONE.1);
        for view in VIEWS {
            open(&mut browser, &node, view);
            for place in ["0", "document.documentElement.scrollHeight"] {
                browser.value(&format!("(scrollTo(0, {place}), new Promise(requestAnimationFrame))"));
                assert_eq!(browser.value(IN_SIGHT), json!([true, true]), "{kind:?} {view:?} at {place}");
            }
        }
    }
}

/// The words that a cell breaks between two letters. A word wider than its cell may be broken; none of these is.
const BROKEN: &str = r"(() => { const broken = [];
    for (const cell of document.querySelectorAll('main :is(th, td)')) {
      const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const text = texts.currentNode;
        for (const {0: word, index} of text.data.matchAll(/[\p{L}\d_]+/gu)) {
          const range = document.createRange();
          range.setStart(text, index);
          range.setEnd(text, index + word.length);
          const tops = new Set([...range.getClientRects()].map(({top}) => Math.round(top)));
          if (tops.size > 1) broken.push(word);
        }
      }
    }
    return broken; })()";

#[test]
fn wide_tables_wrap_between_words_and_never_within_one() {
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        for width in [PHONE.0, 820, 1440] {
            browser.size(width, PHONE.1);
            for view in VIEWS {
                open(&mut browser, &node, view);
                assert_eq!(browser.value(BROKEN), json!([]), "{kind:?} {view:?} at {width}");
            }
        }
    }
}

/// The pattern of each part of the bar; a reader with deuteranopia tells red from green by it.
const PATTERNS: &str = "Object.fromEntries([...document.querySelectorAll('.bar .part')].map(part => \
    [part.className.split(' ')[1], getComputedStyle(part).backgroundImage]))";

#[test]
fn the_bar_has_hatching_beside_colours() {
    let node = Node::with(|_| PATIENT.to_owned());
    let gone = service(&[]).replace("web", "gone").replace(".0.10,", ".0.11,");
    let more = service(&["10.1.0.1"]).replace("web", "more").replace(".0.10,", ".0.12,");
    node.write("more.yaml", &format!("{gone}---\n{more}"));
    node.write("web.yaml", &service(&["10.1.0.1"]));
    node.until_rows(3);
    node.write("web.yaml", &service(&[]));
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url(""));
        browser.until("!!document.querySelector('.bar .held')");
        let patterns = browser.value(PATTERNS);
        let pattern = |verdict: &str| patterns[verdict].as_str().unwrap().to_owned();
        assert_eq!(pattern("serving"), "none", "{kind:?}");
        assert_ne!(pattern("refusing"), "none", "{kind:?}: {patterns}");
        assert_ne!(pattern("held"), "none", "{kind:?}: {patterns}");
        assert_ne!(pattern("held"), pattern("refusing"), "{kind:?}: {patterns}");
    }
}

const TAB: &str = "\u{e004}";

/// The focused element, in how many pieces it is, whether it is under the verdict, how many rings are drawn, and if the
/// first is its own. A ring would be in as many pieces.
const RINGS: &str = "(() => { const drawn = (it) => {
      const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(it);
      return (outlineStyle !== 'none' && parseFloat(outlineWidth) > 0) || boxShadow !== 'none'; };
    const rings = [...document.querySelectorAll('*')].filter(drawn);
    const active = document.activeElement;
    const below = document.querySelector('#state').getBoundingClientRect().bottom;
    const hidden = active.closest('main') && active.getBoundingClientRect().bottom <= below;
    return active === document.body ? null :
      [active.outerHTML.slice(0, 120), active.getClientRects().length, Boolean(hidden), rings.length, rings[0] === active];
    })()";

/// As many as a keyboard's user goes through on a view.
const STEPS: usize = 45;

#[test]
fn each_focused_element_has_one_ring_in_one_piece_and_in_sight() {
    let node = Node::demo();
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.size(PHONE.0, PHONE.1);
        for view in ["", "frontends", "service/demo/web", "time?services=demo/web,demo/empty", "diagnose"] {
            open(&mut browser, &node, view);
            let seen = (0..STEPS).filter(|_| has_one_ring(&mut browser, kind, view)).count();
            assert!(seen > 12, "{kind:?} {view:?}: {seen} elements had the focus");
        }
    }
}

/// Goes on to the next element. Whether one has the focus; the end of the page has none.
fn has_one_ring(browser: &mut Browser, kind: Kind, view: &str) -> bool {
    browser.keys(TAB);
    let rings = browser.value(RINGS);
    let Some(found) = rings.as_array() else { return false };
    // Firefox's window without a screen never has the focus, so that no ring is drawn there.
    let known = if kind == Kind::Firefox { 3 } else { 5 };
    let expected = [json!(1), json!(false), json!(1), json!(true)];
    assert_eq!(found[1..known], expected[..known - 1], "{kind:?} {view:?}: {}", found[0]);
    true
}

/// The texts of a column.
fn column(browser: &mut Browser, table: &str, number: usize) -> Vec<String> {
    let cells = format!(
        "[...document.querySelectorAll({table:?} + ' tbody tr:not(.gap)')].map(row => row.cells[{number}].textContent)"
    );
    browser.value(&cells).as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_table_is_sorted_by_a_click_and_stays_so_when_it_is_drawn_again() {
    let node = Node::demo();
    let table = "[aria-label='Endpoints']";
    for (number, kind) in BOTH.into_iter().enumerate() {
        let mut browser = Browser::start(kind);
        browser.open(&node.url("service/demo/web"));
        browser.until_text(table, ":");
        browser.click(&format!("{table} thead th:nth-of-type(1) button"));
        let mut expected = column(&mut browser, table, 0);
        expected.sort();
        assert_eq!(column(&mut browser, table, 0), expected, "{kind:?}");
        browser.click(&format!("{table} thead th:nth-of-type(1) button"));
        expected.reverse();
        assert_eq!(column(&mut browser, table, 0), expected, "{kind:?}");
        let order = format!("document.querySelector(\"{table} th[aria-sort]\").ariaSort");
        assert_eq!(browser.value(&order), "descending", "{kind:?}");
        assert_eq!(browser.value("document.activeElement.className"), "sort", "{kind:?}");
        let line = format!("document.querySelector(\"{table} tbody tr\")");
        browser.value(&format!("(window.line = {line}, 1)"));
        node.write("more.yaml", &service(&["10.1.0.1", &format!("10.1.9.{number}")]));
        pause(std::time::Duration::from_secs(7));
        assert_eq!(browser.value(&order), "descending", "{kind:?}");
        assert_eq!(column(&mut browser, table, 0), expected, "{kind:?}");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

/// As long as a reader waits for a click without a doubt.
const SORTED_LIMIT_MS: f64 = 1_000.0;

#[test]
fn ten_thousand_rows_are_sorted_by_a_click() {
    let node = Node::with_services(10_000);
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url("frontends"));
        browser.until_text("[role=status]", "10,000 of 10,000 frontends");
        let button = "document.querySelector('.window thead th:nth-of-type(2) button')";
        let took = browser.value(&format!(
            "(() => {{ const begun = performance.now(); {button}.click(); return performance.now() - begun; }})()"
        ));
        println!("{kind:?}: 10,000 rows sorted in {took} ms");
        assert!(took.as_f64().unwrap() < SORTED_LIMIT_MS, "{kind:?}: {took} ms");
        browser.until("document.querySelector('.window tbody td').textContent === 'load/shop-0'");
        assert_eq!(column(&mut browser, ".window", 1)[..3], ["load/shop-0", "load/shop-1", "load/shop-2"]);
        browser.click(".window thead th:nth-of-type(2) button");
        browser.until("document.querySelector('.window tbody td').textContent === 'load/shop-9999'");
        browser.until("location.hash.includes('sort=-service')");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}
