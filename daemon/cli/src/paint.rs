//! Colours for a terminal: what is well, what is held, what is not served.
//!
//! Invariant: only colours are added, and only to whole cells, headings and beginnings of lines known from the daemon's
//! answers; without colours not a byte differs. There is no option for colours, because every other program obeys
//! `NO_COLOR` and `TERM=dumb` as well.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

/// A longer line is written in pieces instead of whole, because it is no line of a table.
const LINE_BYTES_MAX: usize = 64 * 1024;

const BOLD: &str = "1";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";

/// Cells of tables that show a state.
const CELLS: [(&str, &str); 23] = [
    ("serving", GREEN),
    ("active", GREEN),
    ("done", GREEN),
    ("synced", GREEN),
    ("draining", YELLOW),
    ("held", YELLOW),
    ("pending", YELLOW),
    ("passing", YELLOW),
    ("bypassed", YELLOW),
    ("refusing", RED),
    ("refused", RED),
    ("dropping", RED),
    ("dropped", RED),
    ("conflict", RED),
    ("unprogrammed", RED),
    ("error", RED),
    ("broken", RED),
    ("outage", RED),
    ("silent", RED),
    ("checks", RED),
    ("node-port", RED),
    ("health-port", RED),
    ("shortage", RED),
];

/// Beginnings of lines that show a state.
const BEGINNINGS: [(&str, &str); 7] = [
    ("all equal", GREEN),
    ("NOT equal", RED),
    ("not fully compared", YELLOW),
    ("error: ", RED),
    ("warning: ", YELLOW),
    ("stale: ", YELLOW),
    ("reloaded", GREEN),
];

/// Whether colours are visible and wanted.
pub(super) fn is_wanted(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// Whether colours are visible and wanted at this process's standard output.
fn are_colours_wanted() -> bool {
    let variable = |name| std::env::var_os(name);
    is_wanted(io::stdout().is_terminal(), variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
}

/// Writes each line through in colours.
pub(super) struct ColourWriter<W: Write> {
    out: W,
    is_painting: bool,
    line: Vec<u8>,
}

impl<W: Write> ColourWriter<W> {
    /// Writes to `out`, in colours if standard output is a terminal that shows them.
    pub(super) fn new(out: W) -> Self {
        Self::with_colours(are_colours_wanted(), out)
    }

    fn with_colours(is_painting: bool, out: W) -> Self {
        Self { out, is_painting, line: Vec::new() }
    }

    /// The output itself, for text without colours.
    pub(super) fn without_colours(&mut self) -> &mut W {
        &mut self.out
    }

    fn write_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line) {
            Ok(text) => self.out.write_all(paint_line(text).as_bytes()),
            Err(_) => self.out.write_all(&line),
        }
    }
}

impl<W: Write> Write for ColourWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_painting {
            return self.out.write(bytes);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() > LINE_BYTES_MAX {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_line()?;
        self.out.flush()
    }
}

fn paint_text(text: &str, colour: &str) -> String {
    format!("\u{1b}[{colour}m{text}\u{1b}[0m")
}

fn paint_line(line: &str) -> String {
    let text = line.trim_end_matches('\n');
    let end = line.get(text.len()..).unwrap_or_default();
    if is_heading(text) {
        return paint_text(text, BOLD) + end;
    }
    match BEGINNINGS.iter().find(|(begin, _)| text.starts_with(begin)) {
        Some((_, colour)) => paint_text(text, colour) + end,
        None => text.split("  ").map(paint_cell).collect::<Vec<_>>().join("  ") + end,
    }
}

/// Whether a line has the titles of columns, all in capitals.
fn is_heading(text: &str) -> bool {
    text.contains("  ") && text.bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b' ' | b'_'))
}

/// A cell in its colour. Two blanks separate cells; a third one belongs to a cell, and is not painted.
fn paint_cell(text: &str) -> String {
    let word = text.trim_matches(' ');
    match CELLS.iter().find(|(known, _)| *known == word) {
        Some((_, colour)) => text.replace(word, &paint_text(word, colour)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(is_painting: bool, pieces: &[&str]) -> String {
        let mut painted = ColourWriter::with_colours(is_painting, Vec::new());
        pieces.iter().for_each(|piece| painted.write_all(piece.as_bytes()).unwrap());
        painted.flush().unwrap();
        String::from_utf8(painted.out).unwrap()
    }

    const TABLE: &str =
        "SERVICE      VERDICT   WRITE \ndefault/web  serving   done  \ndefault/gone refusing  done";

    #[test]
    fn colours_appear_only_on_terminals_that_want_them() {
        let set = Some(OsStr::new("1"));
        assert!(is_wanted(true, None, Some(OsStr::new("xterm"))));
        assert!(is_wanted(true, Some(OsStr::new("")), None), "an empty NO_COLOR says nothing");
        assert!(!is_wanted(false, None, None));
        assert!(!is_wanted(true, set, None));
        assert!(!is_wanted(true, None, Some(OsStr::new("dumb"))));
    }

    #[test]
    fn without_colours_nothing_differs() {
        assert_eq!(through(false, &[TABLE]), TABLE);
    }

    #[test]
    fn cells_and_headings_are_painted_in_any_chunks() {
        let head = "\u{1b}[1mSERVICE      VERDICT   WRITE \u{1b}[0m";
        let web = "default/web  \u{1b}[32mserving\u{1b}[0m";
        let whole = through(true, &[TABLE]);
        assert!(whole.starts_with(head) && whole.contains(web), "{whole:?}");
        assert!(whole.ends_with("\u{1b}[32mdone\u{1b}[0m"), "a last line without its end too: {whole:?}");
        let pieces: Vec<String> = TABLE.chars().map(String::from).collect();
        assert_eq!(through(true, &pieces.iter().map(String::as_str).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn only_whole_cells_are_painted() {
        for line in ["default/held  x\n", "not serving\n", "  a is serving b\n", "\n", "held-by-me  x\n"] {
            assert_eq!(paint_line(line), line);
        }
        assert_eq!(paint_line("all equal\n"), "\u{1b}[32mall equal\u{1b}[0m\n");
    }

    proptest::proptest! {
        #[test]
        fn only_colours_are_added(text in "\\PC*\n?\\PC*") {
            let mut plain = through(true, &[&text]);
            for colour in [BOLD, GREEN, YELLOW, RED, "0"] {
                plain = plain.replace(&format!("\u{1b}[{colour}m"), "");
            }
            proptest::prop_assert_eq!(plain, text);
        }
    }
}
