//! The cost of a packet at devices: nanoseconds per run, less those of an empty program in the same run; the memory of
//! flows, and the CPU time of their sweep; how long changes wait for larger maps. Needs root; `cargo bench -p
//! holdfast-datapath --bench packets`.
//!
//! Nothing is sent: the kernel runs the programs over recreated packets. Each figure is verified: the last packet of
//! each round must have the expected result.

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

/// The programs' tests craft and parse packets.
#[allow(dead_code)]
#[path = "../../src/packets/tests/craft.rs"]
mod craft;

/// The same for SCTP.
#[allow(dead_code)]
#[path = "../../src/packets/tests/sctp.rs"]
mod sctp;

/// The network of those tests.
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
