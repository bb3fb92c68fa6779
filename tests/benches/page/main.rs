//! The cost of the page: to a browser that has it open for long, and to a daemon that serves many of them.
//!
//! A real daemon with memory maps, and a folder of objects of which a hundred a second change. `memory` keeps the page
//! open in Chromium for `MINUTES`; `large` opens it for the largest number of backends.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, clippy::panic)]

/// The browser and the daemon of the page's tests.
#[allow(dead_code)]
#[path = "../../systems/page/browser.rs"]
mod browser;
#[allow(dead_code)]
#[path = "../../systems/page/node.rs"]
mod node;
#[path = "../../systems/page/socket.rs"]
mod socket;

mod changer;
mod large;
mod memory;
mod pages;
mod process;

use std::process::{Command, ExitCode, Stdio};

use holdfast_tests::program::command_line;
use holdfast_tests::size;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("run") {
        return command_line();
    }
    if Command::new("chromedriver").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("not run here: what the page costs (needs Chromium: scripts/setup page)");
        return ExitCode::SUCCESS;
    }
    let parts: [(&str, fn()); 3] =
        [("memory", memory::measure), ("pages", pages::measure), ("large", large::measure)];
    let wanted = size::wanted();
    let is_wanted = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    parts.iter().filter(|(name, _)| is_wanted(name)).for_each(|(_, part)| part());
    ExitCode::SUCCESS
}
