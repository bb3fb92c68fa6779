//! The effect of a flood of unanswered connections on live flows.
//!
//! Invariant: each live flow is timed separately, on another CPU than the flood, which pauses and resumes by turns: a
//! slower machine affects all measurements. Flows are measured twice while it pauses; the difference shows the error of
//! the flood's figure.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bed::ThreadBed;
use crate::clock::{median, stay_on};
use crate::craft::ACK;
use crate::feeder::{Client, Feeder, empty};
use crate::network::OUTER;
use crate::node::{NEAR, Node, PICKED, Packet, Way};
use crate::size::sized;

const FLOWS: u32 = 65_536;
/// A power of two, as clients in turn must be.
const LIVE: u32 = 1_024;
/// SYNs per second, each of another client, and how many come at once.
const RATE: u32 = 300_000;
const AT_ONCE: u32 = 300;
/// How many turns each measurement has, and how many packets each flow has per direction and turn.
const TURNS: usize = 101;
const LOOKS: usize = 3;
/// The flood has filled the table by then.
const FILLED: Duration = Duration::from_secs(1);
/// The flood has paused or resumed by then.
const HEARD: Duration = Duration::from_millis(5);

/// The flood's control flags.
#[derive(Default)]
struct Told {
    rests: AtomicBool,
    ends: AtomicBool,
}

/// Feeds SYNs until it is stopped, and returns how many it sent per second while it did not pause.
fn flood(node: &Node, told: &Told) -> f64 {
    stay_on(1);
    let feeder = node.meet(&PICKED[0].first().of(Client::IsSource, 1 << 24));
    let (mut sent, mut took) = (0_u32, Duration::ZERO);
    while !told.ends.load(Ordering::Relaxed) {
        if told.rests.load(Ordering::Relaxed) {
            std::thread::sleep(HEARD / 5);
            continue;
        }
        let begun = Instant::now();
        feeder.run(AT_ONCE);
        let due = begun + Duration::from_secs(1) * AT_ONCE / RATE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        sent = sent.wrapping_add(AT_ONCE);
        took += begun.elapsed();
    }
    f64::from(sent) / took.as_secs_f64()
}

/// Both directions of the live flows.
struct Live {
    packets: [Packet; 2],
    fed: [Feeder; 2],
    idle: Feeder,
}

impl Live {
    fn new(node: &Node, way: &Way) -> Self {
        node.open(way, 0..LIVE);
        let packets = [way.there().of(Client::IsSource, LIVE), way.back(ACK).of(Client::IsDestination, LIVE)];
        let fed = [node.meet(&packets[0]), node.meet(&packets[1])];
        let idle = Feeder::new(&packets[0].sent.frame(), packets[0].clients, empty().as_fd(), OUTER);
        Self { packets, fed, idle }
    }

    /// Adds the nanoseconds of each flow's packets in both directions.
    fn look(&self, times: &mut [Vec<f64>]) {
        for _ in 0..LOOKS {
            for feeder in &self.fed {
                feeder.turn_to(0);
            }
            self.idle.turn_to(0);
            for times in &mut *times {
                let [there, back] = [0, 1].map(|at| {
                    let last = self.fed[at].run(1);
                    self.packets[at].check(&last);
                    last.took
                });
                times.push(there + back - 2.0 * self.idle.run(1).took);
            }
        }
    }
}

/// The median flow and the slowest one, relative to their time before.
fn slowed(before: &[Vec<f64>], after: &[Vec<f64>]) -> (f64, f64) {
    let middle = |times: &Vec<f64>| median(times.clone());
    let ratios: Vec<f64> =
        before.iter().zip(after).map(|(before, after)| middle(after) / middle(before)).collect();
    (median(ratios.clone()), ratios.into_iter().fold(0.0, f64::max))
}

/// Live flows over IPv4.
pub(crate) fn beside4(bed: &ThreadBed) {
    beside(bed, &NEAR[0], "IPv4");
}

/// The same over IPv6, on its own node: in a table just filled by a flood, simultaneous unanswered connections evict
/// each other.
pub(crate) fn beside6(bed: &ThreadBed) {
    beside(bed, &NEAR[1], "IPv6");
}

/// Live flows during a pause, another pause, and the flood, by turns.
fn beside(bed: &ThreadBed, way: &Way, family: &str) {
    let node = Node::new(bed, FLOWS);
    let live = Live::new(&node, way);
    let told = Told::default();
    let mut looks: [_; 3] = std::array::from_fn(|_| vec![Vec::new(); LIVE as usize]);
    let rate = std::thread::scope(|threads| {
        let flooding = threads.spawn(|| flood(&node, &told));
        std::thread::sleep(sized(FILLED, Duration::ZERO));
        for _ in 0..sized(TURNS, 1) {
            for (times, rests) in looks.iter_mut().zip([true, true, false]) {
                told.rests.store(rests, Ordering::Relaxed);
                std::thread::sleep(HEARD);
                live.look(times);
            }
        }
        told.ends.store(true, Ordering::Relaxed);
        flooding.join().unwrap()
    });
    let [calm, again, flooded] = looks;
    let ((middle_calm, worst_calm), (middle, worst)) = (slowed(&calm, &again), slowed(&calm, &flooded));
    println!(
        "{LIVE} live flows over {family} beside {rate:.0} SYNs a second: packets take {middle:.2} of their time, \
         those of the slowest flow {worst:.2}; without a flood once more {middle_calm:.2} and {worst_calm:.2}"
    );
}
