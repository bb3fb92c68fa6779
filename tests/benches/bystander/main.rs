//! The time of one service's change during the worst load that a tenant or an unprivileged process can cause.
//!
//! A change is an endpoint of a service in a separate namespace. `-- engine` measures the engine's loop alone, `--
//! daemon` the whole program. `-- toggles` and `-- churn` plot the program's memory for a minute and a half, or for
//! `MINUTES`. The short form is the engine's, because the whole program with fifteen thousand services takes minutes
//! without optimisation.

// Every line of a measurement may panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

mod daemon;
mod engine;
mod tenant;

use std::process::ExitCode;
use std::time::Duration;

use holdfast_tests::program::command_line;
use holdfast_tests::size::{self, sized};

use self::tenant::Load;

fn main() -> ExitCode {
    let wanted = size::wanted();
    if matches!(wanted.as_deref(), Some("run")) || std::env::args().any(|word| word == "--socket") {
        return command_line();
    }
    let is_wanted = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    if is_wanted("engine") {
        engine::measure();
    }
    if !sized(true, false) {
        println!("the whole daemon is measured in the whole form alone");
        return ExitCode::SUCCESS;
    }
    if is_wanted("daemon") {
        daemon::measure();
    }
    if is_wanted("toggles") {
        let (whole, each) = (90, 10);
        series("an address that 1500 services claim changes hands", Load::SharedAddress, whole, each);
    }
    if is_wanted("churn") {
        let minutes = std::env::var("MINUTES").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
        let (whole, each) = (minutes * 60, 60);
        series("15000 services come and go", Load::Churn, whole, each);
    }
    ExitCode::SUCCESS
}

fn series(what: &str, load: Load, whole: u64, each: u64) {
    daemon::series(what, load, Duration::from_secs(whole), Duration::from_secs(each));
}

/// Prints one row.
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 1_000).min(times.len() - 1)].as_secs_f64() * 1e3;
    println!("{what}: p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms", at(500), at(990), at(1_000));
}
