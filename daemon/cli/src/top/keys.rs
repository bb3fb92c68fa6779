//! Keys, from the bytes that a terminal sends for them.
//!
//! Invariant: an unknown sequence is no text: it never ends up in the filter.

/// A key that means something to `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Text(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    Backspace,
    /// Clears the line, as in a shell.
    ClearLine,
    Escape,
    /// Ctrl-C or Ctrl-D.
    Quit,
}

const ESCAPE: u8 = 0x1b;

/// The most bytes of one sequence; a longer one is not from a key.
const SEQUENCE_BYTES_MAX: usize = 16;

/// What follows `ESC [` or `ESC O`.
const SEQUENCES: [(&[u8], Key); 15] = [
    (b"A", Key::Up),
    (b"B", Key::Down),
    (b"C", Key::Right),
    (b"D", Key::Left),
    (b"H", Key::Home),
    (b"F", Key::End),
    (b"1~", Key::Home),
    (b"4~", Key::End),
    (b"5~", Key::PageUp),
    (b"6~", Key::PageDown),
    (b"7~", Key::Home),
    (b"8~", Key::End),
    (b"Z", Key::Tab),
    (b"1;5C", Key::Right),
    (b"1;5D", Key::Left),
];

/// Keeps the bytes of a key that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct KeyDecoder {
    pending: Vec<u8>,
}

/// What a run of bytes begins with.
enum Step {
    Key(Option<Key>, usize),
    Incomplete,
}

impl KeyDecoder {
    /// The keys that are complete with these bytes. A single escape at their end is the key Escape: what terminals send
    /// for another key arrives in one piece.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        let mut keys = Vec::new();
        while !rest.is_empty() {
            match decode_one(rest) {
                Step::Key(key, length) => {
                    keys.extend(key);
                    rest = rest.get(length..).unwrap_or_default();
                }
                Step::Incomplete => break,
            }
        }
        self.pending = rest.to_vec();
        keys
    }
}

fn decode_one(bytes: &[u8]) -> Step {
    match bytes {
        [ESCAPE, b'[' | b'O', rest @ ..] => decode_sequence(rest),
        [ESCAPE, ..] => Step::Key(Some(Key::Escape), 1),
        [0x03 | 0x04, ..] => Step::Key(Some(Key::Quit), 1),
        [0x15, ..] => Step::Key(Some(Key::ClearLine), 1),
        [b'\t', ..] => Step::Key(Some(Key::Tab), 1),
        [0x7f | 0x08, ..] => Step::Key(Some(Key::Backspace), 1),
        [control, ..] if *control < 0x20 => Step::Key(None, 1),
        text => decode_text(text),
    }
}

/// A sequence ends with a letter or a tilde.
fn decode_sequence(rest: &[u8]) -> Step {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        return match rest.len() {
            0..SEQUENCE_BYTES_MAX => Step::Incomplete,
            length => Step::Key(None, length + 2),
        };
    };
    let sequence = rest.get(..=end).unwrap_or_default();
    let key = SEQUENCES.iter().find(|(known, _)| *known == sequence).map(|(_, key)| *key);
    Step::Key(key, end + 3)
}

fn decode_text(bytes: &[u8]) -> Step {
    let Some(chunk) = bytes.utf8_chunks().next() else { return Step::Incomplete };
    match (chunk.valid().chars().next(), chunk.invalid()) {
        (Some(character), _) => Step::Key(Some(Key::Text(character)), character.len_utf8()),
        (None, begun) if begun.len() == bytes.len() && begun.len() < 4 => {
            match std::str::from_utf8(begun).is_err_and(|error| error.error_len().is_none()) {
                true => Step::Incomplete,
                false => Step::Key(None, begun.len()),
            }
        }
        (None, invalid) => Step::Key(None, invalid.len().max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&[u8]], expected: &[Key]) {
        let mut decoder = KeyDecoder::default();
        let keys: Vec<Key> = pieces.iter().flat_map(|piece| decoder.decode(piece)).collect();
        assert_eq!(keys, expected, "{pieces:?}");
    }

    #[test]
    fn keys_are_read_whole_or_in_pieces() {
        check(&[b"ab"], &[Key::Text('a'), Key::Text('b')]);
        check(&["é€".as_bytes()], &[Key::Text('é'), Key::Text('€')]);
        check(&[b"\xe2\x82", b"\xac"], &[Key::Text('€')]);
        check(&[b"\x1b[A\x1bOB\x1b[5~"], &[Key::Up, Key::Down, Key::PageUp]);
        check(&[b"\x1b[", b"C"], &[Key::Right]);
        check(&[b"\x1b"], &[Key::Escape]);
        check(&[b"\x03"], &[Key::Quit]);
        check(&[b"x\x7f\x15\t"], &[Key::Text('x'), Key::Backspace, Key::ClearLine, Key::Tab]);
    }

    #[test]
    fn what_is_no_key_is_no_text() {
        check(&[b"\x1b[200~\x1b[99;1mz"], &[Key::Text('z')]);
        check(&[b"\xff\xc3("], &[Key::Text('(')]);
        check(&[b"\x1b[1111111111111111111111"], &[]);
        check(&[b"\x00\x1a\r"], &[]);
    }

    proptest::proptest! {
        #[test]
        fn no_input_makes_it_panic_or_keep_much(pieces: Vec<Vec<u8>>) {
            let mut decoder = KeyDecoder::default();
            for piece in pieces {
                decoder.decode(&piece);
                proptest::prop_assert!(decoder.pending.len() <= SEQUENCE_BYTES_MAX + 2);
            }
        }
    }
}
