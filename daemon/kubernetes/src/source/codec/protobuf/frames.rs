//! Splits a watch into frames: each is four bytes of length, then the message.
//!
//! Invariant: the frames do not depend on chunk boundaries, and none takes more memory than one piece. A length that no
//! apiserver sends is not awaited: it is emitted as a frame that was cut before its first byte.

use crate::source::codec::Framer;
use crate::source::piece::{PIECE_BYTES_MAX, Piece, PieceBuffer};

/// The size of a frame's length.
const LENGTH_BYTES: usize = 4;

/// The longest frame that is skipped. Bytes that are no length, such as a proxy's text, decode to a hundred times as
/// much; etcd stores at most a tenth of it.
const FRAME_BYTES_MAX: usize = 4 * PIECE_BYTES_MAX;

/// The unfinished frame.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The received bytes of the length.
    length: Vec<u8>,
    /// The bytes of the frame still to come.
    left: usize,
    piece: PieceBuffer,
    is_broken: bool,
}

impl Framer for Frames {
    fn push_chunk(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        let mut rest = chunk;
        while !rest.is_empty() && !self.is_broken {
            rest = if self.length.len() < LENGTH_BYTES {
                self.read_length(rest, each)
            } else {
                self.read_body(rest, each)
            };
        }
    }
}

impl Frames {
    fn read_length<'a>(&mut self, rest: &'a [u8], each: &mut dyn FnMut(Piece<'_>)) -> &'a [u8] {
        let (bytes, rest) = rest.split_at(rest.len().min(LENGTH_BYTES - self.length.len()));
        self.length.extend_from_slice(bytes);
        if let Ok(length) = self.length.as_slice().try_into().map(u32::from_be_bytes) {
            self.left = usize::try_from(length).unwrap_or(usize::MAX);
            if self.left > FRAME_BYTES_MAX {
                self.is_broken = true;
                each(Piece::Cut(&[]));
            } else if self.left == 0 {
                self.length.clear();
                each(Piece::Whole(&[]));
            }
        }
        rest
    }

    fn read_body<'a>(&mut self, rest: &'a [u8], each: &mut dyn FnMut(Piece<'_>)) -> &'a [u8] {
        let (run, rest) = rest.split_at(rest.len().min(self.left));
        self.left -= run.len();
        self.piece.push_run(run, self.left == 0, each);
        if self.left == 0 {
            self.length.clear();
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(chunks: &[&[u8]]) -> Vec<String> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for chunk in chunks {
            frames.push_chunk(chunk, &mut |piece| {
                found.push(match piece {
                    Piece::Whole(frame) => String::from_utf8_lossy(frame).into_owned(),
                    Piece::Cut(frame) => format!("cut after {}", frame.len()),
                });
            });
        }
        found
    }

    fn framed(text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&length[..], text].concat()
    }

    #[test]
    fn frames_do_not_depend_on_chunks() {
        let bytes = [framed(b"one"), framed(b""), framed(b"three"), framed(b"half")].concat();
        let bytes = &bytes[..bytes.len() - 1];
        for size in 1..=bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            assert_eq!(frames(&chunks), ["one", "", "three"], "in chunks of {size}");
        }
    }

    #[test]
    fn a_giant_frame_is_cut_and_the_next_one_is_whole() {
        let giant = vec![b'x'; PIECE_BYTES_MAX + 1];
        let bytes = [framed(&giant), framed(b"next")].concat();
        let cut = format!("cut after {PIECE_BYTES_MAX}");
        assert_eq!(frames(&[&bytes]), [cut.as_str(), "next"]);
        assert_eq!(frames(&bytes.chunks(1_000).collect::<Vec<_>>()), [cut.as_str(), "next"]);
        let longest = framed(&giant[1..]);
        assert_eq!(frames(&[&longest]).first().map(String::len), Some(PIECE_BYTES_MAX));
    }

    #[test]
    fn an_impossible_length_is_cut_at_once_and_ends_the_frames() {
        assert_eq!(frames(&[b"{\"ty", b"pe\":1}\n", &framed(b"next")]), ["cut after 0"]);
    }
}
