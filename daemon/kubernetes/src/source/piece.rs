//! One object's bytes, as the splitters of pages and watches emit them.
//!
//! Invariant: no piece is longer than `PIECE_BYTES_MAX`, whatever a server sends.

/// The longest piece: ten times a slice of 1,000 endpoints, and far more than etcd stores per object.
pub(super) const PIECE_BYTES_MAX: usize = 4 << 20;

/// The bytes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// All bytes of the object.
    Whole(&'a [u8]),
    /// The start of an object that is too long; the rest was skipped.
    Cut(&'a [u8]),
}

impl<'a> Piece<'a> {
    /// The bytes: the whole object or its start.
    pub(super) const fn bytes(self) -> &'a [u8] {
        let (Self::Whole(bytes) | Self::Cut(bytes)) = self;
        bytes
    }
}

/// Why a cut piece is not read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than {PIECE_BYTES_MAX} bytes, which is the most that is read")]
pub(super) struct PieceTooLong;

/// A piece that may span chunks.
#[derive(Debug, Default)]
pub(super) struct PieceBuffer {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl PieceBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn push(&mut self, run: &[u8]) {
        let room = PIECE_BYTES_MAX - self.bytes.len();
        self.is_cut |= run.len() > room;
        let (kept, _) = run.split_at(run.len().min(room));
        self.bytes.extend_from_slice(kept);
    }

    /// Takes the next run of a piece, and emits the piece after the last one. A piece of a single run is not copied.
    pub(super) fn push_run(&mut self, run: &[u8], is_last: bool, each: &mut dyn FnMut(Piece<'_>)) {
        if is_last && self.is_empty() && run.len() <= PIECE_BYTES_MAX {
            return each(Piece::Whole(run));
        }
        self.push(run);
        if is_last {
            self.emit_piece(each);
        }
    }

    /// Emits the piece and starts the next one. A very large buffer is freed.
    pub(super) fn emit_piece(&mut self, each: &mut dyn FnMut(Piece<'_>)) {
        each(if self.is_cut { Piece::Cut(&self.bytes) } else { Piece::Whole(&self.bytes) });
        let kept = std::mem::take(self).bytes;
        if kept.capacity() <= PIECE_BYTES_MAX / 8 {
            self.bytes = kept;
            self.bytes.clear();
        }
    }
}
