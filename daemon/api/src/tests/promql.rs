//! The metrics in a Prometheus expression, so that a test finds each one that the daemon does not export.
//!
//! Invariant: every word of an expression that is no function, no keyword and no label counts as a metric: a misspelled
//! name is one too.

/// Keywords between expressions.
const WORDS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "atan2"];

/// Keywords before a list of labels.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':')
}

/// Each metric of an expression, with the content of the braces after it.
pub(super) fn selectors(expression: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '"' => behind(&rest[1..], '"'),
            '[' => behind(rest, ']'),
            letter if letter.is_ascii_digit() || letter == '.' => after_name(rest).1,
            letter if is_of_a_name(letter) => word(rest, &mut found),
            letter => &rest[letter.len_utf8()..],
        };
    }
    found
}

/// Parses the word at the start of a text, and returns the rest.
fn word<'a>(text: &'a str, found: &mut Vec<(&'a str, &'a str)>) -> &'a str {
    let (name, rest) = after_name(text);
    let next = rest.trim_start();
    if BEFORE_LABELS.contains(&name) {
        return if next.starts_with('(') { behind(next, ')') } else { rest };
    }
    // `sum by (…) (…)` has its labels before its operand.
    let is_function = next.starts_with('(') || ["by", "without"].contains(&after_name(next).0);
    if is_function || WORDS.contains(&name) {
        return rest;
    }
    let braces = next.strip_prefix('{').and_then(|inside| inside.split_once('}'));
    found.push((name, braces.map_or("", |(within, _)| within)));
    braces.map_or(rest, |(_, behind)| behind)
}

fn after_name(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter| !is_of_a_name(letter) && letter != '.').unwrap_or(text.len()))
}

fn behind(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, behind)| behind)
}

#[test]
fn every_word_that_could_be_a_metric_is_one() {
    for (expression, expected) in [
        ("up{job=\"holdfast\"} == 0", vec![("up", "job=\"holdfast\"")]),
        ("time() - a{b=\"c d\",e!~\"f|g\"} > 300", vec![("a", "b=\"c d\",e!~\"f|g\"")]),
        ("sum without (x, y) (rate(a[5m])) / b > 0.9e3", vec![("a", ""), ("b", "")]),
        ("a >= on (x) group_left () (0.5 * count by (x) (b == 1))", vec![("a", ""), ("b", "")]),
        ("a\n  unless on (x) b\n  and c:d:e", vec![("a", ""), ("b", ""), ("c:d:e", "")]),
        ("label_replace(a, \"to\", \"$1\", \"of\", \"(.+)\")", vec![("a", "")]),
        ("holfast_misspelled > 0", vec![("holfast_misspelled", "")]),
        ("increase(a[$__rate_interval] offset 5m) or b", vec![("a", ""), ("b", "")]),
    ] {
        assert_eq!(selectors(expression), expected, "{expression}");
    }
}
