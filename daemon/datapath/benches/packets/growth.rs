//! How long a change waits while the maps grow, with packets translated.

use std::time::{Duration, Instant};

use crate::bed::{Port, ThreadBed};
use crate::node::Node;
use crate::size::sized;

const SERVICES: u32 = 6_000;
const FLOWS: u32 = 1_024;
/// Between two new services.
const PAUSE: Duration = Duration::from_millis(2);

fn serve(node: &mut Node, number: u32) -> Duration {
    let vip = format!("10.100.{}.{}:80", number >> 8, number & 255);
    let begun = Instant::now();
    Port { index: number + 10, frontends: &[&vip], ..Port::TCP }.serve(&mut node.maps);
    begun.elapsed()
}

/// Services come one after the other, and the maps grow once: there is time to prebuild the larger ones.
pub(crate) fn paced(bed: &ThreadBed) {
    measure(bed, PAUSE);
}

/// There is no time to prebuild.
pub(crate) fn hurried(bed: &ThreadBed) {
    measure(bed, Duration::ZERO);
}

fn measure(bed: &ThreadBed, pause: Duration) {
    let mut node = Node::new(bed, FLOWS);
    let mut waits: Vec<_> = (0..sized(SERVICES, 4_000))
        .map(|number| {
            std::thread::sleep(sized(pause, Duration::ZERO));
            serve(&mut node, number)
        })
        .collect();
    waits.sort_unstable();
    assert_eq!(node.maps.status().growths, 1);
    let at = |part: usize| waits[(waits.len() - 1) * part / 1000].as_secs_f64() * 1e3;
    println!(
        "{} services, one each {pause:?}, one growth: a change waits {:.3} ms in half of the cases, {:.3} in all but \
         one of 1,000, and {:.1} at most",
        waits.len(),
        at(500),
        at(999),
        at(1000)
    );
}
