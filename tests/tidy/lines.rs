//! Checks how long lines are and how modules begin.
//!
//! Invariant: what rustfmt wraps and what nobody can wrap (literals, tables, links, preformatted text) is not judged.

use crate::code::without_literals;
use crate::tree::{Finding, Source};

/// A longer line does not fit next to another file on a screen.
const LINE_LENGTH_MAX: usize = 120;

/// Text that people read fits on their screens.
pub(crate) fn line_length(source: &Source) -> Vec<Finding> {
    let judged = if source.is_rust() {
        without_literals(&source.text)
    } else if source.path.ends_with(".md") {
        prose(&source.text)
    } else if is_plain_code(source) {
        source.text.clone()
    } else {
        return Vec::new();
    };
    let lengths = judged.lines().enumerate().map(|(at, line)| (at + 1, line.trim_end().chars().count()));
    let long = lengths.filter(|(_, length)| *length > LINE_LENGTH_MAX);
    long.map(|(line, length)| source.finding(line, format!("{length} columns; at most {LINE_LENGTH_MAX}")))
        .collect()
}

fn is_plain_code(source: &Source) -> bool {
    let extension = source.path.rsplit('.').next().unwrap_or_default();
    ["c", "h", "sh", "toml"].contains(&extension) || source.text.starts_with("#!/")
}

/// The page without its tables, examples and links, line by line.
fn prose(page: &str) -> String {
    let mut kept = String::new();
    let mut in_example = false;
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        let is_free = in_example || is_fence || line.starts_with('|') || line.contains("](");
        kept.push_str(if is_free { "" } else { line });
        kept.push('\n');
        in_example ^= is_fence;
    }
    kept
}

/// A module's header says what it owns and what is always true. It does not list what the module lacks.
pub(crate) fn no_ritual_header(source: &Source) -> Vec<Finding> {
    let header = source.text.lines().take_while(|line| line.starts_with("//!")).enumerate();
    let ritual = header.filter(|(_, line)| line.contains("Deliberately"));
    ritual.map(|(at, _)| source.finding(at + 1, "say what is so, not what is deliberately absent")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{check, check_repository};

    #[test]
    fn lines_have_at_most_120_columns() {
        let (fits, long) = ("é".repeat(LINE_LENGTH_MAX), "é".repeat(LINE_LENGTH_MAX + 1));
        for path in ["a.c", "a.h", "a.sh", "a.toml", "a.md", "a.rs"] {
            check(line_length, path, &format!("{fits}\n{long}\n"), &[2]);
        }
        check(line_length, "setup", &format!("#!/bin/sh\n# {long}\n"), &[2]);
        check(line_length, "a.json", &long, &[]);
        check(line_length, "a.rs", &format!("let a = \"{long}\";\n/// {long}\n"), &[2]);
        check(line_length, "a.md", &format!("| {long} |\n```\n{long}\n```\n- [a](b) {long}\n{long}\n"), &[6]);
        check_repository(line_length);
    }

    #[test]
    fn headers_list_nothing_that_is_absent() {
        check(no_ritual_header, "a.rs", "//! A.\n//! Deliberately absent: b.\n", &[2]);
        check(no_ritual_header, "a.rs", "//! A.\n\n// Deliberately so.\n", &[]);
        check_repository(no_ritual_header);
    }
}
