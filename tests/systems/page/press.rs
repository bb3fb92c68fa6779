//! A user's click, typed text or selection during changes applies to what was there when it began.
//!
//! Invariant: a press releases held-back data, so that the change comes between its beginning and its end.

use std::time::Duration;

use holdfast_fixtures::clock::pause;
use serde_json::json;

use crate::browser::{BOTH, Browser, Kind, Pointer};
use crate::live::service;
use crate::node::Node;

/// As long as a slow hand's press, and shorter than the page's wait for it.
const HELD: Duration = Duration::from_millis(700);

/// How many changes are in the stream when it is released, as many as come in a second. A view that has been drawn
/// before can redraw at once.
const CHANGES: u8 = 100;
const PACE: Duration = Duration::from_millis(10);

/// From `shut` on, one path's answers and the stream's data wait for the next pointer press. Other answers do not,
/// because the page sends one request at a time and would never reach that path. The page's limit for a press is
/// raised to a minute, because a busy machine is no slow hand.
const GATE: &str = "() => {
  const timeout = window.setTimeout;
  window.setTimeout = (wake, time) => timeout(wake, window.event?.type === 'pointerdown' ? 60 * time : time);
  const [real, waiting] = [window.fetch, new Set()];
  let [open, opened, shut] = [() => {}, Promise.resolve(), ''];
  window.shut = (path) => {
    waiting.clear();
    shut = path;
    opened = new Promise((wake) => { open = wake; });
  };
  window.waits = (path) => waiting.has(path);
  addEventListener('pointerdown', () => { open(); waiting.clear(); }, true);
  const held = async (path) => { waiting.add(path); await opened; };
  window.fetch = async (url, options) => {
    const [path, answer] = [String(url).split('?')[0], await real(url, options)];
    if (path !== '/watch') {
      if (path === shut) await held(path);
      return answer;
    }
    const gate = new TransformStream({
      transform: async (bytes, to) => { await held(path); to.enqueue(bytes); },
    });
    return new Response(answer.body.pipeThrough(gate), { status: answer.status });
  };
}";

/// A view, the pressed element, and the path whose answer redraws it.
const CASES: [(&str, &str, &str); 12] = [
    ("", "main [aria-label='The latest changes'] a", "/watch"),
    ("", "#tabs a[href='#/flows']", "/watch"),
    ("frontends", ".window tbody a", "/watch"),
    ("service/shop/web", "a[href^='#/diagnose/']", "/watch"),
    ("service/shop/web", "g.part:first-of-type", "/watch"),
    ("time?services=shop/web", "g.part:first-of-type", "/watch"),
    ("history", ".same button", "/history"),
    ("refusals", ".same button", "/refusals"),
    ("flows", "main h2", "/flows"),
    ("apiserver", "main h2", "/apiserver"),
    ("events", ".same button", "/events"),
    ("diagnose/shop/web", "main h2 a", "/diagnose"),
];

fn change(node: &Node) {
    for number in 0..CHANGES {
        node.write("web.yaml", &service(&["10.1.0.1", &format!("10.1.1.{number}")]));
        pause(PACE);
    }
}

/// Counts the clicks on an element, and suppresses their effect.
fn counting(selector: &str) -> String {
    format!(
        "(it => {{ window.clicks = 0; it.addEventListener('click', (event) => {{ window.clicks += 1; \
         event.preventDefault(); event.stopPropagation(); }}, true); return true; }})(document.querySelector({selector:?}))"
    )
}

/// Whether one press is a click that begins before the held-back data comes, and ends after it.
#[track_caller]
fn press(
    browser: &mut Browser,
    node: &Node,
    pointer: Pointer,
    (view, selector, path): (&str, &str, &str),
) -> bool {
    browser.open("about:blank");
    browser.open(&node.url(view));
    browser.until_text("#alive", "live");
    browser.until(&format!("!!document.querySelector({selector:?})"));
    browser.value(&format!("(window.shut({path:?}), 1)"));
    change(node);
    // The page does not repeat a diagnosis by itself; a user must click the button.
    if path == "/diagnose" {
        browser.value(
            "([...document.querySelectorAll('main button')].find(it => it.textContent === 'Look again').click(), 1)",
        );
    }
    browser.until(&format!("window.waits({path:?})"));
    assert_eq!(browser.value(&counting(selector)), true);
    let place = browser.stands(selector);
    let held = json!({"type": "pause", "duration": HELD.as_millis()});
    browser.pointer(pointer, &[Browser::to(&place), Browser::down(), held, Browser::up()]);
    browser.value("window.clicks") == 1
}

