//! Foreign texts as they may be shown: names, labels, messages, process names.
//!
//! Invariant: the result is one line of bounded length. Nothing in it moves a cursor, hides its neighbours or turns
//! their direction.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::limits::{NAMED_MAX, TEXT_LENGTH_MAX};
use holdfast_status::printable::is_unprintable;

/// Makes a text one line. It drops terminal control characters, cuts what is too long, and joins blanks, so that no
/// foreign text can look like our columns.
pub fn clean(text: &str) -> String {
    let mut is_first = true;
    let mut visible =
        text.chars().map(map_blank).filter(|character| !is_unprintable(*character)).filter(|character| {
            let is_blank = *character == ' ';
            let is_kept = !is_blank || is_first;
            is_first = !is_blank;
            is_kept
        });
    let mut out: String = visible.by_ref().take(TEXT_LENGTH_MAX).collect();
    if visible.next().is_some() {
        out.push('…');
    }
    out
}

/// A selector as people write it, with its first labels only.
pub fn format_selector(selector: &BTreeMap<String, String>) -> String {
    let pairs = selector.iter().take(NAMED_MAX).map(|(name, value)| format!("{name}={value}"));
    let more = if selector.len() > NAMED_MAX { ",…" } else { "" };
    pairs.collect::<Vec<_>>().join(",") + more
}

/// Cleans every text and every field name in a JSON value, as [`clean`] does.
pub fn clean_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(list) => list.into_iter().map(clean_json).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (clean(&name), clean_json(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

/// The first items, and the number of the others: `a, b and 3 more`.
pub fn join_names<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|it| it.to_string()).collect();
    let named = all.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(NAMED_MAX) {
        None | Some(0) => named,
        Some(more) => format!("{named} and {more} more"),
    }
}

/// `1 pod`, `2 pods`.
pub fn format_count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// A duration in the largest unit that is exact enough: `45 s`, `12 min`, `3 h`, `2 d`.
pub fn format_duration(seconds: i64) -> String {
    holdfast_status::age::format_duration(seconds)
}

const fn map_blank(character: char) -> char {
    match character {
        '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => ' ',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terminal_controls_are_dropped_and_long_texts_cut() {
        assert_eq!(clean("a\x1b[31mb\u{202e}c\nd\u{9b}2J"), "a[31mbc d2J");
        assert_eq!(clean("x\n  error    pods.match"), "x error pods.match");
        assert_eq!(clean(&"x".repeat(100_000)).chars().count(), TEXT_LENGTH_MAX + 1);
    }

    #[test]
    fn a_long_list_counts_the_names_it_omits() {
        assert_eq!(join_names([1, 2]), "1, 2");
        assert_eq!(join_names(0..NAMED_MAX + 3), "0, 1, 2, 3, 4, 5, 6, 7 and 3 more");
    }

    proptest! {
        #[test]
        fn no_text_comes_out_with_a_control_character(text in any::<String>()) {
            let out = clean(&text);
            prop_assert!(!out.chars().any(is_unprintable));
            prop_assert!(out.chars().count() <= TEXT_LENGTH_MAX + 1);
        }
    }
}
