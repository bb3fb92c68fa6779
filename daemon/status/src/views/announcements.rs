//! Addresses that this node announces, or would if it could serve them.
//!
//! Invariant: plain data. What is announced is what the kernel has accepted.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One address of services that are announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnnouncedAddress {
    pub address: IpAddr,
    /// The table of routes.
    pub table: u8,
    /// Whether the route is there.
    pub announced: bool,
    /// Why the route is not there, or will not stay.
    pub why: Option<String>,
    /// Why the kernel did not take the last change; it is tried again.
    pub error: Option<String>,
}

impl fmt::Display for AnnouncedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, table, announced, why, error } = self;
        let word = if *announced { "announced" } else { "not announced" };
        write!(f, "{word}: {address} (table {table})")?;
        [why, error].into_iter().flatten().try_for_each(|said| write!(f, ": {said}"))
    }
}

/// All of them, and what was done since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementStatus {
    /// In the order of the addresses.
    pub addresses: Vec<AnnouncedAddress>,
    /// Routes that were put in.
    pub added: u64,
    /// Routes that were taken out.
    pub removed: u64,
    /// Changes that the kernel refused.
    pub failures: u64,
}
