//! How long ago a time was, beside that time: an operator who reads `11:11:55Z` at night does not know the time.
//!
//! Invariant: an age never replaces a time, which can be compared with other logs and given to `--since`.

use std::fmt;

use holdfast_core::facts::Timestamp;

use crate::rfc3339::Millis;

/// The length of `2026-01-08T11:11:55Z`, the shortest form of a time.
const TIME_BYTES: usize = 20;

/// The length of `2026-01-08`.
const DATE_BYTES: usize = 10;

/// The most bytes of a time that is searched for: one with nine digits of the second.
const TIME_BYTES_MAX: usize = 30;

/// A time as seen from another: `3 min ago`, or `in 2 h`.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    pub now: Timestamp,
    pub then: Timestamp,
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.now.0.saturating_sub(self.then.0) {
            0 => f.write_str("now"),
            past @ 1.. => write!(f, "{} ago", format_duration(past)),
            future => write!(f, "in {}", format_duration(future.saturating_neg())),
        }
    }
}

/// A number of seconds in the largest unit that has at least two of it.
pub fn format_duration(seconds: i64) -> String {
    match seconds.max(0) {
        short @ 0..120 => format!("{short} s"),
        minutes @ 120..7_200 => format!("{} min", minutes / 60),
        hours @ 7_200..172_800 => format!("{} h", hours / 3_600),
        days => format!("{} d", days / 86_400),
    }
}

/// The text with its age behind each time.
pub fn add_ages(text: &str, now: Timestamp) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((end, then)) = find_time(rest) {
        let (before, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        out.push_str(before);
        out.push_str(&format!(" ({})", Age { now, then }));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The text without the ages that [`add_ages`] puts behind times.
pub fn remove_ages(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((end, _)) = find_time(rest) {
        let (before, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        out.push_str(before);
        let age = after.strip_prefix(" (").and_then(|age| age.split_once(')'));
        let is_age = |age: &str| age == "now" || age.ends_with(" ago") || age.starts_with("in ");
        rest = age.filter(|(age, _)| is_age(age)).map_or(after, |(_, rest)| rest);
    }
    out.push_str(rest);
    out
}

/// The age of a text that is a time and nothing else.
pub fn age_of_time(text: &str, now: Timestamp) -> Option<Age> {
    if !(TIME_BYTES..=TIME_BYTES_MAX).contains(&text.len()) || text.as_bytes().get(DATE_BYTES) != Some(&b'T')
    {
        return None;
    }
    Some(Age { now, then: Millis::parse(text)?.seconds() })
}

/// The end of the first time in UTC, and the time. A time that touches a letter or a digit is part of something else.
fn find_time(text: &str) -> Option<(usize, Timestamp)> {
    text.match_indices('T').find_map(|(letter, _)| {
        let start = letter.checked_sub(DATE_BYTES)?;
        // Looks no further than a time goes, so that a long text without times costs no more than its length.
        let tail = text.as_bytes().get(letter..)?.iter().take(TIME_BYTES_MAX - DATE_BYTES);
        let length = tail.copied().position(|letter| letter == b'Z')? + 1;
        let time = text.get(start..letter + length)?;
        let is_apart = |near: Option<char>| !near.is_some_and(char::is_alphanumeric);
        let before = text.get(..start)?.chars().next_back();
        let after = text.get(letter + length..)?.chars().next();
        let then = Millis::parse(time)?.seconds();
        (is_apart(before) && is_apart(after)).then_some((letter + length, then))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-08T11:14:55Z.
    const NOW: Timestamp = Timestamp(1_767_870_895);

    #[test]
    fn an_age_has_the_largest_unit_that_says_enough() {
        for (ago, expected) in [
            (0, "now"),
            (1, "1 s ago"),
            (119, "119 s ago"),
            (120, "2 min ago"),
            (7_199, "119 min ago"),
            (7_200, "2 h ago"),
            (172_799, "47 h ago"),
            (172_800, "2 d ago"),
            (-5, "in 5 s"),
            (-86_400, "in 24 h"),
            (i64::MIN, "in 106751991146839 d"),
        ] {
            let then = Timestamp(NOW.0.saturating_sub(ago));
            assert_eq!(Age { now: NOW, then }.to_string(), expected, "{ago}");
        }
    }

    #[test]
    fn every_time_in_a_text_gets_its_age() {
        for (text, expected) in [
            ("", ""),
            ("no time: T, Z, 2026-01-08", "no time: T, Z, 2026-01-08"),
            ("since 2026-01-08T11:11:55Z.", "since 2026-01-08T11:11:55Z (3 min ago)."),
            (
                "2026-01-08T11:11:55.123Z #4 TCP at 2026-01-08T11:14:55Z",
                "2026-01-08T11:11:55.123Z (3 min ago) #4 TCP at 2026-01-08T11:14:55Z (now)",
            ),
            ("\"2026-01-08T11:11:55Z\"\n", "\"2026-01-08T11:11:55Z (3 min ago)\"\n"),
            ("a2026-01-08T11:11:55Zb x2026-01-08T11:11:55Z", "a2026-01-08T11:11:55Zb x2026-01-08T11:11:55Z"),
            ("2026-13-08T11:11:55Z é2026-01-08T11:1", "2026-13-08T11:11:55Z é2026-01-08T11:1"),
        ] {
            assert_eq!(add_ages(text, NOW), expected);
        }
    }

    /// Tenants write parts of the texts in which times are searched for.
    #[test]
    fn a_text_without_times_costs_no_more_than_its_length() {
        let text = "T".repeat(4 << 20);
        assert_eq!(add_ages(&text, NOW).len(), text.len());
    }

    proptest::proptest! {
        #[test]
        fn only_ages_are_added(text in "([-0-9TZ:. é]{0,30}|2026-01-0[1-9]T11:11:[0-5][0-9]Z ){0,6}") {
            proptest::prop_assert_eq!(remove_ages(&add_ages(&text, NOW)), text);
        }
    }
}
