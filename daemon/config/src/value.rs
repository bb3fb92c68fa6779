//! From one value of the document to one typed value, or to a sentence that says what is legal.
//!
//! Invariant: pure functions of the value alone.

use std::time::Duration;

use holdfast_core::str_enum::StrEnum;
use toml::de::DeValue;

use super::limits::{LABEL_BYTES_MAX, NAME_BYTES_MAX, QUOTED_CHARS_MAX};
use super::nearest::find_nearest;
use super::problem::mark_value;

/// "expected a duration such as "2s", found the integer 2".
pub(super) fn mismatch_message(what: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::String(text) => format!("the string {}", quote(text)),
        DeValue::Integer(number) => format!("the integer {}", mark_value(number)),
        DeValue::Float(number) => format!("the number {}", mark_value(number)),
        DeValue::Boolean(truth) => format!("the boolean {truth}"),
        DeValue::Datetime(time) => format!("the date or time {}", mark_value(time)),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    };
    format!("expected {what}, found {found}")
}

/// A value of the file in quotes, on one line and cut short if it is long. Only `check-config` shows it.
pub(super) fn quote(text: &str) -> String {
    mark_value(quote_key(text))
}

/// A key of the file, likewise. Keys are shown to everybody.
fn quote_key(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((cut, _)) => format!("{:?}...", text.get(..cut).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// The string itself; `what` describes the expected string.
pub(super) fn string<'v>(value: &'v DeValue<'_>, what: &str) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| mismatch_message(what, value))
}

/// A path as written.
pub(super) fn path_text(value: &DeValue<'_>) -> Result<String, String> {
    match string(value, "a path")? {
        "" => Err("the path is empty".to_owned()),
        text if text.contains('\0') => Err("a path cannot hold a NUL byte".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// One of the words of `T`, in any case.
pub(super) fn word<T: StrEnum>(value: &DeValue<'_>) -> Result<T, String> {
    word_among(T::ALL, value)
}

/// One of some words of `T`.
pub(super) fn word_among<T: StrEnum>(words: &[T], value: &DeValue<'_>) -> Result<T, String> {
    let legal: Vec<&str> = words.iter().map(|word| word.spelling()).collect();
    let text = string(value, &format!("one of {}", legal.join(", ")))?;
    let meant = words.iter().copied().find(|word| word.spelling().eq_ignore_ascii_case(text));
    meant.ok_or_else(|| format!("unknown word {}{}", quote(text), describe_legal(text, &legal)))
}

/// The message about an unknown key.
pub(super) fn unknown_key_message(key: &str, legal: &[&str]) -> String {
    format!("unknown key {}{}", quote_key(key), describe_legal(key, legal))
}

/// The legal words, and the one that may be meant.
fn describe_legal(text: &str, legal: &[&str]) -> String {
    let guess = find_nearest(text, legal).map(|near| format!(": did you mean {near:?}?"));
    let guess = guess.unwrap_or_else(|| ";".to_owned());
    format!("{guess} legal here: {}", legal.join(", "))
}

pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| mismatch_message("true or false", value))
}

/// A whole number within bounds, both included.
pub(super) fn integer((least, most): (u32, u32)) -> impl Fn(&DeValue<'_>) -> Result<u32, String> {
    move |value| {
        let what = format!("a whole number from {least} to {most}");
        let DeValue::Integer(number) = value else { return Err(mismatch_message(&what, value)) };
        let parsed = u32::from_str_radix(number.as_str(), number.radix()).ok();
        let within = parsed.filter(|parsed| (least..=most).contains(parsed));
        within.ok_or_else(|| mismatch_message(&what, value))
    }
}

/// A share of a whole: more than 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    // Integers, so that shares compare exactly and core needs no floating point.
    millionths: u32,
}

impl Share {
    pub const QUARTER: Self = Self { millionths: 250_000 };

    pub fn millionths(self) -> u32 {
        self.millionths
    }
}

/// A share of a whole, to the sixth decimal.
pub(super) fn share(value: &DeValue<'_>) -> Result<Share, String> {
    let text = match value {
        DeValue::Float(number) => number.as_str(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
        _ => "",
    };
    let millionths = text.parse::<f64>().ok().map(|number| number * 1e6).map(f64::round);
    let millionths = millionths.filter(|m| (1.0..=1e6).contains(m));
    // The cast is exact: the number is whole and within bounds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let share = millionths.map(|m| Share { millionths: m as u32 });
    share.ok_or_else(|| mismatch_message("a share from 0.000001 to 1.0, such as 0.25", value))
}

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// A duration within bounds, both included.
pub(super) fn duration(
    (least, most): (Duration, Duration),
) -> impl Fn(&DeValue<'_>) -> Result<Duration, String> {
    move |value| {
        let text = string(value, "a duration such as \"2s\"")?;
        let duration = parse_duration(text)?;
        if (least..=most).contains(&duration) {
            return Ok(duration);
        }
        let least = show_duration(least);
        let most = show_duration(most);
        Err(format!("{} is out of bounds: \"{least}\" to \"{most}\"", quote(text)))
    }
}

/// A whole number and one unit: `500ms`, `2s`, `10m`, `1h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    if unit.is_empty() && !digits.is_empty() {
        let with_unit = quote(&format!("{digits}s"));
        return Err(format!("{} has no unit: write {with_unit} (units: ms, s, m, h)", quote(text)));
    }
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let (Some((_, unit_ms)), false) = (unit, digits.is_empty()) else {
        return Err(format!("{} is not a duration: a whole number and one of ms, s, m, h", quote(text)));
    };
    let milliseconds = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit_ms));
    milliseconds.map(Duration::from_millis).ok_or_else(|| format!("{} is too long", quote(text)))
}

