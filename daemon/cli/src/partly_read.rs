//! Output whose reader may leave before its end, as `head` does.
//!
//! Invariant: an answer ends with the same exit code, however much of it is read.

use std::io::{self, ErrorKind, Write};

/// Writes for as long as there is a reader, and drops the rest.
pub(super) struct PartlyRead<W>(pub(super) W);

fn forgive<T>(written: io::Result<T>, whole: T) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(whole),
        written => written,
    }
}

impl<W: Write> Write for PartlyRead<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        forgive(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        forgive(self.0.flush(), ())
    }
}
