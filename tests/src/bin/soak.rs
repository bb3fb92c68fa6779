//! Kills, growth and replacement under load: `soak [--seconds N] [--seed S] [--connects N] [--replacements N]`.
//!
//! Each of the two parts runs for these seconds, and longer if it needs to for the minimum counts. Needs root, and the
//! daemon's program next to it.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use holdfast_tests::soak::{
    Lives, ReplaceReport, SoakBed, SoakError, kill_again_and_again, replace_again_and_again,
};

#[derive(Debug, Parser)]
struct Arguments {
    /// For each part
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Gives the same orders again
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The least while the daemon is killed
    #[arg(long, default_value_t = 0)]
    connects: u64,
    /// The least, under a fifth as many connects
    #[arg(long, default_value_t = 0)]
    replacements: u64,
}

fn main() -> ExitCode {
    let mut out = stdout();
    match run(&Arguments::parse(), &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(out, "failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &Arguments, out: &mut impl Write) -> Result<(), SoakError> {
    let bed = SoakBed::new()?;
    let time = Duration::from_secs(wanted.seconds);
    let least = ReplaceReport { replacements: wanted.replacements, connects: wanted.replacements / 5 };
    let ReplaceReport { replacements, connects } = replace_again_and_again(&bed, time, least)?;
    writeln!(out, "{replacements} whole lists replaced under {connects} connects, 0 failed")
        .map_err(SoakError::Say)?;
    let Lives { lives, kills, growths, connects } =
        kill_again_and_again(&bed, wanted.seed, time, wanted.connects)?;
    writeln!(
        out,
        "{kills} kills in {lives} lives, of which {growths} with growth, under {connects} connects, 0 failed"
    )
    .map_err(SoakError::Say)
}
