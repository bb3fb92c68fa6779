//! How many connections a page uses, of the few that the daemon has for all clients.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Deadline, pause, wait_until};

use crate::browser::{BOTH, Browser};
use crate::node::Node;

/// The daemon's connections on this port.
fn open(port: u16) -> usize {
    let own = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let is_own = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&own)) && words.nth(1) == Some("01")
    };
    table.lines().filter(is_own).count()
}

/// The stream, one for requests, and one that is being replaced.
const MOST: usize = 3;

/// The daemon closes a connection after five idle seconds.
const WINDOW: Duration = Duration::from_secs(6);

/// The most open connections within a window.
fn most_within_window(port: u16) -> usize {
    let end = Deadline::after(WINDOW);
    let mut most = 0;
    while !end.is_over() {
        most = most.max(open(port));
        pause(Duration::from_millis(10));
    }
    most
}

/// How many requests began before the previous answer was complete. The browser's clock has a resolution of
/// milliseconds.
const ASKED_AT_ONCE: &str = "(() => {
  const asked = performance
    .getEntriesByType('resource')
    .filter(it => it.initiatorType === 'fetch' && !it.name.endsWith('/watch'))
    .sort((one, other) => one.startTime - other.startTime);
  const atOnce = asked.filter((it, at) => at > 0 && it.startTime + 1 < asked[at - 1].responseEnd);
  return [asked.length, atOnce.length];
})()";

/// The most connections that a view needs with a daemon of its own. The document's connection is idle at first. On a
/// busy machine a browser may open another connection before it has released the last one; one of them then idles,
/// unless that repeats. The real need shows in each window.
fn most_of(view: &str) -> usize {
    let node = Node::demo();
    let mut browser = Browser::start(BOTH[0]);
    browser.open(&node.url(view));
    browser.until_text("#alive", "live");
    pause(WINDOW);
    let end = Deadline::after(TEST_TIMEOUT);
    let mut most = most_within_window(node.port());
    while most > MOST && !end.is_over() {
        most = most_within_window(node.port());
    }
    let asked = browser.value(ASKED_AT_ONCE);
    assert!(asked[0].as_u64().is_some_and(|all| all > 6), "{view}: {asked}");
    assert_eq!(asked[1], 0, "{view}: {asked}");
    most
}

#[test]
fn a_page_uses_two_connections_one_for_its_stream() {
    let views = ["", "time?services=demo/web,demo/empty,default/kubernetes", "service/demo/web", "history"];
    std::thread::scope(|scope| {
        let looking = views.map(|view| (view, scope.spawn(move || most_of(view))));
        for (view, looks) in looking {
            let most = looks.join().unwrap();
            assert!((1..=MOST).contains(&most), "{view}: {most}");
            println!("{view:10} {most} connections at most");
        }
    });
}

/// The page closes its stream after half a minute without being visible; here after a tenth of that.
const SOONER: &str = "() => {
  const timeout = window.setTimeout;
  window.setTimeout = (wake, time) => timeout(wake, time === 30000 ? 3000 : time);
}";

/// A page whose visibility the test controls.
fn watched(node: &Node) -> Browser {
    let mut browser = Browser::start(BOTH[0]);
    browser.first(SOONER);
    browser.first("() => Object.defineProperty(document, 'hidden', { get: () => window.unseen ?? false })");
    browser.open(&node.url("frontends"));
    browser.until_text("#alive", "live");
    browser
}

fn see(browser: &mut Browser, is_seen: bool) {
    browser.value(&format!(
        "(window.unseen = {}, document.dispatchEvent(new Event('visibilitychange')), 1)",
        !is_seen
    ));
}

/// Hides the page until it has no connection.
fn look_away(browser: &mut Browser, node: &Node) {
    see(browser, false);
    wait_until("a page without connections", || open(node.port()) == 0);
}

#[test]
fn a_hidden_page_closes_its_stream_and_catches_up_when_visible() {
    let node = Node::start(&[("web.yaml", &crate::live::service(&["10.1.0.1"]))]);
    let mut browser = watched(&node);
    look_away(&mut browser, &node);
    node.write("web.yaml", &crate::live::service(&["10.1.0.1", "10.1.0.2"]));
    // Only time shows that a hidden page stays silent.
    pause(Duration::from_secs(1));
    assert_eq!(open(node.port()), 0);
    see(&mut browser, true);
    browser.until_text("#alive", "live");
    browser.until_text(".window tbody td:nth-of-type(4)", "2");
    assert_eq!(browser.console(), [""; 0]);
}

/// More than the daemon's limit.
const ALL: usize = 140;

#[test]
fn a_page_reports_that_all_connections_are_taken() {
    let node = Node::demo();
    let mut browser = watched(&node);
    look_away(&mut browser, &node);
    std::thread::scope(|scope| {
        let mut taken: Vec<TcpStream> = Vec::new();
        let mut fill = || {
            taken.retain(is_open);
            taken.extend((taken.len()..ALL).map(|_| watcher(node.port())));
            pause(Duration::from_millis(50));
        };
        wait_until("no room for one more", || {
            fill();
            !has_place(node.port())
        });
        let page = scope.spawn(|| {
            see(&mut browser, true);
            // Of many waiting clients one may get a connection: the page requests what no stream brings.
            let told = ["has not answered for", "asked every few seconds", "could not be queried"];
            browser.until(&format!(
                "{told:?}.some(it => document.querySelector('#alive').textContent.includes(it))"
            ));
            println!("{}", browser.text("#alive"));
        });
        while !page.is_finished() {
            fill();
        }
        page.join().unwrap();
    });
    browser.until("document.querySelector('#alive').textContent === 'live'");
}

/// A watcher without a request would be closed for the page's.
fn watcher(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // Without a free place, the daemon may have closed it already.
    let _ = write!(stream, "GET /watch HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    stream
}

/// Whether one more watcher is accepted. A busy daemon accepts clients one after another.
fn has_place(port: u16) -> bool {
    let mut head = [0; "HTTP/1.1 200".len()];
    let mut stream = watcher(port);
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.read_exact(&mut head).is_ok() && head.ends_with(b"200")
}

/// Whether the daemon has not closed it. Discards received data.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut told = [0; 4096];
    loop {
        match stream.read(&mut told) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}
