//! Pins a process of a measurement to a CPU.
//!
//! Invariant: it chooses only CPUs that this process may use.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The first or the last CPU that this process may use; with one CPU both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cpu {
    First,
    Last,
}

/// Pins this process to a CPU; with `None` it may run anywhere.
pub(super) fn pin(cpu: Option<Cpu>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let mut numbers = (0..CpuSet::count()).filter(|number| allowed.is_set(*number).unwrap_or(false));
    let number = match cpu {
        Cpu::First => numbers.next(),
        Cpu::Last => numbers.next_back(),
    };
    let mut chosen = CpuSet::new();
    chosen.set(number.unwrap_or_default())?;
    Ok(sched_setaffinity(this, &chosen)?)
}
