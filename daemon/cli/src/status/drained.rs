//! The line of backends, with those that are drained and get clients all the same.
//!
//! Invariant: a drain stays until an operator takes it back, which may be forgotten, so it is always counted.

use serde::Deserialize;

use super::Status;

#[derive(Debug, Deserialize)]
pub(super) struct DrainList {
    drains: Vec<Drain>,
}

#[derive(Debug, Deserialize)]
struct Drain {
    backend: String,
    /// In how many services clients still get it.
    used: u64,
}

impl DrainList {
    /// The drained backends that clients still get.
    pub(super) fn list_used(self) -> Vec<String> {
        self.drains.into_iter().filter(|it| it.used > 0).map(|it| it.backend).collect()
    }
}

impl Status {
    /// How many backends there are, and which drained ones clients still get.
    pub(super) fn describe_backends(&self) -> String {
        let used = match self.unused {
            0 => self.backends.to_string(),
            unused => format!("{} of {} in use", self.backends, self.backends.saturating_add(unused)),
        };
        let kept = match &*self.drained_in_use {
            [] => String::new(),
            [backend] => format!("{backend} is drained and in use all the same: no other takes clients; "),
            many => format!("{} are drained and in use all the same: no other takes clients; ", many.len()),
        };
        match self.drained {
            0 => used,
            drained => format!("{used}, {drained} drained ({kept}`holdfast drain` lists them)"),
        }
    }
}
