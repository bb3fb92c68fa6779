//! Printing: the answer, without the page's controls.

use crate::browser::{BOTH, Browser, Kind};
use crate::node::Node;

/// More than fit on a screen.
const SERVICES: usize = 1_200;

/// The limit at three dozen lines a sheet.
const SHEETS_MAX: usize = 60;

/// Records what is visible when the browser prepares the page for printing.
const LOOK: &str = "(() => { window.printed = {}; addEventListener('beforeprint', () => { \
    const seen = selector => [...document.querySelectorAll(selector)].some(it => it.getClientRects().length > 0); \
    window.printed = { rows: document.querySelectorAll('.window tbody th').length, \
        last: document.querySelector('.window tbody tr:last-of-type').innerText, \
        controls: ['nav', 'form', '.same', '.skip', 'footer', 'button'].filter(seen) }; }); return 1; })()";

#[test]
fn findings_are_printed_and_buttons_are_not() {
    let node = Node::with_services(SERVICES);
    for kind in BOTH {
        let mut browser = Browser::start(kind);
        browser.open(&node.url("frontends"));
        browser.until_text("[role=status]", "1,200 of 1,200 frontends");
        browser.value(LOOK);
        let all = browser.print();
        assert!(all.starts_with(b"%PDF-") && all.len() > 20_000, "{kind:?}: {} bytes", all.len());
        let printed = browser.value("window.printed");
        assert_eq!(printed["rows"], 1_000, "{kind:?}: {printed}");
        assert_eq!(printed["last"], "and 200 more", "{kind:?}");
        let rows = "document.querySelectorAll('.window tbody tr').length";
        assert!(browser.value(rows).as_u64().unwrap() < 100, "{kind:?}: as before when it is printed");
        // Firefox compresses its sheets; its rows are counted above.
        let sheets = all.windows(12).filter(|part| *part == b"/Type /Page\n").count();
        println!("{kind:?}: {} bytes, {sheets} sheets, {printed}", all.len());
        let are_some = (2..=SHEETS_MAX).contains(&sheets);
        assert!(are_some || matches!(kind, Kind::Firefox), "{kind:?}: {sheets} sheets");
        browser.click("#words");
        browser.keys("shop-117");
        browser.until_text("[role=status]", "11 of 1,200 frontends");
        assert!(browser.print().len() < all.len() / 4, "{kind:?}: what was not found is printed");
        assert_eq!(browser.console(), [""; 0], "{kind:?}");
    }
}

#[test]
fn controls_are_not_printed() {
    let node = Node::demo();
    let mut browser = Browser::start(BOTH[0]);
    for view in ["", "service/demo/web", "time?services=demo/web,demo/empty", "history"] {
        browser.open("about:blank");
        browser.open(&node.url(view));
        browser.until_text("#alive", "live");
        browser.until("!!document.querySelector('.same')");
        browser.paper();
        let shown = "['nav', 'form', '.same', '.skip', 'footer', 'button'].filter(selector => \
                     [...document.querySelectorAll(selector)].some(it => it.getClientRects().length > 0))";
        assert_eq!(browser.value(shown), serde_json::json!([]), "{view}");
        let cut = "[...document.querySelectorAll('.scroll, .strips, .window')].filter(it => \
                   getComputedStyle(it).overflowX !== 'visible').length";
        assert_eq!(browser.value(cut), 0, "{view}: what has to be scrolled is cut off");
    }
}
