//! What a flood of connections without an answer costs flows that live.
//!
//! Invariant: the time of each live flow is taken for itself, on another CPU than that of the flood. It is taken twice
//! without one: by how far the two differ, the figure for the flood may be wrong.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bed::Bed;
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
/// How often each flow has a packet in each direction.
const LOOKS: usize = 301;
/// The flood has filled the table by then.
const FILLED: Duration = Duration::from_secs(1);

/// Feeds SYNs until it is told to stop, and returns how many came in a second.
fn flood(node: &Node, stops: &AtomicBool) -> f64 {
    stay_on(1);
    let feeder = node.meet(&PICKED[0].first().of(Client::IsSource, 1 << 24));
    let (begun, mut sent) = (Instant::now(), 0_u32);
    while !stops.load(Ordering::Relaxed) {
        feeder.run(AT_ONCE);
        sent += AT_ONCE;
        let due = begun + Duration::from_secs(1) * sent / RATE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    f64::from(sent) / begun.elapsed().as_secs_f64()
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

    /// Nanoseconds that each flow's packet there and back take together, in the middle of many looks.
    fn look(&self) -> Vec<f64> {
        let mut times = vec![Vec::new(); LIVE as usize];
        for _ in 0..sized(LOOKS, 1) {
            for feeder in &self.fed {
                feeder.turn_to(0);
            }
            self.idle.turn_to(0);
            for times in &mut times {
                let [there, back] = [0, 1].map(|at| {
                    let last = self.fed[at].run(1);
                    self.packets[at].check(&last);
                    last.took
                });
                times.push(there + back - 2.0 * self.idle.run(1).took);
            }
        }
        times.into_iter().map(median).collect()
    }
}

/// The middle of the flows and the slowest one, as parts of what they took before.
fn slowed(before: &[f64], after: &[f64]) -> (f64, f64) {
    let ratios: Vec<f64> = before.iter().zip(after).map(|(before, after)| after / before).collect();
    (median(ratios.clone()), ratios.into_iter().fold(0.0, f64::max))
}

/// Live flows over IPv4.
pub(crate) fn beside4(bed: &Bed) {
    beside(bed, &NEAR[0], "IPv4");
}

/// The same over IPv6, on a node of their own: in a table that a flood has filled just now, connections that begin at
/// once and have no answer yet push out each other.
pub(crate) fn beside6(bed: &Bed) {
    beside(bed, &NEAR[1], "IPv6");
}

/// Live flows without a flood, again, and in one.
fn beside(bed: &Bed, way: &Way, family: &str) {
    let node = Node::new(bed, FLOWS);
    let live = Live::new(&node, way);
    let (calm, again, stops) = (live.look(), live.look(), AtomicBool::new(false));
    let (flooded, rate) = std::thread::scope(|threads| {
        let flooding = threads.spawn(|| flood(&node, &stops));
        std::thread::sleep(sized(FILLED, Duration::ZERO));
        let flooded = live.look();
        stops.store(true, Ordering::Relaxed);
        (flooded, flooding.join().unwrap())
    });
    let ((middle_calm, worst_calm), (middle, worst)) = (slowed(&calm, &again), slowed(&calm, &flooded));
    println!(
        "{LIVE} live flows over {family} beside {rate:.0} SYNs a second: packets take {middle:.2} of their time, \
         those of the slowest flow {worst:.2}; without a flood once more {middle_calm:.2} and {worst_calm:.2}"
    );
}
