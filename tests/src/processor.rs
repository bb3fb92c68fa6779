//! The processor time of a process, as the kernel counts it.
//!
//! Invariant: an unreadable value is an error, never zero.

use std::fs;
use std::io;

/// The clock ticks per second in `/proc/PID/stat`, on every supported machine.
const TICKS: f64 = 100.0;

/// The fields after the program's name with its user and system ticks.
const SPENT: std::ops::Range<usize> = 11..13;

/// The processor seconds of a process.
pub fn seconds(pid: u32) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<f64> =
        fields.skip(SPENT.start).take(SPENT.len()).filter_map(|it| it.parse().ok()).collect();
    if ticks.len() == SPENT.len() {
        Ok(ticks.iter().sum::<f64>() / TICKS)
    } else {
        Err(io::Error::other(format!("process {pid} has no ticks: {stat}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_and_a_missing_process_is_an_error() {
        let own = std::process::id();
        let before = seconds(own).unwrap();
        while seconds(own).unwrap() <= before {}
        assert!(seconds(u32::MAX).is_err());
    }
}
