//! Writes to the journal: its native protocol over a datagram socket that never blocks.
//!
//! Invariant: logging never waits, whatever journald's state. A line costs one system call, plus a few if it exceeds
//! a datagram or lines were lost before. A refused line is counted, and the count is logged as soon as the journal
//! takes lines again. The socket is the only queue, and the administrator sets its length.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::entry::{Entry, Origin};
use super::messages::{self, Message};

const SOCKET: &str = "/run/systemd/journal/socket";

/// The journal, shared by all threads.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    // The socket is not connected, so the next line reaches a restarted journald.
    path: PathBuf,
    lost: AtomicU64,
}

impl Journal {
    pub(super) fn open() -> io::Result<Self> {
        Self::open_at(Path::new(SOCKET))
    }

    pub(super) fn open_at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.to_owned(), lost: AtomicU64::new(0) })
    }

    fn log(&self, entry: &Entry, origin: Origin) {
        self.report_lost();
        self.send_or_count(&entry.encode(origin));
    }

    /// Logs how many lines were lost. It also runs while nothing is logged, so that no count waits for the next line.
    pub(super) fn report_lost(&self) {
        let count = self.lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            self.send_count(messages::LOST, &format!(" count={count}"), count);
        }
    }

    /// Sends a count. If the journal refuses it, the count goes back to the lost lines.
    fn send_count(&self, Message { id, text }: Message, fields: &str, count: u64) {
        let text = format!(
            "MESSAGE={text}{fields}\nPRIORITY=4\nSYSLOG_IDENTIFIER=holdfast\nMESSAGE_ID={id}\nHOLDFAST_COUNT={count}\n"
        );
        if self.send(text.as_bytes()).is_err() {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn send_or_count(&self, bytes: &[u8]) {
        if self.send(bytes).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.send_to(bytes, &self.path) {
            Err(error) if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) => self.send_file(bytes),
            sent => sent.map(drop),
        }
    }

    /// Sends an entry larger than a datagram, as a file sealed against changes.
    fn send_file(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
        let mut file = std::fs::File::from(memfd_create("holdfast-log", flags)?);
        file.write_all(bytes)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::all()))?;
        let file = OwnedFd::from(file);
        let descriptors = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let to = UnixAddr::new(&self.path)?;
        sendmsg(self.socket.as_raw_fd(), &[], &rights, MsgFlags::empty(), Some(&to))?;
        Ok(())
    }
}

/// Writes every event to the journal.
#[derive(Debug)]
pub(super) struct JournalLayer(pub(super) std::sync::Arc<Journal>);

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::default();
        event.record(&mut entry);
        let from = event.metadata();
        let id = messages::find_id(from.name());
        let level = *from.level();
        let is_notice = from.target() == messages::NOTICE;
        self.0.log(&entry, Origin { id, level, is_notice, file: from.file(), line: from.line() });
    }
}
