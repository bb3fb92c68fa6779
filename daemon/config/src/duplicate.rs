//! A table or a key that the text has twice.
//!
//! Invariant: the line of a first key is the parser's own, so that no text inside a string passes for it. The parser
//! forgets where a first table is; that is the last line before with the same header.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// The parser's words for it.
const DUPLICATE_KEY: &str = "duplicate key";

/// A second definition.
#[derive(Debug)]
pub(super) struct Duplicate {
    /// The words of the header, or the key.
    name: String,
    is_table: bool,
    /// Where the first one begins, if it is known.
    pub(super) first: Option<usize>,
    pub(super) second: usize,
}

impl Duplicate {
    /// The second definition that the parser reports; `None` if it reports something else. Without the document, the
    /// first one is not searched: that takes a look at the whole text.
    pub(super) fn find(
        document: Option<&DeTable<'_>>,
        text: &str,
        error: (Option<Range<usize>>, &str),
    ) -> Option<Self> {
        let (Some(span), DUPLICATE_KEY) = error else { return None };
        let key = text.get(span.clone())?;
        let header = header_at(text, span.start);
        let first = document.and_then(|document| match header {
            Some(words) => find_header(text, words, span.start),
            None => find_key(document, text, (key, span.start)),
        });
        let name = header.unwrap_or(key).to_owned();
        Some(Self { name, is_table: header.is_some(), first, second: span.start })
    }

    /// What is wrong, and what to do.
    pub(super) fn message(&self, (first, second): (Option<usize>, usize)) -> String {
        let Self { name, is_table, .. } = self;
        let lines = match first {
            Some(first) if first != second => format!(", in lines {first} and {second}"),
            Some(_) | None => String::new(),
        };
        match is_table {
            true => format!("table `{name}` is defined twice{lines}: put all its keys below one header"),
            false => format!("key `{name}` is given twice{lines}: keep one"),
        }
    }
}

/// The last header with these words before an offset.
fn find_header(text: &str, words: &str, before: usize) -> Option<usize> {
    let starts = text.get(..before)?.match_indices('\n').map(|(end, _)| end + 1);
    let before: Vec<usize> = std::iter::once(0).chain(starts).collect();
    // The last line is that of the second header.
    let (_, before) = before.split_last()?;
    before.iter().copied().rev().find(|start| header_at(text, *start) == Some(words))
}

/// The last key of this name before an offset.
fn find_key(document: &DeTable<'_>, text: &str, (key, before): (&str, usize)) -> Option<usize> {
    let mut places = Vec::new();
    collect_places(document, key.trim_matches(['"', '\'']), &mut places);
    places.into_iter().filter(|offset| *offset < before && header_at(text, *offset).is_none()).max()
}

/// The words of the table header in whose line this offset is; `None`: it is no such line.
pub(super) fn header_at(text: &str, offset: usize) -> Option<&str> {
    let start = text.get(..offset)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(start..)?.lines().next()?.trim_start();
    let words = line.strip_prefix("[[").or_else(|| line.strip_prefix('['))?;
    Some(words.split(']').next()?.trim())
}

/// Where the document has keys of this name, in whatever table.
fn collect_places(table: &DeTable<'_>, name: &str, places: &mut Vec<usize>) {
    for (key, value) in table {
        if key.get_ref() == name {
            places.push(key.span().start);
        }
        collect_places_in(value.get_ref(), name, places);
    }
}

fn collect_places_in(value: &DeValue<'_>, name: &str, places: &mut Vec<usize>) {
    match value {
        DeValue::Table(table) => collect_places(table, name, places),
        DeValue::Array(items) => {
            items.iter().for_each(|item| collect_places_in(item.get_ref(), name, places));
        }
        _ => {}
    }
}
