//! What the plan of a service found no room for.
//!
//! Invariant: no frontend is led to a port of which nothing is there, and nothing is emptied that clients still reach,
//! until a later plan of the service finds room. All else of the service is carried out: what one port lacks keeps no
//! other port from following its backends, and nothing from leaving.

use alloc::collections::{BTreeMap, BTreeSet};

use super::heirs::Heirs;
use super::place::NoPlace;
use super::space::NoIndex;
use crate::op::ServiceId;

/// Why a plan stops short of what is desired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// A list has no place.
    #[error(transparent)]
    Place(#[from] NoPlace),
    /// A port has no index.
    #[error(transparent)]
    Index(#[from] NoIndex),
    /// The configured number is reached.
    #[error("{0} frontends are programmed, as many as `datapath.limits.frontends` allows; raise it")]
    Frontends(usize),
    /// The namespace has its part.
    #[error(
        "{own} frontends of this namespace are programmed and leave {left} to all others, which is their part; raise \
             `datapath.limits.frontends`"
    )]
    Part { own: usize, left: usize },
    /// External IPs have what they may have together.
    #[error(
        "{0} frontends at external IPs are programmed, of all namespaces together, and may take half of \
             `datapath.limits.frontends`; raise it"
    )]
    Chosen(usize),
}

impl PlanError {
    /// Whether there would be room, if the namespace did not have its part already.
    pub(crate) const fn is_part(&self) -> bool {
        match self {
            Self::Place(NoPlace::Members(no_members)) => no_members.is_part(),
            Self::Place(NoPlace::Part { .. })
            | Self::Index(NoIndex::Part { .. })
            | Self::Part { .. }
            | Self::Chosen(_) => true,
            Self::Place(NoPlace::Slots(_) | NoPlace::List(_))
            | Self::Index(NoIndex::All(_))
            | Self::Frontends(_) => false,
        }
    }
}

/// The services that lack something, each since its last plan began.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    services: BTreeMap<ServiceId, Lacks>,
    /// Of the service that is planned now, once one of its ports has asked.
    pub(super) heirs: Option<Heirs>,
}

#[derive(Debug)]
struct Lacks {
    /// Which ports of the service have no index, or lists that are not whole, by their places.
    ports: BTreeSet<usize>,
    /// Why something was left out first.
    why: PlanError,
}

impl Lacking {
    /// A plan of the service begins.
    pub(super) fn begin(&mut self, id: ServiceId) {
        self.services.remove(&id);
    }

    /// Notes what is left out: a port, or frontends.
    pub(super) fn note(&mut self, id: ServiceId, port: Option<usize>, why: PlanError) {
        let lacks = self.services.entry(id).or_insert_with(|| Lacks { ports: BTreeSet::new(), why });
        lacks.ports.extend(port);
    }

    /// Why the plan of a service is not whole; `None`: it is.
    pub(super) fn why(&self, id: ServiceId) -> Option<&PlanError> {
        self.services.get(&id).map(|lacks| &lacks.why)
    }

    /// Whether the plan left the port at this place out.
    pub(super) fn has(&self, id: ServiceId, port: usize) -> bool {
        self.services.get(&id).is_some_and(|lacks| lacks.ports.contains(&port))
    }
}
