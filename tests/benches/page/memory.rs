//! The page's memory in a browser during a hundred changes a second.

use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Deadline, pause};
use holdfast_tests::size::sized;

use crate::browser::{Browser, Kind};
use crate::changer::{self, Changer};
use crate::process::{cpu, in_group, private};

/// Views that an operator leaves open, each for a third of the time.
const VIEWS: [&str; 3] =
    ["", "time?services=load/web-0,load/web-1,load/web-2,load/web-3,load/web-4,load/web-5", "history"];

/// The page's promised limit.
const MEGABYTES_MAX: f64 = 100.0;

/// The most nodes per node of the document, which may just have been redrawn.
const NODES_MAX: f64 = 2.5;

pub(crate) const ARGUMENTS: [&str; 1] = ["--enable-precise-memory-info"];

/// The time between two rows, and their number.
fn rows() -> (Duration, u32) {
    let minutes = std::env::var("MINUTES").ok().map(|minutes| minutes.parse().unwrap());
    (sized(Duration::from_secs(60), Duration::from_secs(1)), minutes.unwrap_or(6))
}

pub(crate) fn measure() {
    let (node, changer) = (changer::node(), Changer::default());
    let mut browser = Browser::start_with(Kind::Chromium, &ARGUMENTS);
    browser.keep_no_answers();
    browser.open(&node.url(""));
    browser.until_text("#alive", "live");
    let renderer = renderer(&mut browser);
    println!("one page, {} services; MB of its renderer that are private, at most", changer::services());
    row(&mut browser, renderer, "at rest", private(renderer), 0);
    let most = std::thread::scope(|scope| {
        let _going = changer.start(scope, &node);
        watched(&mut browser, renderer, &changer)
    });
    println!("most of all: {most:.1} MB private; asked: {MEGABYTES_MAX}");
    assert!(most <= MEGABYTES_MAX, "the page takes {most} MB");
}

fn watched(browser: &mut Browser, renderer: u32, changer: &Changer) -> f64 {
    let (pause, rows) = rows();
    let mut most: f64 = 0.0;
    let view_of = |row: u32| VIEWS[((row - 1) * 3 / rows) as usize];
    for row in 1..=rows {
        let view = view_of(row);
        browser.value(&format!("(location.hash = '#/{view}', 1)"));
        let highest = highest(renderer, Deadline::after(pause));
        let shown = view.split('?').next().filter(|name| !name.is_empty()).unwrap_or("now");
        self::row(browser, renderer, shown, highest, changer.done());
        most = most.max(highest);
        // On a busy machine it may just be reconnecting.
        browser.until_text("#alive", "live");
        if row == rows || view_of(row + 1) != view {
            kept(browser, shown);
        }
    }
    most
}

/// The memory that the machine needs: without a forced collection.
fn highest(renderer: u32, end: Deadline) -> f64 {
    let mut most = private(renderer);
    while !end.is_over() {
        pause(end.remaining().min(Duration::from_secs(1)));
        most = most.max(private(renderer));
    }
    most
}

fn row(browser: &mut Browser, renderer: u32, view: &str, highest: f64, changes: u32) {
    let elements = browser.value("document.querySelectorAll('*').length");
    let used = cpu(renderer, None).as_secs();
    println!("{view:8} {highest:6.1}; {elements} elements, {changes} changes, {used} s of CPU time");
}

/// A view that leaks redrawn content shows it by its nodes, long before its megabytes.
fn kept(browser: &mut Browser, view: &str) {
    // Garbage is freed within a redraw or two; leaked nodes stay.
    let end = Deadline::after(TEST_TIMEOUT);
    let mut nodes = self::nodes(browser);
    while nodes > NODES_MAX && !end.is_over() {
        pause(Duration::from_millis(200));
        nodes = self::nodes(browser);
    }
    println!(
        "{view:8} after a collection: {:.1} MB of JavaScript, {nodes:.2} nodes for each of it",
        heap(browser)
    );
    assert!(
        nodes <= NODES_MAX,
        "{view} keeps what it has thrown away: {nodes} nodes for each in the document"
    );
}

/// The nodes left after a collection, per node of the document.
fn nodes(browser: &mut Browser) -> f64 {
    let all = browser.collected();
    let shown = "(() => { const all = document.createNodeIterator(document); let count = 0; \
                 while (all.nextNode()) count++; return count; })()";
    all as f64 / browser.value(shown).as_f64().unwrap()
}

/// Megabytes of JavaScript.
pub(crate) fn heap(browser: &mut Browser) -> f64 {
    browser.value("performance.memory.usedJSHeapSize").as_f64().unwrap() / f64::from(1 << 20)
}

/// The browser's renderer process of this page: the busiest one.
pub(crate) fn renderer(browser: &mut Browser) -> u32 {
    let all = in_group(browser.group(), "--type=renderer");
    let before: Vec<Duration> = all.iter().map(|pid| cpu(*pid, None)).collect();
    browser.value("(() => { const end = Date.now() + 1000; while (Date.now() < end); return 1; })()");
    let worked = all.iter().zip(before).max_by_key(|(pid, before)| cpu(**pid, None).saturating_sub(*before));
    *worked.unwrap_or_else(|| panic!("no renderer in group {}", browser.group())).0
}
