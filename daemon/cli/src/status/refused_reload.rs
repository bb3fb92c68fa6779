//! The circumstances of a refused reload: when, by whose request, and whether a restart would succeed.
//!
//! Invariant: the next step names the file that the daemon uses.

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Refusal {
    at: String,
    by: Option<String>,
    file: String,
    in_force_since: String,
    start: String,
}

impl Refusal {
    pub(super) fn describe_state(&self) -> Vec<String> {
        let Self { at, by, file, in_force_since, start } = self;
        let by = by.as_deref().map_or_else(|| "a signal".to_owned(), str::to_owned);
        let restart = match start.as_str() {
            "fails" => "do not restart the daemon: it would not start with the file as it was then",
            _ => "whether the daemon would start with that file, check-config says",
        };
        vec![
            format!("refused {at}, asked for by {by}"),
            format!("the configuration of {in_force_since} stays in force; {restart}"),
            format!(
                "next: mend the file until this finds nothing: holdfast check-config {file}; then: holdfast reload"
            ),
        ]
    }
}
