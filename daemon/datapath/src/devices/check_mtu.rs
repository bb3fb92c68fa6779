//! Whether this kernel lets programs check a packet's length against its route.
//!
//! Invariant: it finds out by loading a program, never by the kernel's version.

use std::io;

use libbpf_rs::libbpf_sys as sys;

use crate::bpf_syscall;

const fn instruction(code: u8, registers: u8, off: i16, imm: i32) -> sys::bpf_insn {
    let registers = sys::__BindgenBitfieldUnit::new([registers]);
    sys::bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers, off, imm }
}

/// Calls `bpf_check_mtu` for a device. The same Linux release added the helper and a route's MTU in FIB look-ups.
const CHECK_MTU_PROGRAM: [sys::bpf_insn; 8] = [
    // `*(u32 *)(r10 - 4) = 0; r2 = 0; r3 = r10; r3 += -4; r4 = 0; r5 = 0`
    instruction(0x62, 10, -4, 0),
    instruction(0xb7, 2, 0, 0),
    instruction(0xbf, 10 << 4 | 3, 0, 0),
    instruction(0x07, 3, 0, -4),
    instruction(0xb7, 4, 0, 0),
    instruction(0xb7, 5, 0, 0),
    // `call bpf_check_mtu; exit`
    instruction(0x85, 0, 0, sys::BPF_FUNC_check_mtu.cast_signed()),
    instruction(0x95, 0, 0, 0),
];

/// Whether a program with the helper loads: a kernel without it rejects the program as invalid.
pub(crate) fn has_check_mtu() -> io::Result<bool> {
    match bpf_syscall::load_classifier(&CHECK_MTU_PROGRAM, c"GPL") {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        loaded => loaded.map(|_| true),
    }
}
