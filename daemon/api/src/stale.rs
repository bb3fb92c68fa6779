//! The note after a table: whether it is from before a restart, until each source has delivered.

use std::io::Write as _;

use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Snapshot;
use holdfast_status::age::Age;
use holdfast_status::rfc3339::Rfc3339;
use schemars::{Schema, SchemaGenerator};

use super::form::Form;
use holdfast_agent::readings::missing_sources;

pub(super) const NAME: &str = "stale_since";

/// Describes the member to programs.
pub(super) fn describe_member(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Option<Rfc3339>>();
    let about = "When this was written down, as long as a source has not delivered since the start.";
    schema.insert("description".to_owned(), about.into());
    schema
}

/// Adds `stale_since` to JSON, which is null unless a source is missing; to text, adds a line only in that case.
pub(super) fn write(snapshot: &Snapshot, (form, now): (Form, Timestamp), out: &mut Vec<u8>) {
    // A Vec takes every write.
    let _ = match (snapshot.stale_since.map(Rfc3339), form) {
        (Some(since), Form::Json) => write!(out, ",\"stale_since\": \"{since}\""),
        (None, Form::Json) => write!(out, ",\"stale_since\": null"),
        (Some(since), Form::Table | Form::Wide) => {
            let missing = missing_sources(snapshot);
            let age = Age { now, then: since.0 };
            writeln!(out, "\nstale: as remembered from {since} ({age}); no first list yet from: {missing}")
        }
        (None, Form::Table | Form::Wide) => Ok(()),
    };
}
