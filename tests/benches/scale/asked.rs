//! The cost of each request by users, pages and scrapers to a node with a large table: when its answer begins and
//! ends, the daemon's processor time, and the delay of another service's change.
//!
//! Requests use TCP, and the bystander the socket, so that its delay comes from the engine and the processors, not
//! from the listener's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::figures::Figure;
use holdfast_tests::size::sized;

use super::process::{cpu, forget_most, megabytes};
use super::stage::{Bystander, ENDPOINTS, Size, Stage, start};

const ASKED: u32 = 20;

const GROUP: &str = "What is asked of a node with 100,000 services of 10 endpoints";

/// The pause between two changes of the bystander.
const PAUSE: Duration = Duration::from_millis(5);

/// The HTTP requests, each of them repeated.
fn paths(size: Size) -> Vec<String> {
    let last = size.services - 1;
    let [_, b, c, d] = last.to_be_bytes();
    let address = format!("10.{}.{c}.{d}", 96 + b);
    let name = format!("default/web-{last}");
    [
        "/frontends".to_owned(),
        "/frontends?format=json".to_owned(),
        format!("/frontends?service={name}"),
        format!("/frontends?service={name}&format=json"),
        format!("/frontends?address={address}"),
        format!("/frontends?address={address}&format=json"),
        "/frontends?type=LoadBalancer&format=json".to_owned(),
        "/services".to_owned(),
        "/services?format=json".to_owned(),
        format!("/services?service={name}"),
        format!("/backends?service={name}"),
        "/backends?address=10.128.1.3".to_owned(),
        "/backends?format=json".to_owned(),
        "/version".to_owned(),
        "/readyz".to_owned(),
        "/services?service=-/-&format=json".to_owned(),
        "/apiserver?format=json".to_owned(),
        "/datapath?format=json".to_owned(),
        "/flows?limit=1".to_owned(),
        "/refusals".to_owned(),
        "/drains".to_owned(),
        "/history?limit=12".to_owned(),
        "/metrics".to_owned(),
        format!("/explain?service={name}"),
        format!("/explain?endpoint={address}:80"),
        "/explain?endpoint=10.128.1.3:8080".to_owned(),
        "/explain?endpoint=192.0.2.77:1".to_owned(),
        "/explain".to_owned(),
        format!("/explain?endpoint={address}:80&from=203.0.113.9"),
        format!("/diagnose?service={name}"),
        "/verify".to_owned(),
    ]
    .into()
}

/// Every row.
pub(super) fn measure() {
    let size = Size { services: sized(100_000, 100), endpoints: ENDPOINTS };
    let stage = Stage::new(size);
    let mut daemon = stage.daemon();
    start(&mut daemon);
    let name = format!("default/web-{}", size.services - 1);
    let mut asker = Asker::new(&stage, &daemon);
    for path in paths(size) {
        asker.row(&path, |first| stage.get(&path, first).len());
    }
    // The backends do not exist, so nothing is probed.
    let words: [&[&str]; 3] = [&["status"], &["diagnose", &name, "--no-probe"], &["verify"]];
    for words in words {
        asker.row(&format!("`holdfast {}`", words.join(" ")), |_| daemon.tell(words).unwrap().len());
    }
    daemon.stop().unwrap();
}

/// Sends requests while a bystander changes.
struct Asker<'a> {
    stage: &'a Stage,
    pid: u32,
    bystander: Bystander,
}

impl<'a> Asker<'a> {
    fn new(stage: &'a Stage, daemon: &Daemon<'_>) -> Self {
        let (pid, bystander) = (daemon.pid().unwrap(), Bystander::arrive(daemon));
        let mut asker = Self { stage, pid, bystander };
        let quiet = (0..sized(300, 5)).map(|_| asker.change()).collect();
        told("nothing", beside(quiet));
        asker
    }

    fn change(&mut self) -> Duration {
        pause(PAUSE);
        self.bystander.change(self.stage)
    }

    /// The processor time of one answer, while nothing else runs.
    fn spent(&self, ask: &impl Fn(&mut Duration) -> usize) -> Duration {
        let before = cpu(self.pid);
        again(ask);
        (cpu(self.pid) - before) / sized(ASKED, 1)
    }

    /// Repeats one request.
    fn row(&mut self, what: &str, ask: impl Fn(&mut Duration) -> usize + Sync) {
        forget_most(self.pid);
        let had = megabytes(self.pid).0;
        let ends = AtomicBool::new(false);
        let (asked, changes) = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let asked = again(&ask);
                ends.store(true, Ordering::Relaxed);
                asked
            });
            let mut changes = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                changes.push(self.change());
            }
            (asking.join().unwrap(), changes)
        });
        let spent = self.spent(&ask);
        let AnswerTimes { bytes, first, mut whole } = asked;
        whole.sort_unstable();
        let (middle, most) = (whole[whole.len() / 2], whole[whole.len() - 1]);
        let own = [("MB", bytes / 1e6), ("begins after, at most ms", ms(first))];
        let times = [("ms, median", ms(middle)), ("ms at most", ms(most)), ("ms of a processor", ms(spent))];
        told(what, own.into_iter().chain(times).chain([("MB more at most", megabytes(self.pid).1 - had)]));
        told(what, beside(changes));
    }
}

/// The size of an answer, its latest beginning, and the end of each.
struct AnswerTimes {
    bytes: f64,
    first: Duration,
    whole: Vec<Duration>,
}

fn again(ask: impl Fn(&mut Duration) -> usize) -> AnswerTimes {
    let mut asked = AnswerTimes { bytes: 0.0, first: Duration::ZERO, whole: Vec::new() };
    for _ in 0..sized(ASKED, 1) {
        let (begun, mut first) = (Stopwatch::start(), Duration::ZERO);
        asked.bytes = f64::from(u32::try_from(ask(&mut first)).unwrap());
        asked.whole.push(begun.read());
        asked.first = asked.first.max(first);
    }
    asked
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The times of the bystander's changes meanwhile.
fn beside(mut changes: Vec<Duration>) -> [(&'static str, f64); 2] {
    changes.sort_unstable();
    let at = |part: usize| changes.get((changes.len() * part / 100).min(changes.len().saturating_sub(1)));
    let at = |part| at(part).copied().map_or(f64::NAN, ms);
    [("a change beside it, ms, median", at(50)), ("most", at(100))]
}

fn told(what: &str, columns: impl IntoIterator<Item = (&'static str, f64)>) {
    for (of, value) in columns {
        Figure::from_draws(GROUP, what, of, vec![value]).tell().unwrap();
    }
}
