//! Routes to addresses that a node announces: there while the node serves them, whatever becomes of the daemon.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::Switches;
use holdfast_tests::bed::{Bed, Location, Server};
use holdfast_tests::packets::Clients;

use crate::node::{SERVED, last_lines, on_a_node, run};

const CONFIG: &str = r#"
[[service]]
name = "web"
announce = "route"
frontends = ["203.0.113.77:80"]
backends = ["10.244.1.10:9090"]
health_check = { interval = "100ms", timeout = "100ms", fall = 1 }
"#;

const ADDRESS: &str = "203.0.113.77";
const BACKEND: &str = "10.244.1.10:9090";

/// How long an address may be announced after the table has no backend for it.
const WITHDRAWN: Duration = Duration::from_millis(100);

/// Rounds of which the fastest counts: a busy machine may take a processor away for longer than that.
const ROUNDS: usize = 3;

fn server(bed: &Bed) -> Server {
    bed.tell_whom(Location::far("pod-a"), "a", &[BACKEND.parse().unwrap()]).unwrap()
}

/// The routes of holdfast's own.
fn routes(bed: &Bed) -> String {
    run(bed, "node", "ip", "route show table all proto 104").trim().to_owned()
}

#[track_caller]
fn wait_for(bed: &Bed, daemon: &Daemon<'_>, is_there: bool) {
    let begun = Instant::now();
    while routes(bed).contains(ADDRESS) != is_there {
        let said = last_lines(daemon);
        assert!(begun.elapsed() < SERVED, "the route is there: {}; the daemon said:\n{said}", !is_there);
        thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn check_served(clients: &mut Clients, is_served: bool) {
    let question = Question::new(Transport::Tcp, format!("{ADDRESS}:80").parse().unwrap());
    let outcome = clients.of("outside").unwrap().ask_all(&[question]).unwrap().remove(0);
    assert_eq!(matches!(outcome, Outcome::Answered { .. }), is_served, "{outcome:?}");
}

/// The kernel's notices of routes, each with the moment at which it came.
struct Notices {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Notices {
    fn of(bed: &Bed) -> Self {
        let mut command = bed.command(Location::OUTSIDE, "ip").unwrap();
        let mut child = command.args(["-4", "monitor", "route"]).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (out, lines) = channel();
        thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if out.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let notices = Self { child, lines };
        notices.wait_until_they_come(bed);
        notices
    }

    /// A route that comes and goes again tells when the kernel's notices are heard.
    fn wait_until_they_come(&self, bed: &Bed) {
        let begun = Instant::now();
        while self.lines.recv_timeout(Duration::from_millis(100)).is_err() {
            assert!(begun.elapsed() < SERVED, "no notice comes");
            for change in ["add", "delete"] {
                run(bed, "node", "ip", &format!("route {change} blackhole 203.0.113.78 table 181"));
            }
        }
    }

    /// When the route was taken out.
    fn taken_out(&self) -> Instant {
        loop {
            let (at, line) = self.lines.recv_timeout(SERVED).unwrap();
            if line.starts_with("Deleted") && line.contains(ADDRESS) {
                return at;
            }
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_address_is_announced_while_it_is_served_and_withdrawn_within_a_tenth_of_a_second() {
    on_a_node(Switches::default(), CONFIG, |bed, daemon, clients| {
        assert_eq!(routes(bed), "", "no backend answers yet");
        let backend = server(bed);
        wait_for(bed, daemon, true);
        assert_eq!(routes(bed), format!("blackhole {ADDRESS} table 180"));
        check_served(clients, true);
        let notices = Notices::of(bed);
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            daemon.tell(&["drain", "10.244.1.10"]).unwrap();
            took.push(notices.taken_out().saturating_duration_since(begun));
            check_served(clients, true);
            daemon.tell(&["undrain", "10.244.1.10"]).unwrap();
            wait_for(bed, daemon, true);
        }
        println!("from the order to drain to the kernel's notice: {took:?}");
        assert!(took.iter().any(|took| *took < WITHDRAWN), "{took:?}");
        let begun = Instant::now();
        drop(backend);
        let took = notices.taken_out().saturating_duration_since(begun);
        println!("from the end of the last backend to the kernel's notice: {took:?}");
        check_served(clients, false);
    });
}

#[test]
fn the_route_outlives_the_daemon_and_goes_with_the_datapath() {
    on_a_node(Switches::default(), CONFIG, |bed, daemon, clients| {
        let backend = server(bed);
        wait_for(bed, daemon, true);
        for ends in [Daemon::stop, Daemon::kill] {
            ends(daemon).unwrap();
            assert!(routes(bed).contains(ADDRESS));
            check_served(clients, true);
            daemon.start().unwrap();
            assert!(routes(bed).contains(ADDRESS), "nor does a start take it out");
        }
        daemon.kill().unwrap();
        drop(backend);
        daemon.start().unwrap();
        wait_for(bed, daemon, false);
        let _backend = server(bed);
        wait_for(bed, daemon, true);
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
        assert_eq!(routes(bed), "");
    });
}
