//! Paths of the API with the values of a query.
//!
//! Invariant: a value cannot end its parameter or begin another one.

use std::fmt::Display;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters with a meaning in a query. Names of services and addresses stay readable.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/').remove(b':');

pub(super) fn encode_component(text: &str) -> impl Display {
    utf8_percent_encode(text, ENCODED)
}

pub(super) fn build_path(begin: &str, given: &[(&str, String)]) -> String {
    given
        .iter()
        .fold(begin.to_owned(), |path, (name, value)| format!("{path}&{name}={}", encode_component(value)))
}
