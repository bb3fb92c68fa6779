//! Links of programs at devices (tcx, Linux 6.6).
//!
//! Invariant: a link is at one hook of one device for ever; when the device goes, the link is nowhere. Our programs
//! come before those of others, which may end the chain; ours never do.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

use super::{Direction, Spot};
use crate::bpf_call;

/// `r0 = -1; exit`: the packet goes on.
const PASSES: [sys::bpf_insn; 2] = [instruction(0xb7, -1), instruction(0x95, 0)];

const fn instruction(code: u8, imm: i32) -> sys::bpf_insn {
    let registers = sys::__BindgenBitfieldUnit::new([0]);
    sys::bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers, off: 0, imm }
}

const fn hook(direction: Direction) -> sys::bpf_attach_type {
    match direction {
        Direction::In => sys::BPF_TCX_INGRESS,
        Direction::Out => sys::BPF_TCX_EGRESS,
    }
}

/// Whether this kernel has such links. It is asked for one at a device that does not exist: a kernel with such links
/// answers that there is no such device, and a kernel without them that the command is invalid.
pub(crate) fn is_there() -> io::Result<bool> {
    let program = bpf_call::load_classifier(&PASSES, c"GPL")?;
    match bpf_call::create_link(program.as_fd(), i32::MAX, sys::BPF_TCX_INGRESS, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(true),
    }
}

/// A link, which holds its program in place as long as a process has it open or its pin is there.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    pub(super) fn create(program: BorrowedFd<'_>, spot: &Spot) -> io::Result<Self> {
        bpf_call::create_link(program, spot.target(), hook(spot.direction), sys::BPF_F_BEFORE).map(Self)
    }

    pub(super) fn open(pin: &Path) -> io::Result<Self> {
        bpf_call::open_pin(pin).map(Self)
    }

    pub(super) fn pin(&self, pin: &Path) -> io::Result<()> {
        bpf_call::pin(self.0.as_fd(), pin)
    }

    /// Puts another program in the place of its own, in one step.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        bpf_call::update_link(self.0.as_fd(), program)
    }

    /// Detaches the program at once, even while other processes have the link open.
    pub(super) fn detach(&self) -> io::Result<()> {
        bpf_call::detach_link(self.0.as_fd())
    }

    /// The number of its program, if it is at that very spot.
    pub(super) fn program_at(&self, spot: &Spot) -> Option<u32> {
        let place = bpf_call::tcx_place(self.0.as_fd()).ok()?;
        (place.device == spot.index && place.hook == hook(spot.direction)).then_some(place.program)
    }
}

/// How many programs are at a hook of a device beside ours.
pub(super) fn others(spot: &Spot, own: Option<u32>) -> io::Result<usize> {
    let programs = bpf_call::programs_at(spot.target(), hook(spot.direction))?;
    Ok(programs.into_iter().filter(|program| Some(*program) != own).count())
}
