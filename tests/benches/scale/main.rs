//! What clusters of any size ask of one node, and what a node with a large table asks of people.
//!
//! `-- asked` is what questions to the admin API cost, `-- node` what a node takes, by its table's size, `-- encoded`
//! what it takes by the encoding of its lists. The daemon is the whole program with the kernel's datapath, in a process
//! of its own; the apiserver is the fake one, in this process. Needs root; everything is in a bed.

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

/// The allocator that the daemon has.
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

/// Writes the tables of the page from what this run has collected, that of the peers among it.
fn publish() {
    let Some(file) = figures::file() else { return };
    let page = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scale.md"));
    figures::publish(page, MARKS, &figures::read(&file).unwrap()).unwrap();
}

/// What stands around them on the page is written by hand.
const MARKS: (&str, &str) = (
    "<!-- What follows is written by `make scale`. -->",
    "<!-- What is above is written by `make scale`. -->",
);
