//! Totals at the end of the services in an answer.
//!
//! Invariant: they cover all services, whatever the filter, and reading them visits no service.

use std::collections::BTreeMap;

use holdfast_core::totals::{BackendCounts, Totals};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::form::Form;

pub(super) const NAME: &str = "totals";

/// The totals, whatever the filter.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "Totals")]
pub struct TotalsRow {
    pub services: u64,
    /// Rows of /frontends.
    pub frontends: u64,
    /// Rows of /backends that are in use.
    pub backends: u64,
    /// Rows of /backends that are not in use.
    #[serde(default)]
    pub unused: u64,
    /// Rows of /backends that are drained, in use or not.
    pub drained: u64,
    /// Services by state, without states that no service has.
    pub states: BTreeMap<String, u64>,
    /// Services by the verdict of their worst frontend.
    pub verdicts: BTreeMap<String, u64>,
}

impl From<&Totals> for TotalsRow {
    fn from(totals: &Totals) -> Self {
        let BackendCounts { unused, drained: [rests, used], .. } = totals.backends();
        Self {
            services: totals.services(),
            frontends: totals.frontends().map(|(.., count)| count).sum(),
            backends: totals.backends().used(),
            unused,
            drained: rests + used,
            states: nonzero_counts(totals.states().map(|(state, count)| (state.as_str(), count))),
            verdicts: nonzero_counts(
                totals.worst_verdicts().map(|(verdict, count)| (verdict.as_str(), count)),
            ),
        }
    }
}

fn nonzero_counts(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counts.filter(|(_, count)| *count > 0).map(|(word, count)| (word.to_owned(), count)).collect()
}

/// Describes the member to programs.
pub(super) fn describe_member(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<TotalsRow>()
}

/// Adds the member to JSON; people have `holdfast status`.
pub(super) fn write(totals: &Totals, form: Form, out: &mut Vec<u8>) {
    if form == Form::Json {
        out.extend_from_slice(b",\n\"totals\": ");
        // A Vec takes every write.
        let _ = serde_json::to_writer(out, &TotalsRow::from(totals));
    }
}
