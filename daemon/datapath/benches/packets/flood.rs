//! What a flood of connections without an answer costs flows that live.
//!
//! Invariant: the time of each live flow is taken for itself, on another CPU than that of the flood, which rests and
//! goes on by turns: a machine that becomes slower does so for all looks. Flows are looked at twice while it rests: by
//! how far the two differ, the figure for the flood may be wrong.

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
/// A power of two, as clients in turn are.
const LIVE: u32 = 1_024;
/// SYNs in a second, each of another client, and how many come at once.
const RATE: u32 = 300_000;
const AT_ONCE: u32 = 300;
/// How many turns each kind of look has, and how often each flow has a packet in each direction in one of them.
const TURNS: usize = 101;
const LOOKS: usize = 3;
/// The flood has filled the table by then.
const FILLED: Duration = Duration::from_secs(1);
/// A flood that was told to go on or to rest does so by then.
const HEARD: Duration = Duration::from_millis(5);

/// What the flood is told.
#[derive(Default)]
struct Told {
    rests: AtomicBool,
    ends: AtomicBool,
}

/// Feeds SYNs until it is told to end, and returns how many came in a second of those in which it did not rest.
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

    /// Adds the nanoseconds that each flow's packet there and back take together.
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

/// The middle of the flows and the slowest one, as parts of what they took before.
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

/// The same over IPv6, on a node of their own: in a table that a flood has filled just now, connections that begin at
/// once and have no answer yet push out each other.
pub(crate) fn beside6(bed: &ThreadBed) {
    beside(bed, &NEAR[1], "IPv6");
}

/// Live flows while the flood rests, once more, and in it, by turns.
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
