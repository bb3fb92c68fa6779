//! The program: reads the command line, and runs the daemon or queries it.

use std::io::{stderr, stdout};
use std::process::ExitCode;

use holdfast_cli::{self as cli, Command};
use holdfast_datapath::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    let mut out = stdout();
    let mut err = stderr();
    let cli = match cli::parse(std::env::args_os(), &mut out, &mut err) {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    match &cli.command {
        Command::Run(run) => holdfast::run(run, &mut err),
        Command::Client(question) => cli.run_in_colour(question, out, &mut err).into(),
    }
}
