//! How many instructions of the packet programs the verifier processes.

use std::io::Write;

use libbpf_rs::{AsRawLibbpf, OpenProgramMut, libbpf_sys as sys};

use crate::kernel::KernelMaps;
use crate::kernel::bed::CAPACITY;
use crate::{load, map};

/// The log level for statistics only.
const STATISTICS: u32 = 4;

/// The most instructions of each program. A start takes as long as the verifier needs, and packets of a node are
/// served only then. Linux 5.10 needs the most; there is room for another compiler.
const LIMITS: [(&str, u64); 4] =
    [("packet_in", 90_000), ("packet_out", 35_000), ("packet_back", 25_000), ("packet_xdp", 16_000)];

/// The step to which the guide rounds up: a new compiler changes a few instructions.
const STEP: u64 = 100_000;

/// A program's name, and its verifier log.
type Log = (String, Vec<u8>);

fn logs() -> Vec<Log> {
    let maps = KernelMaps::without_programs(CAPACITY).unwrap();
    let given = map::clone_handles(maps.handles_for_tests()).unwrap();
    let mut logs = Vec::new();
    let mut listen = |mut program: OpenProgramMut<'_>| {
        // The log has a line for each call of a separately verified function, in each round of a loop.
        let mut log = vec![0_u8; 1 << 18];
        program.set_log_level(STATISTICS);
        // SAFETY: the log's bytes stay in place until the programs are loaded, even if their owner moves.
        let set = unsafe {
            let program = program.as_libbpf_object().as_ptr();
            sys::bpf_program__set_log_buf(program, log.as_mut_ptr().cast(), log.len() as sys::size_t)
        };
        assert_eq!(set, 0);
        logs.push((program.name().to_string_lossy().into_owned(), log));
    };
    let maps = load::load_packets_as(&given, 64, &mut listen).unwrap();
    drop(load::load_xdp_as(&maps, false, listen).unwrap());
    logs
}

/// The number after a word.
fn after(log: &str, word: &str) -> u64 {
    let rest = log.split_once(word).unwrap_or_else(|| panic!("no {word}in {log:?}")).1;
    rest.split(|it: char| !it.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Runs in several kernels collect these lines in a table, and compare it with the guide.
#[test]
fn kernel_each_program_stays_below_its_limit_of_verified_instructions() {
    let logs = logs();
    assert_eq!(logs.len(), 4, "what comes, what leaves, what pods answer, and frames");
    for (name, log) in logs {
        let log = String::from_utf8_lossy(&log);
        let (instructions, took) = (after(&log, "processed "), after(&log, "verification time "));
        println!("{name}: {instructions} instructions in {took} \u{b5}s");
        let limit = LIMITS.iter().find(|(program, _)| *program == name).unwrap().1;
        assert!(instructions < limit, "{name}: {instructions}, of at most {limit}");
        let value = format!("less than {},000", (instructions / STEP + 1) * STEP / 1000);
        let title = "what the verifier looks at, of 1,000,000 instructions";
        writeln!(std::io::stdout(), "\nobserved\t`{name}`: {title}\t{value}").unwrap();
    }
}
