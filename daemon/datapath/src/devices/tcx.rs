//! Links of programs at devices (tcx, Linux 6.6).
//!
//! Invariant: a link is at one hook of one device for ever; when the device goes, the link is nowhere. Our programs
//! come before those of others, which may end the chain; ours never do.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

use super::{Direction, Spot};
use crate::foreign;

/// `r0 = -1; exit`: the packet goes on.
const PASSES: [sys::bpf_insn; 2] = [instruction(0xb7, -1), instruction(0x95, 0)];

const fn instruction(code: u8, imm: i32) -> sys::bpf_insn {
    let registers = sys::__BindgenBitfieldUnit::new([0]);
    sys::bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers, off: 0, imm }
}

/// What libbpf returns: a number, or an error below 0.
fn checked(returned: i32) -> io::Result<i32> {
    if returned < 0 { Err(io::Error::from_raw_os_error(-returned)) } else { Ok(returned) }
}

fn owned(returned: i32) -> io::Result<OwnedFd> {
    // SAFETY: what is not negative is a descriptor that was opened for us.
    checked(returned).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

const fn hook(direction: Direction) -> sys::bpf_attach_type {
    match direction {
        Direction::In => sys::BPF_TCX_INGRESS,
        Direction::Out => sys::BPF_TCX_EGRESS,
    }
}

/// Whether this kernel has such links: a kernel with them misses the device, and one without them the command.
pub(crate) fn is_there() -> io::Result<bool> {
    // SAFETY: the program and its licence outlive the call; it needs no name and no options.
    let program = owned(unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_SCHED_CLS,
            std::ptr::null(),
            c"GPL".as_ptr(),
            PASSES.as_ptr(),
            PASSES.len() as sys::size_t,
            std::ptr::null_mut(),
        )
    })?;
    // SAFETY: the program is open, and no options are given.
    let returned = unsafe {
        sys::bpf_link_create(program.as_raw_fd(), i32::MAX, sys::BPF_TCX_INGRESS, std::ptr::null())
    };
    match owned(returned) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(true),
    }
}

/// A link, which holds its program in place as long as a process has it open or its pin is there.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

/// Where a link is, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u32,
    hook: sys::bpf_attach_type,
    program: u32,
}

impl Link {
    pub(super) fn create(program: BorrowedFd<'_>, spot: &Spot) -> io::Result<Self> {
        let first = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            flags: sys::BPF_F_BEFORE,
            ..Default::default()
        };
        // SAFETY: the program is open, and the options outlive the call.
        owned(unsafe {
            sys::bpf_link_create(program.as_raw_fd(), spot.target(), hook(spot.direction), &raw const first)
        })
        .map(Self)
    }

    pub(super) fn open(pin: &Path) -> io::Result<Self> {
        let pin = text(pin)?;
        // SAFETY: the path ends in zero and outlives the call.
        owned(unsafe { sys::bpf_obj_get(pin.as_ptr()) }).map(Self)
    }

    pub(super) fn pin(&self, pin: &Path) -> io::Result<()> {
        let pin = text(pin)?;
        // SAFETY: the path ends in zero and outlives the call.
        checked(unsafe { sys::bpf_obj_pin(self.0.as_raw_fd(), pin.as_ptr()) }).map(drop)
    }

    /// Puts another program in the place of its own, in one step.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both are open, and no options are given.
        let returned =
            unsafe { sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
        checked(returned).map(drop)
    }

    /// Detaches the program at once, even while other processes have the link open.
    pub(super) fn detach(&self) -> io::Result<()> {
        // SAFETY: it is open.
        checked(unsafe { sys::bpf_link_detach(self.0.as_raw_fd()) }).map(drop)
    }

    /// The number of its program, if it is at that very spot.
    pub(super) fn program_at(&self, spot: &Spot) -> Option<u32> {
        let place = self.place().ok()?;
        (place.index == spot.index && place.hook == hook(spot.direction)).then_some(place.program)
    }

    fn place(&self) -> io::Result<Place> {
        let mut info = sys::bpf_link_info::default();
        let mut length = u32::try_from(size_of_val(&info)).unwrap_or_default();
        // SAFETY: the kernel writes at most `length` bytes to `info`.
        checked(unsafe { sys::bpf_link_get_info_by_fd(self.0.as_raw_fd(), &raw mut info, &raw mut length) })?;
        if info.type_ != sys::BPF_LINK_TYPE_TCX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: of a link of this type the kernel has written this part, and any bytes are a value of it.
        let tcx = unsafe { info.__bindgen_anon_1.tcx };
        Ok(Place { index: tcx.ifindex, hook: tcx.attach_type, program: info.prog_id })
    }
}

/// How many programs are at a hook of a device, ours and those of others.
pub(super) fn count(spot: &Spot) -> usize {
    foreign::attached(spot.target(), hook(spot.direction)).map_or(0, |programs| programs.len())
}
