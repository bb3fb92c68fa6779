//! Splits a watch into lines.
//!
//! Invariant: the lines do not depend on chunk boundaries; an unfinished line is never emitted, and never takes more
//! memory than one piece.

use super::piece::{Piece, PieceBuffer};

/// The unfinished line.
#[derive(Debug, Default)]
pub struct Lines {
    line: PieceBuffer,
}

impl Lines {
    /// Takes a chunk, and emits each line that ends in it, without its newline.
    pub fn push_chunk(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            self.line.push(line);
            if !self.line.is_empty() {
                self.line.emit_piece(each);
            }
            rest = after.get(1..).unwrap_or_default();
        }
        self.line.push(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::PIECE_BYTES_MAX;
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for chunk in chunks {
            lines.push_chunk(chunk, &mut |piece| {
                found.push(match piece {
                    Piece::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                    Piece::Cut(line) => format!("cut after {}", line.len()),
                });
            });
        }
        found
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let bytes = text.as_bytes();
        assert_eq!(lines(&[bytes]), expected, "in one chunk");
        for size in 1..=bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            assert_eq!(lines(&chunks), expected, "in chunks of {size}");
        }
    }

    #[test]
    fn lines_do_not_depend_on_chunks() {
        check("", &[]);
        check("a\n", &["a"]);
        check("one\ntwo\n\n\nthree\n", &["one", "two", "three"]);
        check("whole\nhalf", &["whole"]);
    }

    #[test]
    fn a_line_without_end_costs_one_piece_of_memory() {
        let long = vec![b'x'; PIECE_BYTES_MAX + 1];
        let cut = format!("cut after {PIECE_BYTES_MAX}");
        assert_eq!(lines(&[&long, &long]), Vec::<String>::new());
        assert_eq!(lines(&[&long, b"\nnext\n"]), [cut.as_str(), "next"]);
        assert_eq!(lines(&[b"a\n", &long, &long, b"\n", b"next\n"]), ["a", cut.as_str(), "next"]);
    }

    #[test]
    fn the_longest_legal_line_is_whole() {
        let mut longest = vec![b'x'; PIECE_BYTES_MAX];
        longest.push(b'\n');
        assert_eq!(lines(&[&longest]).first().map(String::len), Some(PIECE_BYTES_MAX));
    }
}
