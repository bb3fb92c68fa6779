//! Runs a program of this machine in another kernel: Debian's kernels, in an emulated machine, within seconds.
//!
//! `vm fetch` downloads qemu and the kernels into cargo's target folder, without root or an installation. `vm run
//! KERNEL PROGRAM ARGUMENTS…` boots and exits with the program's own exit code, or 125 without one. `vm matrix --
//! PROGRAM…` runs programs' tests in all kernels, `vm rules -- PROGRAM…` those of packet rules in one. With
//! `--architecture arm64` the machine and its programs are of arm64.

mod apt;
mod architecture;
mod clock;
mod cpio;
mod failure;
mod guest;
mod machine;
mod matrix;
mod modules;
mod observed;
mod store;
mod tally;
mod userland;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::architecture::Architecture;
use crate::failure::Failure;
use crate::guest::Errand;
use crate::machine::Build;
use crate::store::Store;

/// As in `timeout` and `env`: the failure is ours, not the program's.
const NO_RESULT: u8 = 125;

#[derive(Debug, Parser)]
#[command(about = "Run a program of this machine in another kernel")]
struct Arguments {
    /// The machine that is emulated; its programs are those that were built for it.
    #[arg(long, value_enum, default_value_t = Architecture::Amd64)]
    architecture: Architecture,
    #[command(subcommand)]
    order: Order,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// Bring qemu and Debian's newest kernel of each series; what is there stays.
    Fetch {
        /// Series: 5.10, 6.1, 6.12, 7 (the newest 7.x); all that tests run in if none is named.
        series: Vec<String>,
    },
    /// Boot a kernel and run a program as root; ends with its exit code.
    Run {
        /// A file that lies beside the program in the guest, in its PATH, with its libraries.
        #[arg(long = "with")]
        beside: Vec<PathBuf>,
        /// Boot the systemd of this root file system too, an image of ext4; the program becomes a service of it.
        #[arg(long)]
        disk: Option<PathBuf>,
        /// A file that is a second disk of the guest, and keeps what is written to it.
        #[arg(long)]
        second: Option<PathBuf>,
        /// Memory of the guest.
        #[arg(long, default_value_t = 512)]
        memory_mib: u32,
        /// When to give up; emulation is about twelve times slower than this machine.
        #[arg(long, default_value_t = 120)]
        seconds: u64,
        /// Let the guest's clock go so many times slower: limits in there, of anything, have that much more time.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=clock::SLOWER_MAX))]
        slower: i64,
        /// More arguments of the kernel, such as `security=selinux`.
        #[arg(long, default_value = "")]
        append: String,
        series: String,
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the rules of packets in the oldest kernel: they are the same in each that loads the programs.
    Rules {
        /// Shares of the rules, by their numbers from 1; all of them if none is named.
        #[arg(long = "share")]
        shares: Vec<usize>,
        #[arg(required = true, last = true)]
        programs: Vec<PathBuf>,
    },
    /// Run the `kernel_…` tests of test programs in each kernel, and compare what they observed with a page.
    Matrix {
        /// The page with the table of what was observed; BLESS=1 in the environment writes the table anew.
        #[arg(long)]
        page: PathBuf,
        /// Kernels, by their series; all of them if none is named.
        #[arg(long = "kernel")]
        kernels: Vec<String>,
        #[arg(required = true, last = true)]
        programs: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let Arguments { architecture, order } = Arguments::parse();
    let done = Store::open(architecture).and_then(|store| obey(&store, order));
    done.map_or_else(|failure| complain(&failure), ExitCode::from)
}

fn obey(store: &Store, order: Order) -> Result<u8, Failure> {
    match order {
        Order::Fetch { series } => {
            let all = store.architecture().series().iter().map(|&series| series.to_owned());
            let series = if series.is_empty() { all.collect() } else { series };
            store.fetch(&series)?.iter().for_each(|line| say(line));
            Ok(0)
        }
        Order::Run {
            beside,
            disk,
            second,
            memory_mib,
            seconds,
            slower,
            append,
            series,
            program,
            arguments,
        } => {
            let errand = Errand::program(&program, &arguments, &beside);
            let (disk, second) = (disk.as_deref(), second.as_deref());
            let deadline = Duration::from_secs(seconds);
            let build = Build { memory_mib, disk, second, deadline, slower, append: &append };
            machine::run(store, &store.kernel(&series)?, &errand, &build, &mut say)
        }
        Order::Rules { shares, programs } => Ok(u8::from(!matrix::rules(store, &shares, &programs)?)),
        Order::Matrix { page, kernels, programs } => {
            let done = matrix::run(store, &page, &kernels, &programs)?;
            Ok(u8::from(!done))
        }
    }
}

fn say(line: &str) {
    // A reader that closed the pipe wants no answer.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn complain(failure: &Failure) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "vm: {}", failure::described(failure));
    ExitCode::from(NO_RESULT)
}
