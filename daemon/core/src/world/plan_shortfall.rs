//! What the plan of a service found no room for.
//!
//! Invariant: no frontend is led to a port of which nothing is there, and nothing is emptied that clients still reach,
//! until a later plan of the service finds room. All else of the service is carried out: what one port lacks keeps no
//! other port from following its backends, and nothing from leaving.

use alloc::collections::{BTreeMap, BTreeSet};

use super::index_handover::IndexHandover;
use super::placement::PlacementError;
use super::space::OutOfIndices;
use crate::op::ServiceId;

/// Why a plan stops short of what is desired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// A list has no place.
    #[error(transparent)]
    Place(#[from] PlacementError),
    /// A port has no index.
    #[error(transparent)]
    Index(#[from] OutOfIndices),
    /// The configured number is reached.
    #[error("{0} frontends are programmed, as many as `datapath.limits.frontends` allows; raise it")]
    Frontends(usize),
    /// The namespace has its part.
    #[error(
        "{own} frontends of this namespace are programmed and leave {left} to all others, which is their part; raise \
             `datapath.limits.frontends`"
    )]
    Quota { own: usize, left: usize },
    /// External IPs have what they may have together.
    #[error(
        "{0} frontends at external IPs are programmed, of all namespaces together, and may take half of \
             `datapath.limits.frontends`; raise it"
    )]
    ExternalIps(usize),
}

impl PlanError {
    /// Whether there would be room, if the namespace did not have its part already.
    pub(crate) const fn is_quota_error(&self) -> bool {
        match self {
            Self::Place(PlacementError::Members(no_members)) => no_members.is_quota_error(),
            Self::Place(PlacementError::Quota { .. })
            | Self::Index(OutOfIndices::Quota { .. })
            | Self::Quota { .. }
            | Self::ExternalIps(_) => true,
            Self::Place(PlacementError::Slots(_) | PlacementError::List(_))
            | Self::Index(OutOfIndices::Exhausted(_))
            | Self::Frontends(_) => false,
        }
    }
}

/// The services that lack something, each since its last plan began.
#[derive(Debug, Default)]
pub(super) struct PlanShortfalls {
    services: BTreeMap<ServiceId, Shortfall>,
    /// Of the service that is planned now, once one of its ports has asked.
    pub(super) handover: Option<IndexHandover>,
}

#[derive(Debug)]
struct Shortfall {
    /// Which ports of the service have no index, or lists that are not whole, by their places.
    ports: BTreeSet<usize>,
    /// Why something was left out first.
    reason: PlanError,
}

impl PlanShortfalls {
    /// A plan of the service begins.
    pub(super) fn begin_plan(&mut self, id: ServiceId) {
        self.services.remove(&id);
    }

    /// Notes what is left out: a port, or frontends.
    pub(super) fn record_shortfall(&mut self, id: ServiceId, port: Option<usize>, why: PlanError) {
        let lacks =
            self.services.entry(id).or_insert_with(|| Shortfall { ports: BTreeSet::new(), reason: why });
        lacks.ports.extend(port);
    }

    /// Why the plan of a service is not whole; `None`: it is.
    pub(super) fn reason(&self, id: ServiceId) -> Option<&PlanError> {
        self.services.get(&id).map(|lacks| &lacks.reason)
    }

    /// Whether the plan left the port at this place out.
    pub(super) fn lacks_port(&self, id: ServiceId, port: usize) -> bool {
        self.services.get(&id).is_some_and(|lacks| lacks.ports.contains(&port))
    }
}
