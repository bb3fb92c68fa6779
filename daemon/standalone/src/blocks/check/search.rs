//! Searches a text in a reply while it arrives.
//!
//! Invariant: at most [`ANSWER_BYTES_MAX`] of a reply count, and each byte is visited a bounded number of times,
//! however small the chunks are.

use memchr::memmem::Finder;

use super::{ANSWER_BYTES_MAX, CheckError, excerpt};

/// A text, and the received part of the reply.
#[derive(Debug)]
pub(super) struct Search<'a> {
    text: Finder<'a>,
    /// The received bytes; the caller appends.
    pub(super) answer: Vec<u8>,
    scanned: usize,
    is_found: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: Finder::new(text), answer: Vec::new(), scanned: 0, is_found: false }
    }

    /// Whether the search is over: the text was found, or the limit is reached.
    pub(super) fn scan_answer(&mut self) -> bool {
        // The text may start before the new bytes.
        let from = self.scanned.saturating_sub(self.text.needle().len());
        let to = self.answer.len().min(ANSWER_BYTES_MAX);
        let unseen = self.answer.get(from..to).unwrap_or_default();
        self.is_found = self.is_found || self.text.find(unseen).is_some();
        self.scanned = to;
        self.is_found || to == ANSWER_BYTES_MAX
    }

    /// The result of the search.
    pub(super) fn into_result(mut self) -> Result<(), CheckError> {
        let is_over = self.scan_answer();
        if self.is_found {
            return Ok(());
        }
        let within = if is_over { "the first 16 KiB of the answer" } else { "the answer" };
        let [text, answer] = [self.text.needle(), &self.answer].map(excerpt);
        Err(CheckError::Without { text, within, answer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the text is found in a reply that arrives in chunks of this size.
    fn is_found(text: &str, answer: &[u8], piece: usize) -> bool {
        let mut search = Search::new(text);
        for piece in answer.chunks(piece) {
            if search.scan_answer() {
                break;
            }
            search.answer.extend_from_slice(piece);
        }
        search.into_result().is_ok()
    }

    #[track_caller]
    fn check(rule: &str, text: &str, answer: &[u8], expected: bool) {
        for piece in [1, 2, 3, 1_000, 100_000] {
            assert_eq!(is_found(text, answer, piece), expected, "{rule}, in pieces of {piece}");
        }
    }

    fn after(bytes: usize, text: &str) -> Vec<u8> {
        [vec![b'x'; bytes], text.into()].concat()
    }

    #[test]
    fn a_text_is_found_anywhere_within_the_limit() {
        check("all of it", "PONG", b"PONG", true);
        check("in the midst", "PONG", b"+PONG\r\n", true);
        check("after its own beginning", "aab", b"aaaab", true);
        check("its beginning alone", "PONG", b"PON", false);
        check("in other letters", "pong", b"PONG", false);
        check("nothing came", "PONG", b"", false);
        check("the last that counts", "PONG", &after(ANSWER_BYTES_MAX - 4, "PONG"), true);
        check("a byte too late", "PONG", &after(ANSWER_BYTES_MAX - 3, "PONG"), false);
    }
}
