//! Where a person reads a page of the guide: the file that the package brought, or else the page on the web.
//!
//! Invariant: an answer names a file only if this machine has it. Only this module decides it.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use holdfast_diagnose::explain::GUIDE_URL;

/// Where packages put the pages.
const PAGES: &str = "/usr/share/doc/holdfast";

/// Writes an answer with the place of each page that it names.
pub(super) struct GuideWriter<W> {
    out: W,
    folder: PathBuf,
    line: Vec<u8>,
}

impl<W: Write> GuideWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, folder: PAGES.into(), line: Vec::new() }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line) {
            Ok(text) => self.out.write_all(localize(text, &self.folder).as_bytes()),
            Err(_) => self.out.write_all(&line),
        }
    }
}

impl<W: Write> Write for GuideWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
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

/// The line with the file of this machine in place of the page's address.
fn localize<'a>(line: &'a str, folder: &Path) -> Cow<'a, str> {
    let Some((before, page)) = line.split_once(GUIDE_URL) else { return line.into() };
    let (page, end) = page.split_once('\n').map_or((page, ""), |(page, _)| (page, "\n"));
    let Some((file, section)) = page.strip_prefix("docs/").and_then(|page| page.split_once('#')) else {
        return line.into();
    };
    let path = folder.join(file);
    if file.contains('/') || !path.is_file() {
        return line.into();
    }
    format!("{before}{}, section {section}{end}", path.display()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_file_only_where_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("    see: {GUIDE_URL}docs/explain.md#no-endpoints\n");
        assert_eq!(localize(&line, folder.path()), line, "the file is missing");
        let file = folder.path().join("explain.md");
        std::fs::write(&file, "").unwrap();
        let expected = format!("    see: {}, section no-endpoints\n", file.display());
        assert_eq!(localize(&line, folder.path()), expected);
        assert_eq!(localize("see: nothing\n", folder.path()), "see: nothing\n");
    }

    #[test]
    fn an_answer_in_pieces_is_written_whole() {
        let mut out = Vec::new();
        let mut guide = GuideWriter::new(&mut out);
        for piece in ["one\nsee: htt", "ps://elsewhere\nthe ", "rest"] {
            guide.write_all(piece.as_bytes()).unwrap();
        }
        guide.flush().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "one\nsee: https://elsewhere\nthe rest");
    }
}
