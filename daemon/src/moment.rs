//! How times are shown and read: RFC 3339, shown in UTC.
//!
//! Invariant: what is shown can be read again and is the same time. Deliberately absent: a clock, and local time.

mod parse;

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_core::facts::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(crate) use parse::parse;

/// A time as text, to the second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub(crate) Timestamp);

/// Milliseconds since the Unix epoch; as text, RFC 3339 with three digits of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

impl Millis {
    /// Milliseconds of this time.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Reads RFC 3339; digits past the third are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let seconds = parse(text)?.0.checked_mul(1000)?;
        let digits = text.split_once('.').map_or("", |(_, rest)| rest).bytes();
        let digits = digits.take_while(u8::is_ascii_digit).chain(std::iter::repeat(b'0')).take(3);
        Some(Self(seconds + digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))))
    }

    /// So long before: a number and `s`, `m`, `h` or `d`.
    pub fn ago(self, text: &str) -> Option<Self> {
        let unit = text.chars().next_back()?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => DAY_SECONDS,
            _ => return None,
        };
        let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
        Some(Self(self.0 - i64::from(number) * seconds * 1000))
    }

    /// Rounded down to whole seconds.
    pub const fn seconds(self) -> Timestamp {
        Timestamp(self.0.div_euclid(1000))
    }
}

impl From<Timestamp> for Millis {
    fn from(time: Timestamp) -> Self {
        Self(time.0.saturating_mul(1000))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = Moment(self.seconds()).to_string();
        write!(f, "{}.{:03}Z", seconds.trim_end_matches('Z'), self.0.rem_euclid(1000))
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a time in RFC 3339"))
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Millis::deserialize(deserializer).map(|millis| Self(millis.seconds()))
    }
}

const DAY_SECONDS: i64 = 86_400;
/// 9999-12-31T23:59:59Z: the last moment that RFC 3339 can write.
const LAST: i64 = 253_402_300_799;

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.0.clamp(0, LAST);
        let (year, month, day) = civil(seconds.div_euclid(DAY_SECONDS));
        let second = seconds.rem_euclid(DAY_SECONDS);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Year, month and day of a day since 1970. Years are counted from March, so that the leap day is a year's last;
/// 719,468 days lie between 0000-03-01 and 1970-01-01; 146,097 days are 400 years.
const fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let january_or_february = if month <= 2 { 1 } else { 0 };
    (year_of_era + era * 400 + january_or_february, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(seconds: i64, expected: &str) {
        assert_eq!(Moment(Timestamp(seconds)).to_string(), expected);
    }

    #[test]
    fn moments_are_rfc_3339() {
        check(0, "1970-01-01T00:00:00Z");
        check(1_767_870_715, "2026-01-08T11:11:55Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(4_107_542_399, "2100-02-28T23:59:59Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
        check(-5, "1970-01-01T00:00:00Z");
        check(i64::MAX, "9999-12-31T23:59:59Z");
    }

    #[track_caller]
    fn check_millis(text: &str, millis: i64, shown: &str) {
        assert_eq!(Millis::parse(text), Some(Millis(millis)));
        assert_eq!(Millis(millis).to_string(), shown);
        assert_eq!(Millis::parse(shown), Some(Millis(millis)));
    }

    #[test]
    fn milliseconds_come_back_as_they_were() {
        check_millis("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00.000Z");
        check_millis("2026-01-08T11:11:55.12Z", 1_767_870_715_120, "2026-01-08T11:11:55.120Z");
        check_millis("2026-01-08T12:11:55.0019+01:00", 1_767_870_715_001, "2026-01-08T11:11:55.001Z");
        assert_eq!(Millis::parse("yesterday"), None);
    }

    #[test]
    fn a_day_that_no_month_has_is_refused() {
        for day in
            ["2026-02-29", "2026-02-30", "2100-02-29", "2026-04-31", "2026-06-31", "2026-09-31", "2026-11-31"]
        {
            assert_eq!(Millis::parse(&format!("{day}T00:00:00Z")), None, "{day}");
        }
        for day in ["2024-02-29", "2000-02-29", "2026-01-31", "2026-12-31"] {
            assert!(Millis::parse(&format!("{day}T00:00:00Z")).is_some(), "{day}");
        }
    }

    #[track_caller]
    fn check_ago(text: &str, expected: Option<i64>) {
        assert_eq!(Millis(0).ago(text), expected.map(Millis));
    }

    #[test]
    fn how_long_ago_is_a_number_and_a_unit() {
        check_ago("90s", Some(-90_000));
        check_ago("15m", Some(-900_000));
        check_ago("2h", Some(-7_200_000));
        check_ago("1d", Some(-86_400_000));
        check_ago("4294967295d", Some(-4_294_967_295 * 86_400_000));
        for text in ["", "s", "5", "-5s", "5 s", "5w", "1.5h", "4294967296d"] {
            check_ago(text, None);
        }
    }
}
