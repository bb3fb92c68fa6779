//! Connections that exchange data all the time during an event on the node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use holdfast_tests::bed::ask::HeldConnections;
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Family, frontend};

/// Connections to each place.
const EACH: usize = 5;

/// How long clients continue after the act.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Sets the flag when dropped, so that a failed test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs clients in both families to pods here and on another node, at these addresses, during an act. All of them
/// exchange data at least once after it.
#[track_caller]
pub(crate) fn while_clients_talk(bed: &Bed, places: &[(&str, &str)], act: impl FnOnce()) {
    let mut asker = bed.asker(Location::far("client")).unwrap();
    let mut count = 0;
    for ((service, address), family) in
        places.iter().flat_map(|it| [Family::V4, Family::V6].map(|of| (*it, of)))
    {
        let held = asker.hold(frontend(service, address, family).unwrap(), None, EACH).unwrap();
        assert_eq!(
            held,
            HeldConnections { alive: EACH, ..HeldConnections::default() },
            "{service} at {address}, {family:?}"
        );
        count += EACH;
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let talking = scope.spawn(|| {
            for round in 0.. {
                let is_last = is_over.load(Ordering::Relaxed);
                let held = asker.try_held().unwrap();
                assert_eq!(
                    held,
                    HeldConnections { alive: count, ..HeldConnections::default() },
                    "in round {round}"
                );
                if is_last {
                    break;
                }
            }
        });
        let ends = Ends(&is_over);
        act();
        thread::sleep(AFTERWARDS);
        drop(ends);
        talking.join().unwrap();
    });
}