/// All views with a mouse, and the first one with the other pointers. Firefox's driver has no pen, and its long touch
/// is no click. One browser suffices for the other views.
fn presses(kind: Kind) -> Vec<(Pointer, (&'static str, &'static str, &'static str))> {
    let (cases, others) = match kind {
        Kind::Chromium => (&CASES[..], &[Pointer::Touch, Pointer::Pen][..]),
        Kind::Firefox => (&CASES[..5], &[][..]),
    };
    let by_mouse = cases.iter().map(|case| (Pointer::Mouse, *case));
    by_mouse.chain(others.iter().map(|pointer| (*pointer, CASES[0]))).collect()
}

#[track_caller]
fn loses_no_press(kind: Kind) {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let mut browser = Browser::start(kind);
    browser.first(GATE);
    let mut lost = presses(kind);
    lost.retain(|(pointer, case)| !press(&mut browser, &node, *pointer, *case));
    assert!(lost.is_empty(), "{kind:?} lost {lost:?}");
}

#[test]
fn a_click_is_not_lost_during_changes() {
    loses_no_press(Kind::Chromium);
}

#[test]
fn a_click_is_not_lost_in_firefox_either() {
    loses_no_press(Kind::Firefox);
}

#[test]
fn a_held_pointer_does_not_stop_the_page() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    let mut browser = Browser::start(BOTH[0]);
    for (view, shown) in [("service/shop/web", ".ways"), ("history", "[aria-label='Changes']")] {
        node.write("web.yaml", &service(&["10.1.0.1"]));
        browser.open("about:blank");
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
        browser.until_text(shown, "10.1.0.1");
        let place = browser.stands("main");
        browser.pointer(Pointer::Mouse, &[Browser::to(&place), Browser::down()]);
        for backend in ["10.1.2.1", "10.1.2.2"] {
            node.write("web.yaml", &service(&[backend]));
            browser.until_text(shown, backend);
        }
        browser.pointer(Pointer::Mouse, &[Browser::up()]);
    }
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn typed_text_selection_and_focus_survive_changes() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for (number, kind) in BOTH.into_iter().enumerate() {
        let mut browser = Browser::start(kind);
        browser.open(&node.url("service/shop/web"));
        browser.until_text("#alive", "live");
        let mut last = 0;
        let mut change = |browser: &mut Browser| {
            last += 1;
            let backend = format!("10.1.{}.{last}", number + 3);
            node.write("web.yaml", &service(&[&backend]));
            browser.until_text(".ways", &backend);
        };
        browser.until("!!document.querySelector('#from')");
        browser.value("(document.querySelector('#from').focus(), 1)");
        browser.keys("198.18");
        change(&mut browser);
        browser.keys(".0.9");
        assert_eq!(browser.value("document.querySelector('#from').value"), "198.18.0.9", "{kind:?}");
        browser.value("(getSelection().selectAllChildren(document.querySelector('[aria-label=Changes] tr:last-child')), 1)");
        let marked = browser.value("String(getSelection())");
        assert_ne!(marked, "", "{kind:?}");
        change(&mut browser);
        assert_eq!(browser.value("String(getSelection())"), marked, "{kind:?}");
        let button = "document.querySelector('.same button')";
        browser.value(&format!("({button}.focus(), 1)"));
        change(&mut browser);
        assert_eq!(browser.value(&format!("document.activeElement === {button}")), true, "{kind:?}");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

/// The browser performs a click's default action after all listeners.
#[test]
fn a_click_opens_its_target_during_changes() {
    let node = Node::start(&[("web.yaml", &service(&["10.1.0.1"]))]);
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.first(GATE);
        browser.open(&node.url("time?services=shop/web"));
        browser.until_text("#alive", "live");
        browser.until("!!document.querySelector('main summary')");
        browser.value("(window.shut('/watch'), 1)");
        change(&node);
        browser.until("window.waits('/watch')");
        let place = browser.stands("main summary");
        let held = json!({"type": "pause", "duration": HELD.as_millis()});
        browser.pointer(Pointer::Mouse, &[Browser::to(&place), Browser::down(), held, Browser::up()]);
        browser.until("!!document.querySelector('g.part[aria-label*=\"2 backends\"]')");
        assert_eq!(browser.value("document.querySelector('main details').open"), true, "{kind:?}");
        browser.until_text("main details table", "serving");
    }
}
