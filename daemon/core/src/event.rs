//! The closed set of inputs. Whatever happens outside reaches the rules as one of these.
//!
//! Invariant: an event names exactly one object by its exact key. A source sends events in groups; a group is applied
//! whole, with nothing planned in between. The engine adds the time.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::drains::{DrainOrder, Drains};
use crate::facts::{Listeners, Meta, NodeFacts, ObjectKey, Rejection, ServiceFacts, Settings, SliceFacts};
use crate::hold::{PodsAt, ProbeResult};
use crate::keys::{ServiceKey, SliceKey, Source};
use crate::time::Uptime;

/// The kinds of objects that an apiserver is watched for, each with a version of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchKind {
    Services,
    /// Kubernetes calls it `EndpointSlices`.
    Slices,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A service is there, new or changed. Ends an earlier rejection of it.
    ServiceApplied(Arc<ServiceFacts>),
    /// A service is gone, with the last version seen if the source knows it.
    ServiceDeleted(ServiceKey, Option<Box<Meta>>),
    /// A slice is there, new or changed. Ends an earlier rejection of it.
    SliceApplied(Arc<SliceFacts>),
    /// A slice is gone, with the last version seen if the source knows it.
    SliceDeleted(SliceKey, Option<Box<Meta>>),
    /// An object, or a part of it, was not understood. Whatever was known of it stays.
    Rejected(Rejection),
    /// What was rejected before is gone or good now. Only needed where no applied or deleted event says so.
    RejectionEnded(ObjectKey),
    /// The own node, whole.
    NodeApplied(Arc<NodeFacts>),
    /// The sockets of the node that wait for clients, whole. `None`: they are not known.
    ListenersApplied(Option<Arc<Listeners>>),
    /// The settings, whole.
    SettingsApplied(Arc<Settings>),
    /// The drains in force, whole, and the order that made them so.
    DrainsApplied(Arc<Drains>, DrainOrder),
    /// What a restart remembers of this source still holds; only differences follow.
    Resumed(Source),
    /// This source has delivered its first whole list. Whatever a restart remembers of the source, and the source has
    /// not named, is gone.
    Synced(Source),
    /// Nothing waits for this source any longer: the cluster does not have its kind, or does not tell of it. What is
    /// known of the source stays, and so does what a start found of it in the maps, until its first whole list comes.
    Absent(Source),
    /// What this source tells from now on may miss something for a while: it lost its apiserver, or lists anew.
    Interrupted(Source),
    /// This source cannot tell of endpoints, until it is heard again: no list is let go for want of news from it.
    Silent(Source),
    /// This source tells of endpoints again.
    Recovered(Source),
    /// This source has answered the question that was put at that time: all that it knew of endpoints then has come.
    Answered(Source, Uptime),
    /// A backend of a held list was asked whether it is there.
    Probed(Box<ProbeResult>),
    /// The apiserver was asked which pods run at a held address.
    PodsObserved(Box<PodsAt>),
    /// Everything up to this version of the apiserver has been told; a restart can go on from there.
    Progress(WatchKind, Arc<str>),
}
