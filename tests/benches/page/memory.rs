//! What the page takes in a browser that has it open while a hundred changes a second come.

use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_tests::size::sized;

use crate::browser::{Browser, Kind};
use crate::changer::{self, Changer};
use crate::process::{cpu, in_group, private};

/// What an operator leaves open: each for a third of the time.
const VIEWS: [&str; 3] =
    ["", "time?services=load/web-0,load/web-1,load/web-2,load/web-3,load/web-4,load/web-5", "history"];

/// As the page promises.
const MEGABYTES_MAX: f64 = 100.0;

/// So that what nobody refers to can be told from what is kept.
pub(crate) const ARGUMENTS: [&str; 2] = ["--js-flags=--expose-gc", "--enable-precise-memory-info"];

/// Between two looks, and how many there are.
fn looks() -> (Duration, u32) {
    let minutes = std::env::var("MINUTES").ok().map(|minutes| minutes.parse().unwrap());
    (sized(Duration::from_secs(60), Duration::from_secs(1)), minutes.unwrap_or(3))
}

pub(crate) fn measure() {
    let (node, changer) = (changer::node(), Changer::default());
    let mut browser = Browser::start_with(Kind::Chromium, &ARGUMENTS);
    browser.open(&node.url(""));
    browser.until_text("#alive", "live");
    let renderer = renderer(&mut browser);
    println!(
        "one page, {} services; MB of its renderer that are private, of JavaScript after a collection",
        changer::services()
    );
    row(&mut browser, renderer, "at rest", 0);
    let most = std::thread::scope(|scope| {
        changer.start(scope, &node);
        let most = watched(&mut browser, renderer, &changer);
        changer.stop();
        most
    });
    println!("most of all: {most:.1} MB private; asked: {MEGABYTES_MAX}");
    assert!(most <= MEGABYTES_MAX, "the page takes {most} MB");
}

fn watched(browser: &mut Browser, renderer: u32, changer: &Changer) -> f64 {
    let (pause, looks) = looks();
    let begun = Instant::now();
    let mut most: f64 = 0.0;
    for look in 1..=looks {
        let view = VIEWS[((look - 1) * 3 / looks) as usize];
        browser.value(&format!("(location.hash = '#/{view}', 1)"));
        sleep((begun + pause * look).saturating_duration_since(Instant::now()));
        let shown = view.split('?').next().unwrap_or_default();
        most = most.max(row(browser, renderer, if shown.is_empty() { "now" } else { shown }, changer.done()));
        assert!(browser.text("#alive").contains("live"), "{}", browser.text("#alive"));
    }
    most
}

/// What it takes before a collection, which is what the machine has to have.
fn row(browser: &mut Browser, renderer: u32, view: &str, changes: u32) -> f64 {
    let private = private(renderer);
    let heap =
        browser.value("(gc(), performance.memory.usedJSHeapSize)").as_f64().unwrap() / f64::from(1 << 20);
    let elements = browser.value("document.querySelectorAll('*').length");
    let used = cpu(renderer, None).as_secs();
    println!(
        "{view:8} {private:6.1} {heap:6.1}; {elements} elements, {changes} changes, {used} s of CPU time"
    );
    private
}

/// The browser's process that runs this page: which of them works while the page does.
pub(crate) fn renderer(browser: &mut Browser) -> u32 {
    let all = in_group(browser.group(), "--type=renderer");
    let before: Vec<Duration> = all.iter().map(|pid| cpu(*pid, None)).collect();
    browser.value("(() => { const end = Date.now() + 1000; while (Date.now() < end); return 1; })()");
    let worked = all.iter().zip(before).max_by_key(|(pid, before)| cpu(**pid, None).saturating_sub(*before));
    *worked.unwrap_or_else(|| panic!("no renderer in group {}", browser.group())).0
}
