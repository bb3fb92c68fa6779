//! CPU time of this thread, and medians.

use std::time::Duration;

pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The CPU time of this thread alone.
pub(crate) fn used() -> Duration {
    // SAFETY: zeros are a valid time, and the kernel writes it during the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Seconds of CPU time per call.
pub(crate) fn time(count: usize, mut act: impl FnMut()) -> f64 {
    let begun = used();
    (0..count).for_each(|_| act());
    (used() - begun).as_secs_f64() / count as f64
}

/// Keeps client and server on one CPU: the whole cost of both, without varying wake-ups across CPUs.
pub(crate) fn stay_on_one_cpu() {
    stay_on(0);
}

/// Keeps this thread on a CPU, if there is one with that number.
pub(crate) fn stay_on(cpu: usize) {
    // SAFETY: a set of zeros is valid; the kernel only reads it.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
    }
}
