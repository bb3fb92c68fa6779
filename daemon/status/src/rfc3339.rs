//! Times in RFC 3339: read with any offset, shown in UTC.
//!
//! Invariant: a shown time can be read again as the same time.

use std::borrow::Cow;
use std::fmt;

use holdfast_core::facts::Timestamp;
use holdfast_core::rfc3339::parse_micros;
use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time as text, to the second.
#[derive(Clone, Copy, Debug)]
pub struct Rfc3339(pub Timestamp);

impl Rfc3339 {
    /// The time as Kubernetes' `MicroTime`, with six digits of the second.
    pub fn to_micro_time(self) -> String {
        format!("{:.6}Z", to_date_time(SignedDuration::from_secs(self.0.0)))
    }
}

/// Milliseconds since the Unix epoch; as text, RFC 3339 with three digits of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

impl Millis {
    /// Reads RFC 3339; digits past the third are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self(parse_micros(text)?.div_euclid(1000)))
    }

    /// The time before this one by `text`: a number and `s`, `m`, `h` or `d`.
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

    /// The time rounded down to whole seconds.
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
        write!(f, "{:.3}Z", to_date_time(SignedDuration::from_millis(self.0)))
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

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Millis::deserialize(deserializer).map(|millis| Self(millis.seconds()))
    }
}

const DAY_SECONDS: i64 = 86_400;

/// The start of the count, and the earliest time that is shown.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// The date and time since 1970, by the Gregorian calendar. A time past RFC 3339's range is shown as the last in it.
fn to_date_time(since: SignedDuration) -> DateTime {
    EPOCH.saturating_add(since).max(EPOCH)
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}Z", to_date_time(SignedDuration::from_secs(self.0.0)))
    }
}

/// Describes a type to programs as a time in RFC 3339, which is how both types are written.
macro_rules! described_as_a_time {
    ($time:ty) => {
        impl JsonSchema for $time {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($time).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": "date-time" })
            }
        }
    };
}

described_as_a_time!(Rfc3339);
described_as_a_time!(Millis);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::rfc3339::parse;

    use super::*;

    #[track_caller]
    fn check(seconds: i64, expected: &str) {
        assert_eq!(Rfc3339(Timestamp(seconds)).to_string(), expected);
    }

    #[test]
    fn seconds_are_rfc_3339() {
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

    proptest::proptest! {
        #[test]
        fn every_time_that_is_shown_is_read_as_the_same(millis in 0..=253_402_300_799_999_i64) {
            proptest::prop_assert_eq!(Millis::parse(&Millis(millis).to_string()), Some(Millis(millis)));
            let seconds = Millis(millis).seconds();
            proptest::prop_assert_eq!(parse(&Rfc3339(seconds).to_string()), Some(seconds));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[-0-9TtZz:.+é]{0,40}") {
            let _ = parse(&text);
        }
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
