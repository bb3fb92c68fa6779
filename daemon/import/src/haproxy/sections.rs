//! Sections of `HAProxy`'s file, each with the settings of the `defaults` before it.
//!
//! Invariant: a line belongs to the latest section; sections that concern the program alone are noted once.

use super::super::notes::{Notes, quote_excerpt};
use super::directives;
use super::section::{Section, SectionKind};

pub(super) fn parse_sections(text: &str, notes: &mut Notes) -> Vec<Section> {
    let mut defaults = Section::default();
    let mut all: Vec<Section> = Vec::new();
    // The section of the current line; `None` in a section that concerns the program alone.
    let mut current: Option<Section> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let words = split_words(line);
        let Some(first) = words.first() else { continue };
        if !is_section(first) {
            if let Some(section) = &mut current {
                directives::apply_directive(section, number, &words, notes);
            }
            continue;
        }
        finish_section(current.take(), &mut defaults, &mut all);
        current = begin_section(number, &words, &defaults, notes);
    }
    finish_section(current, &mut defaults, &mut all);
    all
}

fn finish_section(section: Option<Section>, defaults: &mut Section, all: &mut Vec<Section>) {
    match section {
        Some(section) if section.kind == SectionKind::Defaults => *defaults = section,
        section => all.extend(section),
    }
}

/// The sections of the format.
const SECTIONS: [&str; 16] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "userlist",
    "peers",
    "resolvers",
    "mailers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "fcgi-app",
    "log-forward",
    "crt-store",
];

fn is_section(word: &str) -> bool {
    SECTIONS.contains(&word)
}

fn begin_section(line: usize, words: &[String], defaults: &Section, notes: &mut Notes) -> Option<Section> {
    let (first, name) = (words.first()?.as_str(), words.get(1).cloned().unwrap_or_default());
    let kind = match first {
        "defaults" => return Some(Section { line, ..Section::default() }),
        "listen" => SectionKind::Listen,
        "frontend" => SectionKind::Frontend,
        "backend" => SectionKind::Backend,
        other => {
            notes.add(line, format!("section {} concerns HAProxy alone", quote_excerpt(other)));
            return None;
        }
    };
    Some(Section { kind, line, name, ..defaults.clone() })
}

/// The words of a line: quotes and backslashes keep blanks in a word, `#` ends the line.
fn split_words(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if quote != Some('\'') => word.get_or_insert_default().extend(letters.next()),
            '"' | '\'' if quote == Some(letter) => quote = None,
            '"' | '\'' if quote.is_none() => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            '#' if quote.is_none() => break,
            letter if letter.is_whitespace() && quote.is_none() => all.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    all.extend(word);
    all
}
