//! A client that was turned away: where, why, and how often.
//!
//! Invariant: plain data, with times as people read them. A reader finds the names of services in the snapshot.

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{Family, FrontendKey};
pub use holdfast_datapath::Cause;
use holdfast_datapath::{Denial, Refusal};

/// A client that was not served, once or again and again, with times as people read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The first time.
    pub first: Timestamp,
    /// The latest time.
    pub last: Timestamp,
    /// How many times, both of these included.
    pub count: u64,
    /// The client, and what it dialled; of the last time.
    pub refusal: Refusal,
}

impl Denied {
    /// Whether this is the same process, or the same address outside, that met the same at the same frontend.
    pub fn is_again(&self, refusal: &Refusal) -> bool {
        let address = |it: &Refusal| it.arrival.map(|arrival| arrival.source.ip());
        let same = |it: &Refusal| (it.process, address(it), it.frontend, it.denial, it.cause, it.cgroup);
        same(&self.refusal) == same(refusal)
    }
}

/// The frontends that may have answered, in the order in which the programs look.
pub fn answering(dialled: &FrontendKey) -> [FrontendKey; 2] {
    let any = FrontendKey { address: Family::of(dialled.address).unspecified(), ..*dialled };
    [*dialled, any]
}

/// Every word that [`spelled`] gives.
pub const DENIALS: [&str; 2] = [spelled(Denial::Refused), spelled(Denial::Dropped)];

/// The one spelling of a denial in tables, JSON, log and metrics.
pub const fn spelled(denial: Denial) -> &'static str {
    match denial {
        Denial::Refused => "refused",
        Denial::Dropped => "dropped",
    }
}
