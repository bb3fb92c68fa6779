//! Session affinity in tables.
//!
//! Invariant: a service without session affinity shows nothing.

use holdfast_core::affinity::Prefixes;
use holdfast_core::facts::ServiceFacts;
use holdfast_core::keys::Family;
use schemars::JsonSchema;
use serde::Serialize;

/// The prefix lengths of a client's address for session affinity, by family.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(super) struct AffinityPrefix {
    ipv4: u8,
    ipv6: u8,
}

impl AffinityPrefix {
    /// `None`: no affinity, or affinity by whole addresses because the service has no readable prefix.
    pub(super) fn from_facts(facts: &ServiceFacts) -> Option<Self> {
        let prefixes: Prefixes = facts.affinity_prefixes().filter(|_| facts.affinity_timeout.is_some())?;
        Some(Self { ipv4: prefixes.length(Family::V4), ipv6: prefixes.length(Family::V6) })
    }

    pub(super) const fn for_family(self, family: Family) -> u8 {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    pub(super) const fn lengths(self) -> [u8; 2] {
        [self.ipv4, self.ipv6]
    }
}

/// The timeout of the affinity, and its prefix lengths: `10800s/24/64`.
pub(super) fn format_affinity(seconds: u32, lengths: impl IntoIterator<Item = u8>) -> String {
    let lengths: String = lengths.into_iter().map(|length| format!("/{length}")).collect();
    format!("{seconds}s{lengths}")
}
