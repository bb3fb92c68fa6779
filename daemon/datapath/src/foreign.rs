//! Programs of others on our hooks. They are kept; an operator may want to know.
//!
//! Deliberately absent: programs of cgroups above or below, which their owners list.

#![allow(unsafe_code)]

use std::io;

use libbpf_rs::libbpf_sys as sys;

use crate::cgroup::Cgroup;

/// More programs on one hook than any host has; the kernel itself allows 64.
const PROGRAMS_MAX: usize = 64;

/// How the kernel calls the hooks.
const ATTACH_TYPES: [(&str, sys::bpf_attach_type); 8] = [
    ("connect4", sys::BPF_CGROUP_INET4_CONNECT),
    ("connect6", sys::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", sys::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", sys::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", sys::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", sys::BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", sys::BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", sys::BPF_CGROUP_INET6_GETPEERNAME),
];

/// The numbers of all programs that are attached to a hook of this very cgroup.
pub(crate) fn attached(cgroup: &Cgroup, hook: &str) -> io::Result<Vec<u32>> {
    let Some((_, attach_type)) = ATTACH_TYPES.iter().find(|(name, _)| *name == hook) else {
        return Ok(Vec::new());
    };
    let mut programs = [0_u32; PROGRAMS_MAX];
    let mut count = u32::try_from(PROGRAMS_MAX).unwrap_or_default();
    let mut flags = 0;
    // SAFETY: the array holds as many numbers as `count` says, and all outlive the call.
    let returned = unsafe {
        sys::bpf_prog_query(
            cgroup.fd(),
            *attach_type,
            0,
            &raw mut flags,
            programs.as_mut_ptr(),
            &raw mut count,
        )
    };
    if returned != 0 {
        return Err(io::Error::from_raw_os_error(-returned));
    }
    Ok(programs.into_iter().take(count as usize).collect())
}
