//! The memory of flows, and the CPU time of their sweep.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use crate::bed::ThreadBed;
use crate::node::{NEAR, Node, field};
use crate::size::sized;

const FLOWS: u32 = 65_536;
const SWEPT: u32 = 1_000_000;
/// How long it takes to release the record numbers of so many flows.
const HANDED_OUT: Duration = Duration::from_secs(40);
/// Two passes over the whole table, and a little more.
const WATCHED: Duration = Duration::from_secs(22);

/// The kernel's figure of the memory of the maps pinned there.
fn memory_of(pins: &Path) -> u64 {
    let maps =
        fs::read_dir(pins).unwrap().flatten().map(|entry| MapHandle::from_pinned_path(entry.path()).unwrap());
    maps.map(|map| {
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).unwrap();
        field(&told, "memlock:").unwrap()
    })
    .sum()
}

/// Without flows, and with the most flows: over IPv4, and over IPv6.
pub(crate) fn memory(bed: &ThreadBed) {
    let flows = sized(FLOWS, 1024);
    let node = Node::new(bed, flows);
    let megabytes = |node: &Node| memory_of(&node.flow_pins()) as f64 / 1e6;
    let before = megabytes(&node);
    let [half, rest] = [flows / 2, flows - flows / 2];
    node.open(&NEAR[0], 0..half);
    let mixed = megabytes(&node);
    node.open(&NEAR[1], 0..rest);
    let after = megabytes(&node);
    println!(
        "{flows} flows: {before:.1} MB without any, {mixed:.1} MB with half of them over IPv4, {after:.1} MB with the \
         rest over IPv6 (goal 20)"
    );
}

/// The CPU time of the sweep thread.
fn sweeper_used(thread: &Path) -> Duration {
    let told = fs::read_to_string(thread.join("schedstat")).unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

/// The thread gets its name a moment after its start.
fn sweeper() -> PathBuf {
    let is_named =
        |thread: &PathBuf| fs::read_to_string(thread.join("comm")).is_ok_and(|it| it.trim() == "flows");
    loop {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
        if let Some(found) = { threads }.find(is_named) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A table with so many live flows of one quota, which may hold eight ninths.
fn full(bed: &ThreadBed, flows: u32) -> Node {
    let mut node = Node::new(bed, flows + flows / 4);
    node.hand_out(HANDED_OUT);
    node.open(&NEAR[0], 0..flows);
    node
}

/// At the pace of the daemon's own sweep, over a table of live flows.
pub(crate) fn sweep(bed: &ThreadBed) {
    let flows = sized(SWEPT, 1024);
    let node = full(bed, flows);
    let thread = sweeper();
    let (before, begun) = (sweeper_used(&thread), Instant::now());
    std::thread::sleep(sized(WATCHED, Duration::from_millis(1100)));
    let (used, whole) = (sweeper_used(&thread) - before, begun.elapsed());
    let swept = node.maps.flow_status().unwrap().sweep;
    assert_eq!(swept.ended, 0, "all of them live");
    println!(
        "sweep of {flows} flows: {:.3} % of a CPU, {} passes (goal 0.5)",
        used.as_secs_f64() / whole.as_secs_f64() * 100.0,
        swept.passes
    );
}

/// Resizes a table of live flows: their pause is part of the longest call.
pub(crate) fn resize(bed: &ThreadBed) {
    let flows = sized(SWEPT, 1024);
    let mut node = full(bed, flows);
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    node.maps.set_flow_capacity(2 * flows);
    while node.maps.packet_status().unwrap().flows != 2 * flows {
        let call = Instant::now();
        node.maps.update_flows().unwrap();
        longest = longest.max(call.elapsed());
        std::thread::sleep(sized(Duration::from_millis(100), Duration::from_millis(1)));
    }
    assert_eq!(node.maps.packet_status().unwrap().flows_evicted.total, 0);
    println!(
        "{flows} flows go to a table of twice the size in {:.1} s, and the engine waits {:.1} ms at most",
        begun.elapsed().as_secs_f64(),
        longest.as_secs_f64() * 1e3
    );
}
