//! How times are shown: RFC 3339, in UTC, to the second.

use std::fmt;

use holdfast_core::facts::Timestamp;
use serde::{Serialize, Serializer};

/// A time as text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(pub(super) Timestamp);

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

/// Year, month and day of a day since 1970. Years are counted from March, so that the leap day is a year's last; 719,468
/// days lie between 0000-03-01 and 1970-01-01; 146,097 days are 400 years.
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
}
