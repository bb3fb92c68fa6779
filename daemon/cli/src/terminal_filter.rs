//! Answers made safe for a terminal.
//!
//! Invariant: no output moves a cursor, hides its neighbours or turns their direction, whichever process answered in
//! the daemon's place, and no byte is outside of a character. In text such a character becomes `?`; in JSON, where it
//! can only be part of a string, it becomes its escape, which means the same to a program.

use std::io::{self, Write};

use holdfast_status::printable::is_unprintable;

use holdfast_api::form::Form;

/// Writes through what is safe to show.
pub(super) struct TerminalFilter<W> {
    out: W,
    form: Form,
    /// The first bytes of an incomplete character.
    partial: Vec<u8>,
}

impl<W: Write> TerminalFilter<W> {
    pub(super) const fn new(out: W, form: Form) -> Self {
        Self { out, form, partial: Vec::new() }
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        let is_fit = |c: char| matches!(c, '\n' | '\t') || !is_unprintable(c);
        let mut rest = text;
        while let Some((at, odd)) = rest.char_indices().find(|(_, c)| !is_fit(*c)) {
            let (fit, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
            self.out.write_all(fit.as_bytes())?;
            self.write_escape(odd)?;
            rest = from.get(odd.len_utf8()..).unwrap_or_default();
        }
        self.out.write_all(rest.as_bytes())
    }

    fn write_escape(&mut self, odd: char) -> io::Result<()> {
        match self.form {
            Form::Json => {
                let mut units = [0; 2];
                odd.encode_utf16(&mut units).iter().try_for_each(|unit| write!(self.out, "\\u{unit:04x}"))
            }
            Form::Table | Form::Wide => self.out.write_all(b"?"),
        }
    }
}

impl<W: Write> Write for TerminalFilter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.write_text(chunk.valid())?;
            let no_text = chunk.invalid();
            let may_go_on = std::str::from_utf8(no_text).is_err_and(|error| error.error_len().is_none());
            if chunks.peek().is_none() && may_go_on {
                self.partial = no_text.to_vec();
            } else if !no_text.is_empty() {
                self.out.write_all(b"?")?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.partial).is_empty() {
            self.out.write_all(b"?")?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn through(form: Form, pieces: &[&[u8]]) -> String {
        let mut fit = TerminalFilter::new(Vec::new(), form);
        pieces.iter().for_each(|piece| fit.write_all(piece).unwrap());
        fit.flush().unwrap();
        String::from_utf8(fit.out).unwrap()
    }

    #[test]
    fn an_answer_moves_no_cursor_and_turns_no_line() {
        for (bytes, expected) in [
            ("a\tb\né\n".as_bytes(), "a\tb\né\n"),
            (b"\x1b[2Ja\r\x7f", "?[2Ja??"),
            ("\u{9b}2J\u{202e}cba\u{feff}".as_bytes(), "?2J?cba?"),
            // The same as an 8-bit terminal reads it, and a truncated character.
            (b"\x9b2J \xc3", "?2J ?"),
        ] {
            assert_eq!(through(Form::Table, &[bytes]), expected);
        }
    }

    #[test]
    fn a_character_split_over_writes_stays_whole() {
        assert_eq!(through(Form::Wide, &[b"a\xe2", b"\x82", b"\xacb\xc2", b"\x9b"]), "a€b?");
    }

    proptest! {
        #[test]
        fn json_keeps_its_meaning_for_a_program(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            let out = through(Form::Json, &[json.as_bytes()]);
            prop_assert!(!out.chars().any(is_unprintable));
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        }
    }
}
