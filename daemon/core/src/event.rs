//! The closed set of inputs: every outside change reaches the engine as one of these.
//!
//! Invariant: an event names exactly one object by its exact key. A source sends events in groups; the engine applies a
//! group whole and plans nothing in between. The engine adds the time.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::drains::{DrainOrder, Drains};
use crate::facts::{Listeners, Meta, NodeFacts, ObjectKey, Rejection, ServiceFacts, Settings, SliceFacts};
use crate::hold::{PodsAt, ProbeResult};
use crate::keys::{ServiceKey, SliceKey, Source};
use crate::time::Uptime;

/// The kinds of objects that the agent watches in an apiserver, each with its own resource version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchKind {
    Services,
    /// Kubernetes calls it `EndpointSlices`.
    Slices,
}

/// One change outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A service was added or changed. Ends an earlier rejection of it.
    ServiceApplied(Arc<ServiceFacts>),
    /// A service was deleted; carries the last version, if the source has it.
    ServiceDeleted(ServiceKey, Option<Box<Meta>>),
    /// A slice was added or changed. Ends an earlier rejection of it.
    SliceApplied(Arc<SliceFacts>),
    /// A slice was deleted; carries the last version, if the source has it.
    SliceDeleted(SliceKey, Option<Box<Meta>>),
    /// An object, or a part of it, was not understood. The last good version stays.
    Rejected(Rejection),
    /// The rejected object was deleted or is valid now. Needed only if no applied or deleted event follows.
    RejectionEnded(ObjectKey),
    /// The own node, whole.
    NodeApplied(Arc<NodeFacts>),
    /// The node's listening sockets, whole; `None` if they are unknown.
    ListenersApplied(Arc<Listeners>),
    /// The settings, whole.
    SettingsApplied(Arc<Settings>),
    /// The drains in force, whole, and the order that changed them.
    DrainsApplied(Arc<Drains>, DrainOrder),
    /// The restored state of this source still holds; only differences follow.
    Resumed(Source),
    /// This source has delivered its first whole list. Restored objects of the source that the list lacks are gone.
    Synced(Source),
    /// The cluster does not have this source's kind, or denies access to it, so the engine does not wait for it.
    /// Objects of the source stay, and so does what the start found in the maps, until its first whole list arrives.
    Absent(Source),
    /// This source may miss changes for a while: it lost its apiserver, or relists.
    Interrupted(Source),
    /// This source cannot report endpoints until it recovers: the engine drops no list because the source is silent.
    Silent(Source),
    /// This source reports endpoints again.
    Recovered(Source),
    /// This source has answered the query of that time: everything that it had of endpoints by then has arrived.
    Answered(Source, Uptime),
    /// A backend of a held list was probed.
    Probed(Box<ProbeResult>),
    /// The apiserver reported which pods run at a held address.
    PodsObserved(Box<PodsAt>),
    /// Everything up to this version of the apiserver has arrived; a restart can resume from it.
    Progress(WatchKind, Arc<str>),
}
