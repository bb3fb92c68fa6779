//! Runs the tests of holdfast part by part, for `make test` and `make test-all`.
//!
//! `tests/parts.toml` lists the parts.
//!
//! Invariant: the last line of a run is `N passed, N failed`, and the exit code is 0 if some passed and none failed.

// It runs tests: it measures how long they take, and ends those that hang.
#![allow(clippy::disallowed_methods)]

mod attached;
mod built;
mod choose;
mod error;
mod git;
mod machine;
mod mutants;
mod needs;
mod pattern;
mod pool;
mod process;
mod progress;
mod record;
mod report;
mod session;
mod slowdown;
mod supply;
mod table;
mod terminal;
mod times;

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::choose::Selection;
use crate::error::SuiteError;
use crate::record::Records;
use crate::session::{Places, Session};
use crate::slowdown::Slowdown;
use crate::table::{Set, Table};
use crate::terminal::say;

#[derive(Debug, Parser)]
#[command(about = "Runs the tests of holdfast, part by part")]
struct Arguments {
    /// The folder of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    #[command(subcommand)]
    order: Order,
}

#[derive(Debug, clap::Subcommand)]
enum Order {
    /// Run parts: `test` and `all` name sets, `due` those of `make test-all` that are due, `slow-turn` one of
    /// `make test` for a slow run.
    Run {
        /// Sets, or parts such as `host` or `host@trixie`.
        #[arg(required = true)]
        parts: Vec<String>,
        /// How long those that are due may take together; the one that waits longest may take 30 minutes.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// What the build before took, for the report.
        #[arg(long)]
        build: Option<u64>,
        /// Give the run one part in so many of the processors; as root.
        #[arg(long, default_value_t = 1)]
        slow: u32,
        /// Run so many busy loops beside it.
        #[arg(long, default_value_t = 0)]
        busy: u32,
    },
    /// List the parts, and when each passed last.
    Parts,
    /// List all tests, each after its part.
    Tests,
    /// Take over into the repository what runs have recorded since the last landing.
    Merge,
    /// Make each mistake of tests/mutants.toml, and show that tests catch it.
    Mutants {
        /// Only those in files with this text in their path.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// The paths of the test programs with a `package/target` that fits one of the patterns.
    Programs { patterns: Vec<String> },
}

fn main() -> ExitCode {
    let done =
        process::end_all_on_signals().map_err(error::at("listen for signals in", Path::new("/proc/self")));
    done.and_then(|()| obey(Arguments::parse())).unwrap_or_else(|error| {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        let _ = writeln!(io::stderr(), "suite: {text}");
        ExitCode::FAILURE
    })
}

fn obey(arguments: Arguments) -> Result<ExitCode, SuiteError> {
    let places = places(&arguments.root)?;
    match arguments.order {
        Order::Run { parts, seconds, build, slow, busy } => {
            run(places, (&asked(parts, seconds, slow), Slowdown { slow: slow.max(1), busy }), build)
        }
        Order::Parts => list_parts(places),
        Order::Tests => list_tests(places),
        Order::Merge => merge(&places),
        Order::Mutants { only } => mutants::run(&places, &only),
        Order::Programs { patterns } => programs(&places, &patterns),
    }
}

fn places(root: &PathBuf) -> Result<Places, SuiteError> {
    let root = std::path::absolute(root).map_err(error::at("find", root))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let caches = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    Ok(Places { root, target, cache: caches.join("holdfast") })
}

fn asked(parts: Vec<String>, seconds: u64, slow: u32) -> Selection {
    match parts.first().map(String::as_str) {
        Some("test") if parts.len() == 1 => Selection::Set(Set::Test),
        Some("all") if parts.len() == 1 => Selection::Set(Set::All),
        Some("due") if parts.len() == 1 => Selection::Due(seconds),
        Some("slow-turn") if parts.len() == 1 => Selection::SlowTurn { slow, seconds },
        _ => Selection::Named(parts),
    }
}

fn run(
    places: Places,
    (asked, slowdown): (&Selection, Slowdown),
    build: Option<u64>,
) -> Result<ExitCode, SuiteError> {
    let mut session = Session::open(places, slowdown)?;
    session.find_tests()?;
    let runs = session.choose(asked)?;
    if runs.is_empty() {
        say("nothing is due\n0 passed, 0 failed");
        return Ok(ExitCode::SUCCESS);
    }
    let report = session.run(&runs, build)?;
    say(&report.text());
    Ok(ExitCode::from(u8::from(report.failed() > 0 || report.passed() == 0)))
}

fn list_parts(places: Places) -> Result<ExitCode, SuiteError> {
    let session = Session::open(places, Slowdown::NONE)?;
    let rows = session.records.rows()?;
    for part in &session.table.parts {
        for name in part.runs().iter().map(table::Run::name) {
            let last = rows.get(&name).map_or_else(
                || "never".to_owned(),
                |row| format!("{} at {}, {} tests, {} s", row.day, row.commit, row.tests, row.seconds),
            );
            say(&format!("{name:<20} make {:<9} {last}", part.by.command()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_tests(places: Places) -> Result<ExitCode, SuiteError> {
    let mut session = Session::open(places, Slowdown::NONE)?;
    session.find_tests()?;
    for (part, tests) in session.listed() {
        tests.iter().for_each(|test| say(&format!("{part}\t{}", test.name)));
    }
    Ok(ExitCode::SUCCESS)
}

fn merge(places: &Places) -> Result<ExitCode, SuiteError> {
    let table = Table::read(&places.root)?;
    let runs: Vec<String> = table.parts.iter().flat_map(table::Part::runs).map(|run| run.name()).collect();
    let exists =
        |name: &str| record::is_supply(name) || runs.iter().any(|run| run == slowdown::run_of_row(name));
    let number = Records::new(&places.root, &places.cache).merge(exists)?;
    say(&format!("{number} rows taken over into {}", record::RAN));
    Ok(ExitCode::SUCCESS)
}

fn programs(places: &Places, patterns: &[String]) -> Result<ExitCode, SuiteError> {
    let found = session::built(places)?;
    let fitting =
        found.iter().filter(|program| patterns.iter().any(|pattern| pattern::fits(pattern, &program.name)));
    fitting.for_each(|program| say(&program.path.display().to_string()));
    Ok(ExitCode::SUCCESS)
}
