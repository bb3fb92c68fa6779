//! A reload that was refused: why, by whose request, and what a restart would do with its file.
//!
//! Invariant: it stands until a later reload is accepted.

use std::fmt;

use holdfast_core::drains::DrainOrder;
use holdfast_core::facts::Timestamp;
use holdfast_core::words;

words! {
    /// What a start of the daemon does with the file of a refused reload.
    #[derive(Default)]
    pub enum StartOutcome {
        /// It ends at once, because the file is illegal.
        Fails = "fails",
        /// Nobody can say: the reload was refused for another reason than the file.
        #[default]
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedReload {
    pub why: String,
    pub at: Timestamp,
    /// Who asked for it; `None`: a signal did.
    pub by: Option<Requester>,
    /// Since when the configuration in force is.
    pub in_force_since: Timestamp,
    pub start: StartOutcome,
}

/// A client of the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    pub order: DrainOrder,
    pub pid: Option<i32>,
}

/// `root (uid 0), pid 3746`
impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.order)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", pid {pid}"))
    }
}

impl RefusedReload {
    /// A refusal of which only the reason is known.
    pub fn from_reason(why: &str) -> Self {
        Self { why: why.to_owned(), ..Self::default() }
    }
}
