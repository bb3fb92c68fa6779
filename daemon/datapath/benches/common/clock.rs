//! Time that this thread has used, and the middle of many.

use std::time::Duration;

pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// What this thread has used of its CPU: the time of other threads does not count.
pub(crate) fn used() -> Duration {
    // SAFETY: zeros are a valid time, and the kernel writes it during the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Seconds for each time.
pub(crate) fn time(count: usize, mut act: impl FnMut()) -> f64 {
    let begun = used();
    (0..count).for_each(|_| act());
    (used() - begun).as_secs_f64() / count as f64
}

/// Client and server on one CPU: the whole cost of both, and no wake-ups across CPUs that come and go.
pub(crate) fn stay_on_one_cpu() {
    stay_on(0);
}

/// Keeps this thread on a CPU, if there is one of that number.
pub(crate) fn stay_on(cpu: usize) {
    // SAFETY: a set of zeros is valid; the kernel reads it only.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
    }
}
