//! Links of programs to devices, of whatever kind.
//!
//! Invariant: a link is at one hook of one device for ever; when the device goes, the link is nowhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::bpf_syscall::{self, LinkAttachment};

/// A link, which holds its program in place as long as a process has it open or its pin is there.
#[derive(Debug)]
pub(super) struct DeviceLink(pub(super) OwnedFd);

impl DeviceLink {
    pub(super) fn open(pin: &Path) -> io::Result<Self> {
        bpf_syscall::open_pin(pin).map(Self)
    }

    pub(super) fn pin(&self, pin: &Path) -> io::Result<()> {
        bpf_syscall::pin(self.0.as_fd(), pin)
    }

    /// Puts another program in the place of its own, in one step.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        bpf_syscall::update_link(self.0.as_fd(), program)
    }

    /// Detaches the program at once, even while other processes have the link open.
    pub(super) fn detach(&self) -> io::Result<()> {
        bpf_syscall::detach_link(self.0.as_fd())
    }

    /// Where it is, and with which program.
    pub(super) fn attachment(&self) -> io::Result<LinkAttachment> {
        bpf_syscall::link_attachment(self.0.as_fd())
    }

    /// Pins it in the folder of its device, in the place of one that held no more.
    pub(super) fn replace_pin(&self, pin: &Path) -> io::Result<()> {
        pin.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        match std::fs::remove_file(pin) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.pin(pin),
        }
    }
}
