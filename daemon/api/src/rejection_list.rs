//! The rejected objects at the end of the services in an answer: by name, with the reason.

use std::io::Write as _;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::Rejections;
use holdfast_status::schema_types::{Code, Text};
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::text_table::{Cells, write_table};

/// All services, in the order: namespace, name, source; and rejected objects.
#[derive(Serialize, JsonSchema)]
pub(super) struct RejectionList<'a> {
    /// All of them, whatever the filter.
    rejected: Vec<RejectedRow<'a>>,
    /// Rejections since the start.
    rejected_total: u64,
    /// How many more are rejected now than this list names.
    rejected_dropped: usize,
    /// Objects that wait for space; each is rejected until it has some.
    waiting: usize,
}

/// `name` is null for a file, and for an object without a readable name; `place` is where those were found, or their
/// kind.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Rejection")]
struct RejectedRow<'a> {
    #[schemars(extend("enum" = ObjectKey::KINDS))]
    kind: &'static str,
    /// `namespace/name`, if it has them.
    name: Option<Text<&'a ObjectName>>,
    source: Code<Source>,
    /// Where a file or an object without a name was found.
    place: Option<&'a str>,
    origin: Option<&'a str>,
    reason: &'a str,
    /// Only a part was skipped.
    partial: bool,
}

impl<'a> From<&'a Rejection> for RejectedRow<'a> {
    fn from(rejection: &'a Rejection) -> Self {
        let Rejection { object, origin, reason, partial } = rejection;
        let place = match object {
            ObjectKey::File(_, place) | ObjectKey::Unnamed(_, place) | ObjectKey::Kind(_, place) => {
                Some(place.as_ref())
            }
            ObjectKey::Service(_) | ObjectKey::Slice(_) => None,
        };
        Self {
            kind: object.kind(),
            name: object.name().map(Text),
            source: Code(object.source()),
            place,
            origin: origin.as_deref(),
            reason,
            partial: *partial,
        }
    }
}

/// Appends the rejections to the answer with the services.
pub(super) fn write(rejections: &Rejections, form: Form, out: &mut Vec<u8>) {
    let rejected = rejections.named.values().map(RejectedRow::from).collect();
    let Rejections { total, more, waiting, .. } = *rejections;
    let members = RejectionList { rejected, rejected_total: total, rejected_dropped: more, waiting };
    match form {
        Form::Json => write_json(&members, out),
        Form::Table | Form::Wide => write_text(&members, out),
    }
}

/// The members go into an open object, so they come without their own braces.
fn write_json(members: &RejectionList<'_>, out: &mut Vec<u8>) {
    let text = serde_json::to_vec(members).unwrap_or_default();
    if let [b'{', inner @ .., b'}'] = text.as_slice() {
        out.extend_from_slice(b",\n");
        out.extend_from_slice(inner);
    }
}

fn write_text(members: &RejectionList<'_>, out: &mut Vec<u8>) {
    if members.rejected.is_empty() {
        return;
    }
    out.push(b'\n');
    let titles = ["REJECTED", "NAME", "SOURCE", "ORIGIN", "PART", "REASON"];
    write_table(titles, members.rejected.iter().map(to_cells), out);
    if members.rejected_dropped > 0 {
        // Writing to a Vec cannot fail.
        let _ = writeln!(
            out,
            "and {} more, which are named once some of these are fixed",
            members.rejected_dropped
        );
    }
}

fn to_cells(row: &RejectedRow<'_>) -> Cells {
    let mut cells = Cells::default();
    cells.put(row.kind);
    match (row.name, row.place) {
        (Some(name), _) => cells.put(name),
        (None, place) => cells.put_optional(place),
    }
    cells.put(row.source);
    cells.put_optional(row.origin);
    cells.put(if row.partial { "some" } else { "all" });
    cells.put(row.reason);
    cells
}
