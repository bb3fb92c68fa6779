//! The section about the disk: what it does not take, and whether the daemon may be restarted.
//!
//! Invariant: the folder and each error are named once.

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Unwritten {
    path: String,
    since: Option<String>,
    errors: Vec<String>,
    lacks: Vec<String>,
    restart: String,
    loses: Vec<String>,
}

impl Unwritten {
    pub(super) fn describe_state(&self) -> Vec<String> {
        let Self { path, since, errors, lacks, restart, loses } = self;
        let since = since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
        let lacks = if lacks.is_empty() { "nothing yet".to_owned() } else { lacks.join(", ") };
        let loses = if loses.is_empty() { "nothing".to_owned() } else { loses.join(", ") };
        vec![
            format!("{path} takes no write{since}: {}", errors.join("; ")),
            format!("not on disk: {lacks}; the daemon tries again every second"),
            format!("{restart}. It loses {loses}"),
            self.describe_next(),
        ]
    }

    fn describe_next(&self) -> String {
        let path = &self.path;
        let has = |code: &str| self.errors.iter().any(|why| why.contains(&format!("(os error {code})")));
        if has("28") || has("122") {
            format!("next: make room: df -h {path}; df -i {path}")
        } else if has("30") {
            format!("next: make it writable: findmnt -T {path}")
        } else {
            format!("next: look at it: ls -la {path}")
        }
    }
}
