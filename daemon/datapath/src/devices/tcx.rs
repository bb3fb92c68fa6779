//! Links of programs to devices (tcx, Linux 6.6).
//!
//! Invariant: our programs come before foreign ones, which may end the chain; ours never do.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::libbpf_sys as sys;

use super::link::DeviceLink;
use super::{DeviceHook, Direction};
use crate::bpf_syscall;

/// `r0 = -1; exit`: the packet continues.
const PASS_PROGRAM: [sys::bpf_insn; 2] = [instruction(0xb7, -1), instruction(0x95, 0)];

const fn instruction(code: u8, imm: i32) -> sys::bpf_insn {
    let registers = sys::__BindgenBitfieldUnit::new([0]);
    sys::bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers, off: 0, imm }
}

const fn attach_type(direction: Direction) -> sys::bpf_attach_type {
    match direction {
        Direction::Ingress | Direction::PodEgress => sys::BPF_TCX_INGRESS,
        Direction::Egress => sys::BPF_TCX_EGRESS,
    }
}

/// Whether this kernel has tcx. It requests a link at a device that does not exist: a kernel with tcx answers ENODEV,
/// one without answers EINVAL.
pub(crate) fn is_supported() -> io::Result<bool> {
    let program = bpf_syscall::load_classifier(&PASS_PROGRAM, c"GPL")?;
    match bpf_syscall::create_link(program.as_fd(), i32::MAX, sys::BPF_TCX_INGRESS, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(true),
    }
}

pub(super) fn create_link(program: BorrowedFd<'_>, hook: &DeviceHook) -> io::Result<DeviceLink> {
    bpf_syscall::create_link(program, hook.ifindex(), attach_type(hook.direction), sys::BPF_F_BEFORE)
        .map(DeviceLink)
}

/// The id of a link's program, if it is attached to exactly that hook.
pub(super) fn program_at(link: &DeviceLink, hook: &DeviceHook) -> Option<u32> {
    let attachment = link.attachment().ok()?;
    let is_at_hook = attachment.kind == sys::BPF_LINK_TYPE_TCX && attachment.device == hook.index;
    (is_at_hook && attachment.hook == attach_type(hook.direction)).then_some(attachment.program)
}

pub(super) fn count_foreign(hook: &DeviceHook, own: &[Option<u32>]) -> io::Result<usize> {
    let programs = bpf_syscall::query_programs(hook.ifindex(), attach_type(hook.direction))?;
    Ok(programs.into_iter().filter(|program| !own.contains(&Some(*program))).count())
}
