//! Times of Events, in whole seconds.
//!
//! Invariant: an invalid text, or a time before 1970 (Go's zero time is in the year 1), gives no time.

/// Seconds since 1970, by the sender's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// Seconds since `then`; 0 if this time is earlier.
    pub fn since(self, then: Self) -> i64 {
        self.0.saturating_sub(then.0).max(0)
    }
}

pub(crate) fn parse(text: &str) -> Option<Time> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Time(at.as_second())).filter(|time| time.0 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_time_gives_none() {
        assert_eq!(parse("2026-01-08T11:11:55Z"), Some(Time(1_767_870_715)));
        assert_eq!(parse("2026-01-08T11:11:55.123456Z"), Some(Time(1_767_870_715)));
        for text in ["", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "yesterday", "99999-01-01T00:00:00Z"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
