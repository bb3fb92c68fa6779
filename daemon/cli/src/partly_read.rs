//! Output whose reader may leave before its end, as `head` does.
//!
//! Invariant: an answer ends with the same exit code, however much of it is read. What has no end by itself ends with
//! its reader.

use std::io::{self, ErrorKind, Write};

use super::ClientCommand;
use super::filters::TableArgs;

/// Writes for as long as there is a reader.
pub(super) struct PartlyRead<W> {
    out: W,
    ends_with_reader: bool,
}

impl<W> PartlyRead<W> {
    pub(super) const fn of_command(out: W, question: &ClientCommand) -> Self {
        Self { out, ends_with_reader: is_endless(question) }
    }

    fn forgive<T>(&self, written: io::Result<T>, whole: T) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe && !self.ends_with_reader => Ok(whole),
            written => written,
        }
    }
}

/// Whether a command goes on until it is interrupted.
const fn is_endless(question: &ClientCommand) -> bool {
    matches!(
        question,
        ClientCommand::Watch(_)
            | ClientCommand::Top
            | ClientCommand::Frontends(TableArgs { is_followed: true, .. })
            | ClientCommand::Backends(TableArgs { is_followed: true, .. })
            | ClientCommand::Services(TableArgs { is_followed: true, .. })
    )
}

impl<W: Write> Write for PartlyRead<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.forgive(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.forgive(flushed, ())
    }
}
