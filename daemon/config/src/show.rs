//! From one typed value to its form in the effective configuration.
//!
//! Invariant: the key's reader reads the shown value as an equal one. Nothing can fail.

use std::path::Path;
use std::time::Duration;

use holdfast_core::str_enum::StrEnum;
use toml::{Table, Value};

use super::value::show_duration;

/// A key, and its value if it has one.
pub(super) type Entry = (&'static str, Option<Value>);

/// The keys that have a value.
pub(super) fn rows<const N: usize>(rows: [Entry; N]) -> Table {
    rows.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// As [`rows`], as a value.
pub(super) fn table<const N: usize>(keys: [Entry; N]) -> Value {
    Value::Table(rows(keys))
}

/// A number, true or false.
pub(super) fn scalar<T: Copy + Into<Value>>(value: &T) -> Option<Value> {
    Some((*value).into())
}

pub(super) fn text(value: &(impl ToString + ?Sized)) -> Option<Value> {
    Some(Value::String(value.to_string()))
}

/// A path as text; exact, because every path was read from text.
pub(super) fn path(path: &(impl AsRef<Path> + ?Sized)) -> Option<Value> {
    text(&path.as_ref().display())
}

pub(super) fn time(duration: &Duration) -> Option<Value> {
    text(&show_duration(*duration))
}

pub(super) fn word<T: StrEnum>(value: &T) -> Option<Value> {
    text(value.spelling())
}

pub(super) fn list<'i, T: ToString + 'i>(items: impl IntoIterator<Item = &'i T>) -> Option<Value> {
    Some(Value::Array(items.into_iter().filter_map(text).collect()))
}

/// A list, left out if empty, because the key's reader rejects an empty one or has it as the default.
pub(super) fn filled_list<'i, T: ToString + 'i>(items: impl IntoIterator<Item = &'i T>) -> Option<Value> {
    list(items).filter(|list| list.as_array().is_some_and(|items| !items.is_empty()))
}

pub(super) fn optional<T>(show: impl Fn(&T) -> Option<Value>) -> impl Fn(&Option<T>) -> Option<Value> {
    move |value| value.as_ref().and_then(&show)
}
