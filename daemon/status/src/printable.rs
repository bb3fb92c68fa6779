//! Foreign text made safe for one line of ours: names, labels, messages, reasons, process names.
//!
//! Invariant: no output ends a line, moves a cursor, hides its neighbours or turns their direction, whatever the input.
//! Each such character is shown as `?`.

use std::fmt::{self, Display, Write};

/// A value for display: each unprintable character of its text becomes `?`.
#[derive(Debug)]
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(PrintableWriter(f), "{}", self.0)
    }
}

/// The text with each unprintable character as `?`.
pub fn sanitise_line(text: &str) -> String {
    Printable(text).to_string()
}

/// Several lines of ours, likewise; their line ends stay.
pub fn sanitise_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { replace_unprintable(c) }).collect()
}

/// Whether a character ends a line, moves a cursor, turns its neighbours' direction or is invisible.
pub const fn is_unprintable(character: char) -> bool {
    matches!(character,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

const fn replace_unprintable(character: char) -> char {
    if is_unprintable(character) { '?' } else { character }
}

/// A writer that passes text on to another one, with each unprintable character as `?`.
#[derive(Debug)]
pub struct PrintableWriter<'a, W>(pub &'a mut W);

impl<W: Write> Write for PrintableWriter<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Nearly all text is printable ASCII, and needs no check of each character.
        if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return self.0.write_str(text);
        }
        text.chars().try_for_each(|c| self.0.write_char(replace_unprintable(c)))
    }
}

#[cfg(test)]
mod tests {
    use holdfast_laws::hostile::{HOSTILE, check_lines};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_and_bidi_characters_become_question_marks() {
        assert_eq!(sanitise_line("a\x1b[31mb\u{202e}c\nd\u{9b}2Jé"), "a?[31mb?c?d?2Jé");
        assert_eq!(sanitise_lines("a\nb\r"), "a\nb?");
        check_lines("hostile", &sanitise_line(HOSTILE), is_unprintable);
    }

    proptest! {
        #[test]
        fn no_text_keeps_an_unprintable_character(text in any::<String>()) {
            let out = sanitise_line(&text);
            prop_assert!(!out.chars().any(is_unprintable));
            prop_assert_eq!(out.chars().count(), text.chars().count());
        }
    }
}
