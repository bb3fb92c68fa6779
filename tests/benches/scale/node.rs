//! The cost to one node by the number of services with ten endpoints: starts, memory, changes, a rolling update of
//! everything, disk writes, and bytes from the apiserver.

use std::fs;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, Stopwatch, pause, wait_for, wait_until};
use holdfast_tests::bed::Location;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::figures::Figure;
use holdfast_tests::size::sized;

use super::process::{cpu, forget_most, megabytes, written};
use super::stage::{Bystander, ENDPOINTS, Size, Stage, start};

const SIZES: [u32; 3] = [1_000, 10_000, 100_000];

/// Changes of one service, each after a pause in which the node is idle.
const CHANGES: usize = 300;
const PAUSE: Duration = Duration::from_millis(10);

/// How long an idle node is measured, after as long a rest.
const IDLE: Duration = Duration::from_secs(10);

/// A node that writes nothing for this long has nothing left to write.
const STILL: Duration = Duration::from_secs(1);

/// A changed state is saved within a minute.
const WRITTEN: Duration = Duration::from_secs(70);

const GROUP: &str = "One node, by the number of services of 10 endpoints";

/// Every column. The short form has one, with few services.
pub(super) fn measure() {
    for services in SIZES.into_iter().take(sized(SIZES.len(), 1)) {
        let size = Size { services: sized(services, 50), endpoints: ENDPOINTS };
        Node { stage: &Stage::new(size), of: format!("{services} services") }.measure();
    }
}

struct Node<'a> {
    stage: &'a Stage,
    of: String,
}

impl Node<'_> {
    fn tell(&self, what: &str, draws: Vec<f64>) {
        Figure::from_draws(GROUP, what, &self.of, draws).tell().unwrap();
    }

    fn tell_one(&self, what: &str, value: f64) {
        self.tell(what, vec![value]);
    }

    fn measure(&self) {
        let mut daemon = self.stage.daemon();
        self.first_start(&mut daemon);
        self.changes(&daemon);
        self.rolling(&daemon);
        self.listed_again(&daemon);
        self.idle(&daemon);
        daemon.stop().unwrap();
        self.tell_one(
            "s from a start until all is served, kept in the kernel",
            start(&mut daemon).as_secs_f64(),
        );
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
        self.stage.away();
        self.tell_one(
            "s from a start until all is served, from the file alone",
            start(&mut daemon).as_secs_f64(),
        );
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
    }

    fn first_start(&self, daemon: &mut Daemon<'_>) {
        let before = self.received();
        self.tell_one("s from a start until all is served, from the apiserver", start(daemon).as_secs_f64());
        let pid = daemon.pid().unwrap();
        self.tell_one("s of a processor for it", cpu(pid).as_secs_f64());
        self.tell_one("MB of lists from the apiserver", (self.received() - before) / 1e6);
        self.tell_one("MB resident at most until then", megabytes(pid).1);
    }

    fn changes(&self, daemon: &Daemon<'_>) {
        let pid = daemon.pid().unwrap();
        let mut bystander = Bystander::arrive(daemon);
        pause(sized(IDLE / 2, Duration::ZERO));
        let (spent, received) = (cpu(pid), self.received());
        let changes: u32 = sized(CHANGES, 5).try_into().unwrap();
        let times: Vec<f64> = (0..changes)
            .map(|_| {
                pause(PAUSE);
                bystander.change(self.stage).as_secs_f64() * 1e3
            })
            .collect();
        let (spent, received) = (cpu(pid) - spent, self.received() - received);
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        self.tell("ms from a write at the apiserver until a watcher is told, median", times);
        self.tell_one("the same, p99", sorted[sorted.len() * 99 / 100]);
        self.tell_one("ms of a processor for it", spent.as_secs_f64() * 1e3 / f64::from(changes));
        self.tell_one(
            "kB from the apiserver for one slice of 1 endpoint",
            received / 1e3 / f64::from(changes),
        );
        self.tell_one("MB resident", megabytes(pid).0);
    }

    /// Replaces the ten endpoints of each slice, as fast as the apiserver writes.
    fn rolling(&self, daemon: &Daemon<'_>) {
        let pid = daemon.pid().unwrap();
        let Size { services, .. } = self.stage.size;
        let mut bystander = Bystander::arrive(daemon);
        forget_most(pid);
        let (spent, received, wrote, begun) = (cpu(pid), self.received(), written(pid), Stopwatch::start());
        (0..services).for_each(|at| self.stage.write(at, 2));
        // One watch has all changes, so this one arrives after the others.
        bystander.change(self.stage);
        let took = begun.read().as_secs_f64();
        let each = f64::from(services);
        self.tell_one("s for a change of all slices", took);
        self.tell_one("ms of a processor for each", (cpu(pid) - spent).as_secs_f64() * 1e3 / each);
        self.tell_one(
            "kB from the apiserver for a slice of 10 endpoints",
            (self.received() - received) / 1e3 / each,
        );
        self.tell_one("MB resident at most meanwhile", megabytes(pid).1);
        pause(sized(IDLE / 2, Duration::ZERO));
        self.tell_one("kB written to the disk for each", (written(pid) - wrote) / 1e3 / each);
    }

    /// Compacts the version that the node has read, and changes nothing else.
    fn listed_again(&self, daemon: &Daemon<'_>) {
        let pid = daemon.pid().unwrap();
        let (ops, lists, spent) = (self.settled(), self.lists(), cpu(pid));
        forget_most(pid);
        self.stage.forget();
        wait_until(std::fmt::from_fn(|f| f.write_str(&daemon.logged())), || self.lists() >= lists + 2.0);
        self.tell_one("s of a processor for lists in which nothing is new", (cpu(pid) - spent).as_secs_f64());
        self.tell_one("writes to the maps for them", self.metric("holdfast_ops_total") - ops);
        self.tell_one("MB resident at most, for them", megabytes(pid).1);
    }

    fn idle(&self, daemon: &Daemon<'_>) {
        let pid = daemon.pid().unwrap();
        let idle = sized(IDLE, Duration::from_millis(100));
        pause(idle);
        if sized(true, false) {
            self.written_down();
        }
        self.tell_one("MB resident, with nothing left to do", megabytes(pid).0);
        let spent = cpu(pid);
        pause(idle);
        let share = (cpu(pid) - spent).as_secs_f64() / idle.as_secs_f64();
        self.tell_one("thousandths of a processor while nothing happens", share * 1e3);
    }

    /// Waits until the current state is saved, or was saved before: while nothing happens, it would not be saved
    /// again.
    fn written_down(&self) {
        let saved = || self.metric("holdfast_state_written_timestamp_seconds");
        let (before, deadline) = (saved(), Deadline::after(WRITTEN));
        while saved() <= before && !deadline.is_over() {
            pause(STILL);
        }
    }

    /// The writes to the maps, once the last ones are done: the space of a former list is wiped when no program reads
    /// it any more.
    fn settled(&self) -> f64 {
        let writes = || self.metric("holdfast_ops_total");
        let mut before = writes();
        wait_for("writes to the maps do not end", || {
            pause(STILL);
            let now = writes();
            (std::mem::replace(&mut before, now) == now).then_some(now)
        })
    }

    /// Bytes on the node's loopback from and to the apiserver, with TLS and requests.
    fn received(&self) -> f64 {
        let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let text = self.stage.bed.within(Location::NODE, read).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn lists(&self) -> f64 {
        self.metric("holdfast_watch_lists_total{kind=\"services\"}")
            + self.metric("holdfast_watch_lists_total{kind=\"endpointslices\"}")
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.stage.metrics();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("there is no {name}"))
    }
}
