//! Why a service was looked at again, and what came of it.
//!
//! Invariant: every visible change of a service makes exactly one [`Change`], with its causes; so does every event of
//! an object that changed nothing visible, because watchers want to hear of it. A change shares facts and views with
//! the tables, so making one costs little; text is made of it elsewhere. The recorder adds numbers and storage.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::drains::DrainChange;
use crate::facts::{Meta, ServiceFacts, SliceFacts, Timestamp};
use crate::hold::ProbeResult;
use crate::keys::{FrontendKey, ServiceKey, SliceKey};
use crate::snapshot::ServiceView;

/// Why a service became dirty. The facts tell the object, its version and its last writer.
#[derive(Clone, Debug)]
pub enum Cause {
    /// The service's object came or changed.
    ServiceApplied(Arc<ServiceFacts>),
    /// The service's object went. Beside it, the last version that was seen.
    ServiceDeleted(ServiceKey, Option<Box<Meta>>),
    /// One of the service's slices came or changed.
    SliceApplied(Arc<SliceFacts>),
    /// One of the service's slices went. Beside it, the last version that was seen.
    SliceDeleted(SliceKey, Option<Box<Meta>>),
    /// One of the service's slices now names another service.
    SliceLeft(Arc<SliceFacts>),
    /// The service owns an address that the other service owned until now.
    ClaimWon(FrontendKey, ServiceKey),
    /// The other service owns an address that this service claims too.
    ClaimLost(FrontendKey, ServiceKey),
    /// The node's name or zone changed.
    NodeApplied,
    /// The settings changed.
    SettingsApplied,
    /// An operator drained one of the service's backends, or took that back.
    Drained(Arc<DrainChange>),
    /// The maps refused an op before.
    Retry,
    /// A former process wrote the service down; `is_cold_start`: this one began with maps that served no client.
    Restored { is_cold_start: bool },
    /// A hold has reached its bound.
    HoldDue,
    /// A held backend was probed.
    Probed(Box<ProbeResult>),
    /// A slice of the other service lists a held address for another target.
    AddressClaimed(SocketAddr, ServiceKey),
    /// Another pod has a held address, as the apiserver says.
    AddressReused(IpAddr),
    /// So many services lost their lists at once that it is no accident of one of them.
    MassLoss {
        lost: usize,
        /// How many services had a list.
        populated: usize,
    },
    /// No reader sees any more what the service left behind, so that can be emptied.
    ReadersLeft,
}

impl Cause {
    /// Whether an object of another service said it, which changes nothing of this one.
    pub(crate) const fn is_foreign(&self) -> bool {
        matches!(self, Self::AddressClaimed(..))
    }

    /// Whether an object of this service was written or removed.
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

/// What came of the causes.
#[derive(Clone, Debug)]
pub struct Change {
    pub service: ServiceKey,
    pub at: Timestamp,
    /// Why; the last ones, if there were more than fit.
    pub causes: Vec<Cause>,
    /// How many causes before those did not fit.
    pub suppressed: u32,
    /// Whether readers see a difference, or the maps were written to. If not, the change stands for an event that
    /// watchers are to be told of.
    pub visible: bool,
    /// What readers saw before.
    pub before: Option<Arc<ServiceView>>,
    /// What they see now; `None`: nothing is known of it any more.
    pub after: Option<Arc<ServiceView>>,
    /// How many ops the maps accepted for it.
    pub ops: u32,
    /// What the maps refused, if they did.
    pub error: Option<Arc<str>>,
}

impl Change {
    /// How many bytes a change that waits keeps in memory, at most: views may be shared with a change before or behind
    /// it, and with readers.
    pub fn bytes(&self) -> usize {
        let views = self.before.iter().chain(&self.after).map(|view| view.bytes());
        size_of::<Self>() + self.causes.len() * size_of::<Cause>() + views.sum::<usize>()
    }
}
