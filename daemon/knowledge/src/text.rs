//! Cleans foreign text for display.
//!
//! Invariant: the result has no control character, no line break, and nothing that turns or hides text, and is at most
//! as long as requested. The cost is bounded by that length, too.

use crate::limits::{MESSAGE_BYTES_MAX, MESSAGE_HEAD_BYTES};

const ELLIPSIS: char = '…';

/// Replaces the middle of a text that is too long.
const GAP: &str = " … ";

/// The most characters that are read for each requested byte; only a text that is mostly dropped needs more.
const CHARS_PER_BYTE_MAX: usize = 16;

/// Whether a character must not be shown: it moves a cursor, turns the direction of writing or is invisible.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Maps a character: a break becomes a blank, any other unprintable one is dropped.
fn map_character(c: char) -> Option<char> {
    match c {
        '\n' | '\r' | '\t' | '\u{85}' | '\u{2028}' | '\u{2029}' => Some(' '),
        _ if is_unprintable(c) => None,
        _ => Some(c),
    }
}

/// The beginning of the text, cleaned.
pub(crate) fn clean(text: &str, bytes_max: usize) -> String {
    match clean_prefix(text, bytes_max) {
        (whole, false) => whole,
        (cut, true) => append_ellipsis(cut, bytes_max),
    }
}

/// As much of the text as fits, and whether the rest was cut.
fn clean_prefix(text: &str, bytes_max: usize) -> (String, bool) {
    let mut out = String::new();
    for (seen, c) in text.chars().enumerate() {
        let Some(c) = map_character(c) else { continue };
        if out.len() + c.len_utf8() > bytes_max || seen / CHARS_PER_BYTE_MAX > bytes_max {
            return (out, true);
        }
        out.push(c);
    }
    (out, false)
}

/// Appends the ellipsis of a cut text, if it fits.
fn append_ellipsis(mut text: String, bytes_max: usize) -> String {
    while text.len() + ELLIPSIS.len_utf8() > bytes_max && text.pop().is_some() {}
    if text.len() + ELLIPSIS.len_utf8() <= bytes_max {
        text.push(ELLIPSIS);
    }
    text
}

/// Cleans a message. A long one loses its middle, because causes are at the end.
pub(crate) fn clean_message(text: &str) -> String {
    let (whole, is_cut) = clean_prefix(text, MESSAGE_BYTES_MAX);
    if !is_cut {
        return whole;
    }
    let tail_bytes = MESSAGE_BYTES_MAX - MESSAGE_HEAD_BYTES - GAP.len();
    let head = prefix(&whole, MESSAGE_HEAD_BYTES);
    format!("{head}{GAP}{}", clean_suffix(text, tail_bytes))
}

/// As much of the text as fits, cut between characters.
pub(crate) fn prefix(text: &str, bytes_max: usize) -> &str {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end <= bytes_max).last().unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

fn clean_suffix(text: &str, bytes_max: usize) -> String {
    let mut size = 0;
    let fits = |c: &char| {
        size += c.len_utf8();
        size <= bytes_max
    };
    let seen = text.chars().rev().take(bytes_max.saturating_mul(CHARS_PER_BYTE_MAX));
    let backwards: Vec<char> = seen.filter_map(map_character).take_while(fits).collect();
    backwards.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_move_a_cursor_or_turn_text_are_dropped() {
        assert_eq!(clean("a\u{1b}[31mb\u{9b}c\u{7f}", 99), "a[31mbc");
        assert_eq!(clean("a\u{202e}b\u{2066}c\u{200f}d\u{61c}e\u{feff}f\u{e0041}g", 99), "abcdefg");
        assert_eq!(clean("a\nb\r\nc\td\u{2028}e\u{2029}f\u{85}g", 99), "a b  c d e f g");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(clean("ééé", 6), "ééé");
        assert_eq!(clean("éééé", 6), "é…");
        assert_eq!(clean("abc", 2), "", "no room for the sign");
        assert_eq!(prefix("aéb", 2), "a");
        assert_eq!(prefix("aéb", 3), "aé");
    }

    #[test]
    fn a_long_message_keeps_both_of_its_ends() {
        let long = format!("begin {} RequestLimitExceeded", "é".repeat(50_000));
        let cleaned = clean_message(&long);
        assert!(cleaned.len() <= MESSAGE_BYTES_MAX, "{}", cleaned.len());
        assert!(cleaned.starts_with("begin é") && cleaned.ends_with("é RequestLimitExceeded"));
        let fits = "x".repeat(MESSAGE_BYTES_MAX);
        assert_eq!(clean_message(&fits), fits);
        assert_eq!(clean_message("told…"), "told…");
    }
}
