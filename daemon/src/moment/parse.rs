//! RFC 3339 time stamps, as apiservers and people write them.
//!
//! Invariant: whole seconds; a fraction is read and dropped. Deliberately absent: leap seconds, which Unix time lacks.

use holdfast_core::facts::Timestamp;

const SECONDS_PER_DAY: i64 = 86_400;

/// Reads `2026-01-08T11:11:55Z` or the same with a fraction or an offset.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once(['T', 't'])?;
    let zone_start = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at_checked(zone_start)?;
    Some(Timestamp(days(date)? * SECONDS_PER_DAY + seconds(clock)? - offset(zone)?))
}

/// Days since 1970-01-01 of a date of the Gregorian calendar.
fn days(date: &str) -> Option<i64> {
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4, 9999)?;
    let (month, day) = (number(parts.next()?, 2, 12)?, number(parts.next()?, 2, 31)?);
    if month == 0 || day == 0 || day > days_of(month, year) || parts.next().is_some() {
        return None;
    }
    // Years begin in March here, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(year * 365 + leap_days + day_of_year - 719_468)
}

fn days_of(month: i64, year: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn seconds(clock: &str) -> Option<i64> {
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = whole.split(':');
    let hours = number(parts.next()?, 2, 23)?;
    let (minutes, seconds) = (number(parts.next()?, 2, 59)?, number(parts.next()?, 2, 60)?);
    let legal =
        parts.next().is_none() && !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    legal.then_some(hours * 3600 + minutes * 60 + seconds)
}

fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return (zone.len() == 1).then_some(0),
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (number(hours, 2, 23)? * 3600 + number(minutes, 2, 59)? * 60))
}

fn number(digits: &str, length: usize, value_max: i64) -> Option<i64> {
    let well_formed = digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|value| well_formed && *value <= value_max)
}
