//! Why the engine decided a service again, and the result.
//!
//! Invariant: every visible change of a service makes exactly one [`Change`] with its causes. An event of an object
//! that changes nothing visible makes one too, because watchers want to see it. A change shares facts and views with
//! the tables, so it is cheap to make; other crates format it. The recorder adds numbers and storage.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::drains::DrainChange;
use crate::facts::{Meta, ServiceFacts, SliceFacts, Timestamp};
use crate::hold::ProbeResult;
use crate::keys::{FrontendKey, ServiceKey, SliceKey};
use crate::snapshot::ServiceView;

/// Why a service became dirty. The facts carry the object, its version and its last writer.
#[derive(Clone, Debug)]
pub enum Cause {
    /// The service's object was added or changed.
    ServiceApplied(Arc<ServiceFacts>),
    /// The service's object was deleted; carries its last version.
    ServiceDeleted(ServiceKey, Option<Box<Meta>>),
    /// One of the service's slices was added or changed.
    SliceApplied(Arc<SliceFacts>),
    /// One of the service's slices was deleted; carries its last version.
    SliceDeleted(SliceKey, Option<Box<Meta>>),
    /// One of the service's slices now names another service.
    SliceLeft(Arc<SliceFacts>),
    /// The service took over an address from the other service.
    ClaimWon(FrontendKey, ServiceKey),
    /// The other service owns an address that this service claims too.
    ClaimLost(FrontendKey, ServiceKey),
    /// The node's name or zone changed.
    NodeApplied,
    /// Processes of the node began or ceased to listen at ports of the service's external IPs.
    ListenersApplied,
    /// The settings changed.
    SettingsApplied,
    /// An operator drained one of the service's backends, or ended the drain.
    Drained(Arc<DrainChange>),
    /// The maps refused an op before.
    Retry,
    /// A former process saved the service; `is_cold_start`: this one started with maps that served no client.
    Restored { is_cold_start: bool },
    /// A hold reached its bound.
    HoldDue,
    /// A held backend was probed.
    Probed(Box<ProbeResult>),
    /// A slice of the other service lists a held address for another target.
    AddressClaimed(SocketAddr, ServiceKey),
    /// The apiserver reports another pod with a held address.
    AddressReused(IpAddr),
    /// So many services lost their lists at once that each loss alone is no accident.
    MassLoss {
        lost: usize,
        /// How many services had a list.
        populated: usize,
    },
    /// No reader sees the service's old slots any more, so they can be emptied.
    ReadersLeft,
}

impl Cause {
    /// Whether an object of another service caused it; that changes nothing of this service.
    pub(crate) const fn is_foreign(&self) -> bool {
        matches!(self, Self::AddressClaimed(..))
    }

    /// Whether an object of this service was written or deleted.
    pub(crate) const fn is_object_event(&self) -> bool {
        match self {
            Self::ServiceApplied(_)
            | Self::ServiceDeleted(..)
            | Self::SliceApplied(_)
            | Self::SliceDeleted(..)
            | Self::SliceLeft(_) => true,
            Self::ClaimWon(..)
            | Self::ClaimLost(..)
            | Self::NodeApplied
            | Self::ListenersApplied
            | Self::SettingsApplied
            | Self::Drained(_)
            | Self::Retry
            | Self::Restored { .. }
            | Self::HoldDue
            | Self::Probed(_)
            | Self::AddressClaimed(..)
            | Self::AddressReused(_)
            | Self::MassLoss { .. }
            | Self::ReadersLeft => false,
        }
    }
}

/// The result of the causes.
#[derive(Clone, Debug)]
pub struct Change {
    pub service: ServiceKey,
    pub at: Timestamp,
    /// The last causes, if there were more than fit.
    pub causes: Vec<Cause>,
    /// How many earlier causes did not fit.
    pub suppressed: u32,
    /// Whether readers see a difference, or the maps were written. If not, the change reports an event to watchers.
    pub visible: bool,
    /// The view before.
    pub before: Option<Arc<ServiceView>>,
    /// The view now; `None` if the engine dropped the service.
    pub after: Option<Arc<ServiceView>>,
    /// How many of its ops the maps accepted.
    pub ops: u32,
    /// The error, if the maps refused an op.
    pub error: Option<Arc<str>>,
}

impl Change {
    /// Upper bound of the memory that a queued change uses. It may share views with neighbouring changes and readers.
    pub fn bytes(&self) -> usize {
        let views = self.before.iter().chain(&self.after).map(|view| view.bytes());
        size_of::<Self>() + self.causes.len() * size_of::<Cause>() + views.sum::<usize>()
    }
}
