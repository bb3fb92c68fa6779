//! The program that users have, in a benchmark that starts itself as one: built and optimised like what it measures.
//!
//! Invariant: what it answers and how it ends are the command line's own.

use std::process::ExitCode;

use holdfast_cli as cli;

/// Does what the arguments of this process ask of `holdfast`.
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
