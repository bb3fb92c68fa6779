//! The problems of one reading.
//!
//! Invariant: problems appear in the order of the file, in a bounded number, and never twice for one cause: a line that
//! is not TOML gives one error, whatever the parser makes of its rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::duplicate::{Duplicate, header_at};
use super::limits::PROBLEMS_MAX;
use super::problem::{ConfigErrors, Position, Problem, Subject};
use super::value::quote;
use super::written_keys::WrittenKeys;

/// A place together with its offset in the text.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) place: Subject,
    pub(super) offset: usize,
}

/// The problems of one text.
#[derive(Debug)]
pub(super) struct Report<'t> {
    file: &'t str,
    lines: Lines<'t>,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    omitted: usize,
    broken_lines: BTreeSet<usize>,
    written_keys: WrittenKeys,
    /// The names of blocks, by their paths.
    block_names: BTreeMap<String, String>,
}

impl<'t> Report<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        let lines = Lines::new(text);
        let (errors, warnings, broken_lines, written_keys) = Default::default();
        let block_names = BTreeMap::new();
        Self { file, lines, errors, warnings, omitted: 0, broken_lines, written_keys, block_names }
    }

    /// Notes the name of a block, by which messages call it.
    pub(super) fn name_block(&mut self, path: &str, name: &str) {
        self.block_names.insert(path.to_owned(), name.to_owned());
    }

    /// Notes that the text has this key.
    pub(super) fn note_written(&mut self, path: String) {
        self.written_keys.add(path);
    }

    /// The keys that the text has.
    pub(super) fn take_written_keys(&mut self) -> WrittenKeys {
        std::mem::take(&mut self.written_keys)
    }

    /// Records that the text is not TOML at `span`. Further errors of that line only repeat this one.
    pub(super) fn add_syntax_error(&mut self, span: Option<Range<usize>>, message: &str) {
        let span = span.unwrap_or(usize::MAX..usize::MAX);
        let found = self.lines.text.get(span.clone()).unwrap_or_default().trim();
        let found = if found.is_empty() { String::new() } else { format!(", at {}", quote(found)) };
        self.add_broken_line(span.start, format!("this is not TOML: {message}{found}"));
    }

    /// Records that a table or key is there twice, as TOML forbids.
    pub(super) fn add_duplicate(&mut self, duplicate: &Duplicate) {
        let second = self.lines.line_number(duplicate.second);
        let first = duplicate.first.map(|first| self.lines.line_number(first));
        self.add_broken_line(duplicate.second, duplicate.message((first, second)));
    }

    fn add_broken_line(&mut self, offset: usize, message: String) {
        self.add_error(&Site { place: Subject::File, offset }, message);
        self.broken_lines.insert(self.lines.line_number(offset));
    }

    /// Whether all of the text was TOML. In a broken text, a missing key may be there but unread.
    pub(super) fn is_valid_toml(&self) -> bool {
        self.broken_lines.is_empty()
    }

    /// Whether this offset is in the line of a table's header.
    pub(super) fn is_in_header(&self, offset: usize) -> bool {
        header_at(self.lines.text, offset).is_some()
    }

    pub(super) fn add_error(&mut self, site: &Site, message: String) {
        let echo = self.broken_lines.contains(&self.line_number(site));
        match echo {
            true => (),
            false if self.errors.len() < PROBLEMS_MAX => self.errors.push(self.problem(site, message)),
            false => self.omitted += 1,
        }
    }

    /// A broken text has no warnings: what they miss may be there but unread.
    pub(super) fn add_warning(&mut self, site: &Site, message: String) {
        if self.is_valid_toml() && self.warnings.len() < PROBLEMS_MAX {
            self.warnings.push(self.problem(site, message));
        }
    }

    /// How many errors there are so far.
    pub(super) fn errors_count(&self) -> usize {
        self.errors.len() + self.omitted
    }

    /// The line of a site, for a message with a second place.
    pub(super) fn line_number(&self, site: &Site) -> usize {
        self.lines.line_number(site.offset)
    }

    /// A path in the file: a relative one starts from the file's folder.
    pub(super) fn resolve_path(&self, path: &str) -> PathBuf {
        Path::new(self.file).parent().unwrap_or(Path::new("")).join(path)
    }

    /// The warnings, if there is no error; otherwise the errors and the warnings.
    pub(super) fn finish(self) -> Result<Vec<Problem>, ConfigErrors> {
        let omitted = self.omitted;
        match self.into_problems() {
            (errors, warnings) if errors.is_empty() => Ok(warnings),
            (errors, warnings) => Err(ConfigErrors { errors, warnings, omitted, is_transient: false }),
        }
    }

    pub(super) fn into_problems(mut self) -> (Vec<Problem>, Vec<Problem>) {
        let order = |a: &Problem, b: &Problem| (a.position, &a.place).cmp(&(b.position, &b.place));
        self.errors.sort_by(order);
        self.warnings.sort_by(order);
        (self.errors, self.warnings)
    }

    fn problem(&self, site: &Site, message: String) -> Problem {
        let position = Some(self.lines.position(site.offset));
        let block = match &site.place {
            Subject::Key(path) => self.find_block(path),
            Subject::File | Subject::Table(_) => None,
        };
        Problem {
            file: self.file.to_owned(),
            position,
            place: site.place.clone(),
            block,
            message: message.into(),
        }
    }

    /// The block with this path or key, and its name.
    fn find_block(&self, path: &str) -> Option<(String, String)> {
        let end = path.find(']')? + 1;
        let (block, name) = self.block_names.get_key_value(path.get(..end)?)?;
        Some((block.clone(), name.clone()))
    }
}

/// Turns byte offsets into lines and columns.
#[derive(Debug)]
pub(super) struct Lines<'t> {
    text: &'t str,
    // Ascending; the first is 0.
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(offset, _)| offset + 1);
        Self { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    /// The line of an offset, counted from 1.
    fn line_number(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }

    /// The line and column of an offset; an offset past the end counts as the end.
    pub(super) fn position(&self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        let line = self.line_number(offset);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(offset - start, |before| before.chars().count()) + 1;
        Position { line, column }
    }
}
