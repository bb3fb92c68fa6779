//! RFC 3339 time stamps, as apiservers and people write them.
//!
//! Invariant: times are rounded down to the requested unit, and a leap second counts as the second after it. jiff
//! provides the calendar; this module refuses what jiff accepts beyond RFC 3339.

use jiff::civil::{DateTime, date};

use crate::facts::Timestamp;

/// The start of Unix time.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// The shape of a date and a clock time; `0` matches any digit.
const LOCAL: &str = "0000-00-00T00:00:00";

/// Parses `2026-01-08T11:11:55Z`, with an optional fraction and any offset, to whole seconds.
pub fn parse(text: &str) -> Option<Timestamp> {
    let (local, rest) = text.split_at_checked(LOCAL.len())?;
    let (fraction, zone) = rest.split_at_checked(rest.find(['Z', 'z', '+', '-'])?)?;
    let offset = offset(zone)?;
    let legal = has_shape(local, LOCAL) && is_fraction(fraction);
    let at: DateTime = local.parse().ok().filter(|_| legal)?;
    // jiff parses a leap second as the second before it.
    let leap = i64::from(local.ends_with(":60"));
    Some(Timestamp(at.duration_since(EPOCH).as_secs() + leap - offset))
}

/// The same in microseconds since the Unix epoch; digits past the sixth are dropped.
pub fn parse_micros(text: &str) -> Option<i64> {
    let seconds = parse(text)?.0.checked_mul(1_000_000)?;
    let digits = text.split_once('.').map_or("", |(_, rest)| rest).bytes();
    let digits = digits.take_while(u8::is_ascii_digit).chain(core::iter::repeat(b'0')).take(6);
    Some(seconds + digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}

fn has_shape(text: &str, shape: &str) -> bool {
    let fits = |(byte, place): (u8, u8)| match place {
        b'0' => byte.is_ascii_digit(),
        _ => byte.eq_ignore_ascii_case(&place),
    };
    text.len() == shape.len() && text.bytes().zip(shape.bytes()).all(fits)
}

fn is_fraction(text: &str) -> bool {
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    text.is_empty() || text.strip_prefix('.').is_some_and(is_number)
}

/// Parses a zone as seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return (zone.len() == 1).then_some(0),
    };
    let (hours, minutes) = zone.get(1..).filter(|it| has_shape(it, "00:00"))?.split_once(':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}
