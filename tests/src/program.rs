//! The `holdfast` program inside a benchmark that starts itself as one: built and optimised like the measured code.
//!
//! Invariant: its output and its exit code are those of the real command line.

use std::process::ExitCode;

use holdfast_cli as cli;

/// Runs `holdfast` with the arguments of this process.
pub fn command_line() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match cli::parse(std::env::args_os(), &mut out, &mut err) {
        Ok(cli) => match &cli.command {
            cli::Command::Run(run) => holdfast::run(run, &mut err),
            cli::Command::Client(question) => cli.run_in_colour(question, out, &mut err).into(),
        },
        Err(exit) => exit.into(),
    }
}
