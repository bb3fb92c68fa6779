//! Links of programs to devices, of any type.
//!
//! Invariant: a link stays at one hook of one device; when the device vanishes, the link is defunct.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::bpf_syscall::{self, LinkAttachment};

/// A link, which keeps its program attached while a process holds it open or its pin exists.
#[derive(Debug)]
pub(super) struct DeviceLink(pub(super) OwnedFd);

impl DeviceLink {
    pub(super) fn open(pin: &Path) -> io::Result<Self> {
        bpf_syscall::open_pin(pin).map(Self)
    }

    pub(super) fn pin(&self, pin: &Path) -> io::Result<()> {
        bpf_syscall::pin(self.0.as_fd(), pin)
    }

    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        bpf_syscall::update_link(self.0.as_fd(), program)
    }

    /// Detaches the program at once, even while other processes hold the link open.
    pub(super) fn detach(&self) -> io::Result<()> {
        bpf_syscall::detach_link(self.0.as_fd())
    }

    pub(super) fn attachment(&self) -> io::Result<LinkAttachment> {
        bpf_syscall::link_attachment(self.0.as_fd())
    }

    /// Pins the link in its device's folder, and replaces an old pin.
    pub(super) fn replace_pin(&self, pin: &Path) -> io::Result<()> {
        pin.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        match std::fs::remove_file(pin) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.pin(pin),
        }
    }
}
