//! The cost of clusters of any size to one node, and of a large table to its users.
//!
//! `-- asked` measures admin API requests, `-- node` a node by its table's size, `-- encoded` the encodings of lists.
//! The daemon is the whole program with the kernel's datapath, in a process of its own; the fake apiserver runs in
//! this process. Needs root; everything runs in a bed.

// Every line of a measurement may panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, clippy::panic)]

mod asked;
mod encoded;
mod fanout;
mod node;
mod process;
mod stage;

use std::path::Path;
use std::process::ExitCode;

use holdfast_datapath::Allocator;
use holdfast_tests::figures;
use holdfast_tests::program::command_line;
use holdfast_tests::size;

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    let wanted = size::wanted();
    if matches!(wanted.as_deref(), Some("run" | "cleanup")) || std::env::args().any(|word| word == "--socket")
    {
        return command_line();
    }
    if !nix::unistd::geteuid().is_root() {
        println!("a node needs root");
        return ExitCode::SUCCESS;
    }
    let is_wanted = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    if is_wanted("asked") {
        asked::measure();
    }
    if is_wanted("node") {
        node::measure();
        fanout::tell();
    }
    if is_wanted("encoded") {
        encoded::measure();
    }
    if is_wanted("publish") {
        publish();
    }
    ExitCode::SUCCESS
}

/// Writes this run's results to the page's tables, with those of the peers.
fn publish() {
    let Some(file) = figures::file() else { return };
    let page = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scale.md"));
    figures::publish(page, MARKS, &figures::read(&file).unwrap()).unwrap();
}

/// The text around these marks is written by hand.
const MARKS: (&str, &str) = (
    "<!-- What follows is written by `make scale`. -->",
    "<!-- What is above is written by `make scale`. -->",
);
