//! The kernel's figures of this process: memory and CPU time.
//!
//! If a file cannot be read, the metric is missing.

use holdfast_core::facts::Timestamp;

use super::Exposition;

/// `USER_HZ`, the unit of CPU time in `/proc`. It is 100 on every architecture that has eBPF trampolines.
const TICKS_PER_SECOND: u64 = 100;

/// Writes these metrics, with the names that every Prometheus client uses.
pub fn write(out: &mut Exposition, started: Timestamp) {
    let usage = usage();
    let help = "When the process started.";
    out.gauge("process_start_time_seconds", help, started.0);
    if let Some(bytes) = usage.resident_bytes {
        out.gauge("process_resident_memory_bytes", "Resident memory.", bytes);
    }
    if let Some(milliseconds) = usage.cpu_milliseconds {
        let seconds = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
        out.counter("process_cpu_seconds_total", "User and system time.", seconds);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    resident_bytes: Option<u64>,
    cpu_milliseconds: Option<u64>,
}

fn usage() -> Usage {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    Usage {
        resident_bytes: resident_bytes(&read("/proc/self/status")),
        cpu_milliseconds: cpu_milliseconds(&read("/proc/self/stat")),
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// User and system time, the 14th and 15th field. The second field, the name in parentheses, may hold anything.
fn cpu_milliseconds(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)?.checked_mul(1000 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a ) (b) S 1 7 7 0 -1 4194560 100 0 0 0 123 45 0 0 20 0 3 0 5000 1000000 250";
        assert_eq!(cpu_milliseconds(stat), Some(1680));
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!((cpu_milliseconds("7 (x"), resident_bytes("VmRSS: lots")), (None, None));
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(usage().resident_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(usage().cpu_milliseconds.is_some());
    }
}
