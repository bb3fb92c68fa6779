//! The cost of fifty open pages to the engine and to the latency of changes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, Stopwatch, pause};
use holdfast_tests::size::sized;

use crate::changer::{self, CHANGING, Changer, TIMED};
use crate::node::Node;
use crate::process::cpu;

const PAGES: u64 = 50;

/// The requests of a page every five seconds, besides its stream.
const GENERAL: [&str; 6] =
    ["/version", "/readyz", "/services?service=-/-", "/apiserver", "/datapath", "/flows?limit=1"];
const GENERAL_PAUSE: Duration = Duration::from_secs(5);

/// The pause between two timed changes.
const TIMED_PAUSE: Duration = Duration::from_millis(50);

/// The cost of one change in a window of time.
#[derive(Default)]
struct Window {
    engine: Duration,
    daemon: Duration,
    step: Duration,
    seen: Vec<Duration>,
}

pub(crate) fn measure() {
    let (node, changer) = (changer::node(), Changer::default());
    let (rounds, mut alone, mut watched) = (sized(5, 1), Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let _going = changer.start(scope, &node);
        for round in 0..rounds {
            alone.push(window(&node, &changer, 2 * round));
            watched.push(with_pages(&node, || window(&node, &changer, 2 * round + 1)));
        }
    });
    println!("{} services, 100 changes a second; medians of {rounds} windows", changer::services());
    for (what, of) in FIGURES {
        let (nobody, pages) = (median(&alone, of), median(&watched, of));
        let ratio = pages.as_secs_f64() / nobody.as_secs_f64();
        println!("{what:40} nobody {nobody:>10.1?}, {PAGES} pages {pages:>10.1?}, ratio {ratio:.2}");
    }
}

type Figure = fn(&Window) -> Duration;

const FIGURES: [(&str, Figure); 5] = [
    ("engine's thread, CPU time of a change", |it| it.engine),
    ("one step by the daemon's metrics", |it| it.step),
    ("until a watcher has a change, p50", |it| at(&it.seen, 50)),
    ("until a watcher has a change, p99", |it| at(&it.seen, 99)),
    ("the whole daemon, CPU time of a change", |it| it.daemon),
];

fn median(windows: &[Window], of: Figure) -> Duration {
    let mut all: Vec<Duration> = windows.iter().map(of).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

fn at(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn window(node: &Node, changer: &Changer, nth: u32) -> Window {
    let end = Deadline::after(sized(Duration::from_secs(20), Duration::from_secs(1)));
    let mut stream = watch(node.port());
    let steps = steps(node.port());
    let (engine, daemon) = (cpu(node.pid(), Some("engine")), cpu(node.pid(), None));
    let (changes, mut seen, mut round) = (changer.done(), Vec::new(), nth * 10_000);
    while !end.is_over() {
        round += 1;
        seen.push(timed(node, &mut stream, round));
        pause(TIMED_PAUSE);
    }
    let all = (changer.done() - changes + u32::try_from(seen.len()).unwrap()).max(1);
    let engine = cpu(node.pid(), Some("engine")).saturating_sub(engine) / all;
    let daemon = cpu(node.pid(), None).saturating_sub(daemon) / all;
    let (count, sum) = self::steps(node.port());
    let step = Duration::from_secs_f64((sum - steps.1) / (count - steps.0));
    seen.sort_unstable();
    Window { engine, daemon, step, seen }
}

/// The time from the change of an object until a watcher gets it.
fn timed(node: &Node, stream: &mut impl BufRead, round: u32) -> Duration {
    let begun = Stopwatch::start();
    changer::change(node, TIMED, round);
    let (service, mut line) = (format!("\"load/web-{CHANGING}\""), String::new());
    while !line.contains(&service) {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
    }
    begun.read()
}

/// The number of the engine's steps, and their seconds.
fn steps(port: u16) -> (f64, f64) {
    let metrics = ask(port, "/metrics");
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse::<f64>().unwrap()
    };
    (value("holdfast_step_duration_seconds_count "), value("holdfast_step_duration_seconds_sum "))
}

fn with_pages<T>(node: &Node, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for nth in 0..sized(PAGES, 5) {
            let (stop, port) = (&stop, node.port());
            scope.spawn(move || page(port, stop, GENERAL_PAUSE.mul_f64(nth as f64 / PAGES as f64)));
        }
        // Waits until each page has its stream.
        pause(sized(GENERAL_PAUSE, Duration::from_millis(200)));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        done
    })
}

/// One page: its stream and its requests.
fn page(port: u16, stop: &AtomicBool, first: Duration) {
    let mut stream = watch(port);
    let (mut due, mut line) = (Deadline::after(first), String::new());
    while !stop.load(Ordering::Relaxed) {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
        if due.is_over() {
            due = Deadline::after(GENERAL_PAUSE);
            GENERAL.iter().for_each(|path| drop(ask(port, path)));
        }
    }
}

fn watch(port: u16) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(asked(port, "/watch", "text/event-stream", "keep-alive"));
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.contains(" 200 "), "{line}");
    stream
}

fn ask(port: u16, path: &str) -> String {
    let mut answer = String::new();
    asked(port, path, "*/*", "close").read_to_string(&mut answer).unwrap();
    answer
}

fn asked(port: u16, path: &str, accept: &str, connection: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost:{port}\r\naccept: {accept}\r\nconnection: {connection}\r\n\r\n"
    )
    .unwrap();
    stream
}