/// The one spelling of a duration: in the largest unit without a fraction.
pub(super) fn show_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let whole = |unit_ms: &u64| milliseconds.is_multiple_of(u128::from(*unit_ms)) && milliseconds > 0;
    let unit = UNITS.iter().rev().find(|(_, unit_ms)| whole(unit_ms));
    let (name, unit_ms) = unit.copied().unwrap_or(("ms", 1));
    format!("{}{name}", milliseconds / u128::from(unit_ms))
}

/// A name of one label: lower-case letters, digits and dashes, at most 63 (RFC 1123).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsLabel(String);

impl DnsLabel {
    /// The namespace of a `[[service]]` without one.
    pub(super) fn static_namespace() -> Self {
        Self("static".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for DnsLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn dns_label(value: &DeValue<'_>) -> Result<DnsLabel, String> {
    let text = string(value, "a name such as \"web\"")?;
    if is_dns_label(text) {
        return Ok(DnsLabel(text.to_owned()));
    }
    let legal = "lower-case letters, digits and \"-\" (not first or last), 1 to 63 characters";
    Err(format!("{} is not a legal name: {legal}", quote(text)))
}

/// A name of labels with dots between them, such as a host name.
pub(super) fn dns_name(text: &str) -> Result<String, String> {
    if text.len() <= NAME_BYTES_MAX && text.split('.').all(is_dns_label) {
        return Ok(text.to_owned());
    }
    let legal = "parts of lower-case letters, digits and \"-\" with dots between them, 1 to 253 characters";
    Err(format!("{} is not a legal name: {legal}", quote(text)))
}

/// The value of a Kubernetes label, not empty here.
pub(super) fn label_value(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value, "a label's value such as \"zone-a\"")?;
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let outer = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let ends = outer(text.bytes().next()) && outer(text.bytes().last());
    if ends && text.len() <= LABEL_BYTES_MAX && text.bytes().all(inner) {
        return Ok(text.to_owned());
    }
    let legal = "letters, digits, \"-\", \"_\" and \".\" (not first or last), 1 to 63 characters";
    Err(format!("{} is not a value that a Kubernetes label can have: {legal}", quote(text)))
}

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    (1..=LABEL_BYTES_MAX).contains(&text.len()) && ends && text.bytes().all(inner)
}
