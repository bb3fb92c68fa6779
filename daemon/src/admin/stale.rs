//! What follows a table: whether it was remembered, and a source has not confirmed it yet.

use std::io::Write as _;

use holdfast_core::snapshot::Snapshot;

use super::form::Form;
use crate::readings::missing;
use crate::rfc3339::Rfc3339;

/// Adds `stale_since`, null unless a source is missing; for people a line, in that case only.
pub(super) fn write(snapshot: &Snapshot, form: Form, out: &mut Vec<u8>) {
    // A vector takes whatever is written to it.
    let _ = match (snapshot.stale_since.map(Rfc3339), form) {
        (Some(since), Form::Json) => write!(out, ",\"stale_since\": \"{since}\""),
        (None, Form::Json) => write!(out, ",\"stale_since\": null"),
        (Some(since), Form::Table | Form::Wide) => {
            let missing = missing(snapshot);
            writeln!(out, "\nstale: as remembered from {since}; no first list yet from: {missing}")
        }
        (None, Form::Table | Form::Wide) => Ok(()),
    };
}
