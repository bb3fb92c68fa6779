//! The memory of a process, as the kernel counts it.
//!
//! Invariant: an unreadable value is an error, never zero.

use std::fs;
use std::io;

const KIB_OF_A_MEGABYTE: f64 = 1024.0;

/// Resident megabytes of a process.
pub fn resident(pid: u32) -> io::Result<f64> {
    megabytes(pid, "VmRSS:")
}

/// The peak of a process's resident megabytes.
pub fn most(pid: u32) -> io::Result<f64> {
    megabytes(pid, "VmHWM:")
}

fn megabytes(pid: u32, field: &str) -> io::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"));
    let kib: Option<f64> = value.and_then(|value| value.parse().ok());
    Ok(kib.ok_or_else(|| io::Error::other(format!("process {pid} has no {field}")))? / KIB_OF_A_MEGABYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_missing_process_is_an_error() {
        let own = std::process::id();
        let (now, most) = (resident(own).unwrap(), most(own).unwrap());
        assert!(now > 0.0 && most >= now, "{now} MB, at most {most} MB");
        assert!(resident(u32::MAX).is_err());
    }
}
