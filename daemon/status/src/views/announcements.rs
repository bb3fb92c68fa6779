//! Addresses that this node announces, or would announce if it could serve them.
//!
//! Invariant: plain data. An address is announced once the kernel has accepted its route.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One address of announced services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnnouncedAddress {
    pub address: IpAddr,
    /// The routing table.
    pub table: u8,
    /// Whether the route exists.
    pub announced: bool,
    /// Why the route does not exist, or will not stay.
    pub why: Option<String>,
    /// Why the kernel rejected the last change; it is tried again.
    pub error: Option<String>,
}

impl fmt::Display for AnnouncedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, table, announced, why, error } = self;
        let word = if *announced { "announced" } else { "not announced" };
        write!(f, "{word}: {address} (table {table})")?;
        [why, error].into_iter().flatten().try_for_each(|clause| write!(f, ": {clause}"))
    }
}

/// All addresses, and the counts of changes since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncementStatus {
    /// In the order of the addresses.
    pub addresses: Vec<AnnouncedAddress>,
    pub added: u64,
    pub removed: u64,
    /// Changes that the kernel refused.
    pub failures: u64,
}
