//! The cost of the installed daemon. Each result is printed; docs/performance.md has them. No test judges a time by
//! itself, but as a ratio to another measurement of the same run.

use std::fmt::Write;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause};
use holdfast_tests::host::Host;
use nix::time::{ClockId, clock_gettime};

use super::{CONFIG, First, address, boot, config, install, property, serving};

const MEMORY_MAX: u64 = 25 << 20;

const IDLE_WATCHED: Duration = Duration::from_secs(60);

/// How often a reader, which wakes up once a second like the daemon, reads its process's state. An idle daemon takes
/// about twice its time, and both take longer on a slow or busy machine.
const READS: usize = 40;

/// The limit of an idle daemon's time as a multiple of the reader's: a daemon that polls ten times a second takes
/// twenty times as much.
const IDLE_RATIO_MAX: f64 = 8.0;

/// The limit of a start with a thousand services as a multiple of one with a single service: twice is usual, and a
/// quadratic start would take a hundred times as long.
const START_RATIO_MAX: f64 = 8.0;

/// Other load makes some of them slower; the fastest counts.
const STARTS: usize = 7;

const ROUNDS: usize = 50;

fn many(services: usize) -> String {
    let mut text = String::new();
    for number in 0..services {
        let vip = format!("10.97.{}.{}:80", number / 250, number % 250 + 1);
        let backends: Vec<String> =
            (0..10).map(|it| format!("\"10.1.{}.{}:8080\"", number / 250, it * 25 + 1)).collect();
        let backends = backends.join(", ");
        writeln!(
            text,
            "[[service]]\nname = \"web-{number}\"\nfrontends = [\"{vip}\"]\nbackends = [{backends}]"
        )
        .unwrap();
    }
    text
}

fn start_with(services: usize) -> Host {
    let host = boot();
    install(&host, First);
    host.write(CONFIG, &many(services)).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    host
}

fn number(host: &Host, name: &str) -> u64 {
    property(host, name).parse().unwrap()
}

/// The size of kernel maps depends on the node's memory, and they exist whether they are mapped or not.
#[test]
fn memory_with_a_hundred_services() {
    let host = start_with(100);
    pause(Duration::from_secs(3));
    let pid = property(&host, "MainPID");
    let mappings = host.run(&["cat", &format!("/proc/{pid}/smaps")]).unwrap().expect_success();
    let (mut own, mut maps, mut is_map) = (0, 0, false);
    for line in mappings.lines() {
        if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            is_map = line.contains("bpf-map");
        } else if let Some(resident) = line.strip_prefix("Rss:") {
            let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
            *(if is_map { &mut maps } else { &mut own }) += kib;
        }
    }
    println!("resident with 100 services: {own} kB, and {maps} kB of maps");
    assert!(own > 0 && own * 1024 <= MEMORY_MAX, "{own} kB, and {maps} kB of maps");
}

/// CPU time of this thread.
fn spent() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The CPU time of the reader during its measurement.
fn reader() -> Duration {
    let before = spent();
    for _ in 0..IDLE_WATCHED.as_secs() {
        pause(Duration::from_secs(1));
        for _ in 0..READS {
            std::fs::read("/proc/thread-self/status").unwrap();
        }
    }
    spent() - before
}

#[test]
fn cpu_time_of_an_idle_daemon() {
    let host = start_with(100);
    pause(Duration::from_secs(5));
    let before = number(&host, "CPUUsageNSec");
    let reader = reader();
    let daemon = Duration::from_nanos(number(&host, "CPUUsageNSec") - before);
    let [share, of_reader] = [IDLE_WATCHED, reader].map(|it| daemon.as_secs_f64() / it.as_secs_f64());
    println!("idle with 100 services: {:.3} % of a CPU, {of_reader:.2} × a reader", share * 100.0);
    assert!(of_reader <= IDLE_RATIO_MAX, "{daemon:?}, where a reader takes {reader:?}");
}

/// Starts the daemon as after a boot: nothing in the kernel, everything in the snapshot.
fn start_again(host: &Host) -> Duration {
    host.run(&["systemctl", "stop", "holdfast"]).unwrap().expect_success();
    host.run(&["holdfast", "cleanup"]).unwrap().expect_success();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    let from = number(host, "ExecMainStartTimestampMonotonic");
    Duration::from_micros(number(host, "ActiveEnterTimestampMonotonic") - from)
}

/// The fastest and the median start.
fn starts(services: usize) -> [Duration; 2] {
    let host = start_with(services);
    pause(Duration::from_secs(2));
    let mut clock: Vec<_> = (0..STARTS).map(|_| start_again(&host)).collect();
    clock.sort();
    [clock[0], clock[STARTS / 2]]
}

/// Compares with one service, which loads the same programs on the same machine.
#[test]
fn time_to_ready_with_a_thousand_saved_services() {
    let [[one, _], [fastest, median]] = [1, 1_000].map(starts);
    let ratio = fastest.as_secs_f64() / one.as_secs_f64();
    println!(
        "from start to READY with 1,000 services: {median:?} (fastest {fastest:?}), {ratio:.2} × as long as with one ({one:?})"
    );
    assert!(ratio <= START_RATIO_MAX, "{ratio}");
}

/// The median of reloads that change a service: read the file, change tables, write the kernel, log lines.
fn reloads(host: &Host) -> Duration {
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        host.write(CONFIG, &config(["127.0.0.1:8082", "127.0.0.1:8081"][round % 2])).unwrap();
        let words =
            ["curl", "--silent", "--fail", "--request", "POST", "--unix-socket", "/run/holdfast/admin.sock"];
        let began = Stopwatch::start();
        host.run(&[&words[..], &["http://x/reload"]].concat()).unwrap().expect_success();
        took.push(began.read());
    }
    took.sort();
    took[ROUNDS / 2]
}

#[test]
fn a_stopped_journal_costs_changes_nothing() {
    let (host, _one) = serving();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();
    let running = reloads(&host);
    host.run(&["systemctl", "kill", "--signal", "STOP", "systemd-journald"]).unwrap().expect_success();
    // The socket's buffer is full soon.
    reloads(&host);
    let stopped = reloads(&host);
    println!("a reload that changes a service: {running:?}; with a stopped journald: {stopped:?}");
    assert!(stopped <= running * 3, "{running:?} {stopped:?}");
}
