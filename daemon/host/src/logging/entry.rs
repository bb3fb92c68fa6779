//! Encodes one log line for the journal: named fields, any bytes as values.
//!
//! Invariant: an event's field `service` becomes `HOLDFAST_SERVICE`, and likewise every other name, so that none can
//! pose as one of the journal's own.

use std::fmt::{Debug, Write};

use holdfast_status::printable::sanitise_line;
use tracing::Level;
use tracing::field::{Field, Visit};

/// An event's message and fields.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) message: String,
    fields: Vec<(&'static str, String)>,
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The number of the message, if it has one.
    pub(super) id: Option<&'static str>,
    pub(super) level: Level,
    /// Whether the line is a notice, a priority between a warning and info.
    pub(super) is_notice: bool,
    pub(super) file: Option<&'static str>,
    pub(super) line: Option<u32>,
}

impl Entry {
    /// The entry in the journal's native format.
    pub(super) fn encode(&self, origin: Origin) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512);
        put_field(&mut bytes, "MESSAGE", &self.to_text());
        put_field(&mut bytes, "PRIORITY", priority(origin));
        put_field(&mut bytes, "SYSLOG_IDENTIFIER", "holdfast");
        if let Some(id) = origin.id {
            put_field(&mut bytes, "MESSAGE_ID", id);
        }
        if let Some(file) = origin.file {
            put_field(&mut bytes, "CODE_FILE", file);
        }
        if let Some(line) = origin.line {
            put_field(&mut bytes, "CODE_LINE", &line.to_string());
        }
        for (name, value) in &self.fields {
            put_field(&mut bytes, &format!("HOLDFAST_{}", field_name(name)), value);
        }
        bytes
    }

    /// The line for people: the message and every field.
    fn to_text(&self) -> String {
        let mut text = sanitise_line(&self.message);
        for (name, value) in &self.fields {
            // Writing to a string cannot fail.
            let _ = match is_plain(value) {
                true => write!(text, " {name}={value}"),
                false => write!(text, " {name}={value:?}"),
            };
        }
        text
    }

    fn add_field(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_field(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add_field(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add_field(field, format!("{value:?}"));
    }
}

/// Whether a value needs no quotes: it is not empty and has no white space, invisible characters or characters that
/// change the line's direction.
fn is_plain(value: &str) -> bool {
    let is_seen = |it: char| matches!(it, '"' | '\\' | '\'') || it.escape_debug().count() == 1;
    !value.is_empty() && value.chars().all(|it| !it.is_whitespace() && is_seen(it))
}

/// A name as the journal takes it: capitals, digits and underscores.
fn field_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// The level's number in syslog(3); lower is worse.
const fn priority(origin: Origin) -> &'static str {
    match origin.level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO if origin.is_notice => "5",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// Appends a field. A value with a line end is preceded by its length; any other value ends with its line.
fn put_field(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend(u64::try_from(value.len()).unwrap_or(u64::MAX).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend(value.as_bytes());
    bytes.push(b'\n');
}
