//! The kernel's route notifications at a place of the fabric, each with its time.
//!
//! Invariant: it receives all changes after `of` returns.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{self, Deadline};
use holdfast_tests::bed::Bed;

use crate::node::{location, run};

pub(crate) struct Notices {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Notices {
    pub(crate) fn subscribe(bed: &Bed, place: &str) -> Self {
        let mut command = bed.command(location(place), "ip").unwrap();
        let mut child = command.args(["monitor", "route"]).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (out, lines) = channel();
        thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if out.send((clock::now(), line)).is_err() {
                    return;
                }
            }
        });
        let notices = Self { child, lines };
        notices.wait_until_they_come(bed, place);
        notices
    }

    /// Adds and removes a route until the kernel's notifications arrive.
    fn wait_until_they_come(&self, bed: &Bed, place: &str) {
        let deadline = Deadline::after(TEST_TIMEOUT);
        while self.lines.recv_timeout(Duration::from_millis(100)).is_err() {
            assert!(!deadline.is_over(), "no notice comes");
            for change in ["add", "delete"] {
                run(bed, place, "ip", &format!("route {change} blackhole 203.0.113.78 table 181"));
            }
        }
    }

    /// How long after a moment the route to an address was removed. An earlier copy of it may have been removed
    /// before.
    pub(crate) fn taken_out(&self, address: &str, since: Instant) -> Duration {
        loop {
            let (at, line) = self.lines.recv_timeout(TEST_TIMEOUT).unwrap();
            let mut words = line.split_whitespace();
            if at >= since && words.next() == Some("Deleted") && words.any(|word| word == address) {
                return at - since;
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
