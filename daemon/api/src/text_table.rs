//! Single values in the cells of tables.

use std::fmt::{Display, Write as _};

use holdfast_core::facts::Timestamp;
use holdfast_status::age::age_of_time;
use holdfast_status::printable::PrintableWriter;

use super::limits;

/// The cells of one line, in one reused text.
#[derive(Debug, Default)]
pub(super) struct Cells {
    text: String,
    ends: Vec<usize>,
}

impl Cells {
    /// The cells of a whole line.
    pub(super) fn from_values<T: Display>(values: impl IntoIterator<Item = T>) -> Self {
        let mut cells = Self::default();
        values.into_iter().for_each(|value| cells.put(value));
        cells
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// Adds a cell. An empty one is shown as `-`; a character that could reverse the line or move a terminal's cursor
    /// is shown as `?`.
    pub(super) fn put(&mut self, value: impl Display) {
        let begin = self.text.len();
        // Writing to a String cannot fail, and a failing Display has nothing to show.
        let _ = write!(PrintableWriter(&mut self.text), "{value}");
        if self.text.len() == begin {
            self.text.push('-');
        }
        self.ends.push(self.text.len());
    }

    /// Adds a cell that may be empty.
    pub(super) fn put_optional(&mut self, value: Option<impl Display>) {
        match value {
            Some(value) => self.put(value),
            None => self.put(""),
        }
    }

    /// Adds its age to each cell that is a time.
    pub(super) fn add_ages(&mut self, now: Timestamp) {
        let (mut begin, mut added) = (0, 0);
        for end in &mut self.ends {
            *end += added;
            if let Some(age) = self.text.get(begin..*end).and_then(|cell| age_of_time(cell, now)) {
                let age = format!(" ({age})");
                self.text.insert_str(*end, &age);
                added += age.len();
                *end += age.len();
            }
            begin = *end;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| self.text.get(begin..*end).unwrap_or_default())
    }
}

#[derive(Debug, Default)]
pub(super) struct ColumnWidths(Vec<usize>);

impl ColumnWidths {
    pub(super) fn observe(&mut self, cells: &Cells) {
        for (place, cell) in cells.iter().enumerate() {
            let width = cell.chars().count().min(limits::COLUMN_WIDTH_MAX);
            match self.0.get_mut(place) {
                Some(known) => *known = width.max(*known),
                None => self.0.push(width),
            }
        }
    }

    /// Writes one line. The last column is not padded.
    pub(super) fn push_line(&self, cells: &Cells, out: &mut Vec<u8>) {
        let last = cells.ends.len().saturating_sub(1);
        for (place, cell) in cells.iter().enumerate() {
            out.extend_from_slice(cell.as_bytes());
            if place < last {
                let width = self.0.get(place).copied().unwrap_or_default();
                let padding = width.saturating_sub(cell.chars().count()) + 2;
                out.resize(out.len() + padding, b' ');
            }
        }
        out.push(b'\n');
    }
}

/// Writes a table of few rows: its titles, then the rows below them.
pub(super) fn write_table<T: Display>(
    titles: impl IntoIterator<Item = T>,
    rows: impl Iterator<Item = Cells>,
    out: &mut Vec<u8>,
) {
    write_aligned(&std::iter::once(Cells::from_values(titles)).chain(rows).collect::<Vec<_>>(), out);
}

/// Writes a table of few rows, with its age behind each time.
pub(super) fn write_dated_table<T: Display>(
    titles: impl IntoIterator<Item = T>,
    rows: impl Iterator<Item = Cells>,
    now: Timestamp,
    out: &mut Vec<u8>,
) {
    let dated = rows.map(|mut cells| {
        cells.add_ages(now);
        cells
    });
    write_table(titles, dated, out);
}

/// Writes lines with aligned columns.
pub(super) fn write_aligned(lines: &[Cells], out: &mut Vec<u8>) {
    let mut widths = ColumnWidths::default();
    lines.iter().for_each(|cells| widths.observe(cells));
    lines.iter().for_each(|cells| widths.push_line(cells, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_cannot_move_the_cursor() {
        let mut cells = Cells::default();
        cells.put("a\u{1b}[2Jb\nc\u{202e}d");
        cells.put("");
        cells.put_optional(None::<&str>);
        let mut out = Vec::new();
        ColumnWidths::default().push_line(&cells, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "a?[2Jb?c?d  -  -\n");
    }

    #[test]
    fn a_cell_that_is_a_time_gets_its_age_and_its_column_the_room() {
        let now = Timestamp(1_767_870_895);
        let row = |time: &str| Cells::from_values([time, "a", "at 2026-01-08T11:11:55Z", time]);
        let rows = [row("2026-01-08T11:11:55Z"), row("")].into_iter();
        let mut out = Vec::new();
        write_dated_table(["SINCE", "B", "C", "D"], rows, now, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "SINCE                             B  C                        D\n\
             2026-01-08T11:11:55Z (3 min ago)  a  at 2026-01-08T11:11:55Z  2026-01-08T11:11:55Z (3 min ago)\n\
             -                                 a  at 2026-01-08T11:11:55Z  -\n"
        );
    }
}
