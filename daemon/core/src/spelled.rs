//! Closed sets of which each member has one spelling, in tables, logs, metrics, JSON and files.
//!
//! Invariant: no two members of a set are spelled alike, so what is written is read as the same member.

use core::fmt;

use crate::facts::{ServiceType, TrafficPolicy};
use crate::hold::{Asked, Bound};
use crate::keys::{Source, Transport};
use crate::lifecycle::endpoints::EndpointFindingId;
use crate::lifecycle::{Confidence, FindingId, Severity, State};
use crate::op::FrontendType;
use crate::snapshot::{Reason, ServiceState, UnusedBecause, Verdict};

/// A closed set of words.
pub trait Spelled: Copy + 'static {
    /// Every member, in the order in which people are told of them.
    const ALL: &'static [Self];

    /// The one spelling.
    fn spelling(self) -> &'static str;

    /// The member with this spelling.
    fn find(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.spelling() == text)
    }
}

macro_rules! spelled {
    ($($set:ty),+) => {
        $(
            impl Spelled for $set {
                const ALL: &'static [Self] = &<$set>::ALL;

                fn spelling(self) -> &'static str {
                    self.as_str()
                }
            }

            impl fmt::Display for $set {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(self.as_str())
                }
            }
        )+

        #[cfg(test)]
        fn each_set(check: &mut dyn FnMut(&[&str])) {
            $(
                let spellings: alloc::vec::Vec<&str> = <$set>::ALL.iter().map(|it| it.as_str()).collect();
                check(&spellings);
                assert!(<$set>::ALL.iter().all(|it| <$set as Spelled>::find(it.as_str()) == Some(*it)));
            )+
        }
    };
}

spelled!(
    Asked,
    Bound,
    Confidence,
    EndpointFindingId,
    FindingId,
    FrontendType,
    Reason,
    ServiceState,
    ServiceType,
    Severity,
    Source,
    State,
    TrafficPolicy,
    Transport,
    UnusedBecause,
    Verdict
);

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_members_are_spelled_alike() {
        each_set(&mut |spellings| {
            let different: BTreeSet<_> = spellings.iter().collect();
            assert_eq!(different.len(), spellings.len(), "{spellings:?}");
        });
    }
}
