//! The composition root: builds every part from the configuration, connects them, and shuts them down.
//!
//! Invariant: parts reach each other only through the channels that they are given here.

#![forbid(unsafe_code)]

pub mod app;

use std::io::Write;
use std::process::ExitCode;

use holdfast_agent::systemd;
use holdfast_cli::Run;
use holdfast_config::ConfigFile;
use holdfast_host::logging;

/// Runs the daemon. If it does not start, it writes one sentence that says what to do.
pub fn run(run: &Run, err: &mut impl Write) -> ExitCode {
    let file = ConfigFile { path: run.config.clone(), node_name: run.node_name.clone() };
    match app::run(&file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = error.to_string();
            systemd::notify_failed(&why);
            logging::write_fatal_error(&why, err);
            error.exit_code().into()
        }
    }
}
pub use holdfast_api as admin;
pub use holdfast_cli as cli;
