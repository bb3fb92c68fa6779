//! What a packet costs that the programs at devices see: nanoseconds of a run, less those of an empty program in the
//! same run; what flows take of the memory, and their sweep of a CPU; how long changes wait for larger maps. Needs
//! root; `cargo bench -p holdfast-datapath --bench packets`.
//!
//! Nothing is sent: the kernel runs the programs over packets that are made anew each time. Each figure is checked to
//! be one of what it says: the last packet of each round must have become what it was meant to become.

// A program that measures and prints.
#![allow(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

#[allow(dead_code, unreachable_pub)]
#[path = "../../../../tests/src/size.rs"]
mod size;

#[path = "../../tests/kernel/bed.rs"]
mod bed;

#[path = "../common/clock.rs"]
mod clock;

/// Packets are written and read as the tests of the programs do.
#[allow(dead_code)]
#[path = "../../src/packets/tests/craft.rs"]
mod craft;

/// … those of SCTP too.
#[allow(dead_code)]
#[path = "../../src/packets/tests/sctp.rs"]
mod sctp;

/// … in the network of those tests.
#[allow(dead_code)]
#[path = "../../src/packets/tests/network.rs"]
mod network;

mod feeder;
mod flood;
mod forward;
mod growth;
mod node;
mod runs;
mod services;
mod table;
mod turned_away;

use bed::bed;

type Part = (&'static str, fn(&bed::ThreadBed));

/// Runs one part, named by the argument, or all.
fn main() {
    let wanted = size::wanted();
    let parts: [Part; 13] = [
        ("runs", runs::all),
        ("new", runs::first),
        ("new", runs::picked),
        ("flood", flood::beside4),
        ("flood", flood::beside6),
        ("services", services::all),
        ("forward", forward::all),
        ("forward", turned_away::all),
        ("memory", table::memory),
        ("sweep", table::sweep),
        ("resize", table::resize),
        ("growth", growth::paced),
        ("growth", growth::hurried),
    ];
    for (name, part) in parts {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            bed(move |bed| {
                clock::stay_on_one_cpu();
                part(bed);
            });
        }
    }
}
