//! All programs at one hook, ours and those of others. The latter are kept; an operator may want to know them.
//!
//! Only one site is asked: what hangs at a cgroup above or below, the owner of that cgroup lists there.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use libbpf_rs::libbpf_sys as sys;

/// More programs on one hook than any host has; the kernel itself allows 64.
const PROGRAMS_MAX: usize = 64;

/// The numbers of all programs that are attached at a hook of that very target: an open cgroup, or the number
/// of a device.
pub(crate) fn attached(target: RawFd, hook: sys::bpf_attach_type) -> io::Result<Vec<u32>> {
    let mut programs = [0_u32; PROGRAMS_MAX];
    let mut count = u32::try_from(PROGRAMS_MAX).unwrap_or_default();
    let mut flags = 0;
    // SAFETY: the array holds as many numbers as `count` says, and all outlive the call.
    let returned = unsafe {
        sys::bpf_prog_query(target, hook, 0, &raw mut flags, programs.as_mut_ptr(), &raw mut count)
    };
    if returned != 0 {
        return Err(io::Error::from_raw_os_error(-returned));
    }
    Ok(programs.into_iter().take(count as usize).collect())
}
