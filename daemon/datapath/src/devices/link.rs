//! Links of programs to devices, of whatever kind.
//!
//! Invariant: a link is at one hook of one device for ever; when the device goes, the link is nowhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::bpf_call::{self, LinkPlace};

/// A link, which holds its program in place as long as a process has it open or its pin is there.
#[derive(Debug)]
pub(super) struct Link(pub(super) OwnedFd);

impl Link {
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

    /// Where it is, and with which program.
    pub(super) fn place(&self) -> io::Result<LinkPlace> {
        bpf_call::link_place(self.0.as_fd())
    }

    /// Pins it in the folder of its device, in the place of one that held no more.
    pub(super) fn keep(&self, pin: &Path) -> io::Result<()> {
        pin.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        match std::fs::remove_file(pin) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.pin(pin),
        }
    }
}
