//! What a service's plan found no capacity for.
//!
//! Invariant: until a later plan finds capacity, no frontend points to a port without lists, and nothing that clients
//! still reach is emptied. The rest of the service is realized: a port without capacity neither delays other ports nor
//! prevents removals.

use alloc::collections::{BTreeMap, BTreeSet};

use super::index_handover::IndexHandover;
use super::placement::PlacementError;
use super::space::OutOfIndices;
use crate::op::ServiceId;

/// Why a plan falls short of desired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error(transparent)]
    Place(#[from] PlacementError),
    #[error(transparent)]
    Index(#[from] OutOfIndices),
    #[error("{0} frontends are programmed, as many as `datapath.limits.frontends` allows; raise it")]
    Frontends(usize),
    #[error(
        "this namespace has reached its quota: its {own} frontends leave {left} to all others; raise \
             `datapath.limits.frontends`"
    )]
    Quota { own: usize, left: usize },
    #[error(
        "the frontends at external IPs of all namespaces have reached half of `datapath.limits.frontends`: {0} are \
             programmed; raise it"
    )]
    ExternalIps(usize),
}

impl PlanError {
    /// Whether only the namespace's quota is exceeded.
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

/// The services with a shortfall, each since its last plan began.
#[derive(Debug, Default)]
pub(super) struct PlanShortfalls {
    services: BTreeMap<ServiceId, Shortfall>,
    /// The handover of the service being planned, once one of its ports needed it.
    pub(super) handover: Option<IndexHandover>,
}

#[derive(Debug)]
struct Shortfall {
    /// The positions of ports without index or with truncated lists.
    ports: BTreeSet<usize>,
    reason: PlanError,
}

impl PlanShortfalls {
    pub(super) fn begin_plan(&mut self, id: ServiceId) {
        self.services.remove(&id);
    }

    pub(super) fn record_shortfall(&mut self, id: ServiceId, port: Option<usize>, why: PlanError) {
        let lacks =
            self.services.entry(id).or_insert_with(|| Shortfall { ports: BTreeSet::new(), reason: why });
        lacks.ports.extend(port);
    }

    /// The first error of the service's plan, if any.
    pub(super) fn reason(&self, id: ServiceId) -> Option<&PlanError> {
        self.services.get(&id).map(|lacks| &lacks.reason)
    }

    /// Whether the plan left out the port at this position.
    pub(super) fn lacks_port(&self, id: ServiceId, port: usize) -> bool {
        self.services.get(&id).is_some_and(|lacks| lacks.ports.contains(&port))
    }
}
