//! Which topics are worth an Event, and which of them are new.
//!
//! Invariant: a topic is told when it begins. Only a hold is told of again when it ends, because clients meet what
//! follows it.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_core::facts::ObjectKey;
use holdfast_core::keys::{ServiceKey, Source};
use holdfast_core::snapshot::{
    FrontendView, Reason, Rejections, ServiceView, ServiceViews, Snapshot, Verdict,
};

/// One thing that is the case for one object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// Lists of a service are held, for this reason.
    Held(ServiceKey, &'static str),
    /// Its lists are no longer held.
    Released(ServiceKey),
    /// An object cannot be understood, for this reason.
    Rejected(ObjectKey, Arc<str>),
    /// A service claims an address that another one has.
    Conflict(ServiceKey, String, Option<ServiceKey>),
}

/// What was the case at the last look.
#[derive(Debug, Default)]
pub(super) struct TopicTracker {
    topics: BTreeSet<Topic>,
    services: ServiceViews,
    rejections: Arc<Rejections>,
}

impl TopicTracker {
    /// What has begun since the last look, and which holds have ended. Nothing is told before the sources have
    /// delivered, because a former process has told of everything that is remembered.
    pub(super) fn update_topics(&mut self, snapshot: &Snapshot) -> Vec<Topic> {
        if !snapshot.is_synced() || !snapshot.programmed || self.is_up_to_date(snapshot) {
            return Vec::new();
        }
        self.services = snapshot.services.clone();
        self.rejections = Arc::clone(&snapshot.rejections);
        let before = std::mem::replace(&mut self.topics, collect_topics(snapshot));
        let begun = self.topics.difference(&before).cloned();
        let ended = before.difference(&self.topics).filter_map(|topic| match topic {
            Topic::Held(service, _) if !self.has_hold(service) => Some(Topic::Released(service.clone())),
            _ => None,
        });
        begun.chain(ended).collect()
    }

    /// Whether nothing has changed since the last look. In most seconds it is so, and saves a walk over the table.
    fn is_up_to_date(&self, snapshot: &Snapshot) -> bool {
        self.services.is_same(&snapshot.services) && Arc::ptr_eq(&self.rejections, &snapshot.rejections)
    }

    fn has_hold(&self, service: &ServiceKey) -> bool {
        let mut next = self.topics.range(Topic::Held(service.clone(), "")..);
        matches!(next.next(), Some(Topic::Held(held, _)) if held == service)
    }
}

fn collect_topics(snapshot: &Snapshot) -> BTreeSet<Topic> {
    let held = snapshot.held.iter().filter_map(|id| snapshot.services.get(*id));
    let held = held.filter_map(|view| Some(Topic::Held(view.key.clone(), hold_reason(view)?.as_str())));
    let rejections = snapshot.rejections.named.values();
    let rejected = rejections.map(|it| Topic::Rejected(it.object.clone(), Arc::clone(&it.reason)));
    let conflicts = snapshot.services.with_problems().flat_map(|view| find_conflicts(view));
    held.chain(rejected).chain(conflicts).filter(Topic::is_in_cluster).collect()
}

fn hold_reason(view: &ServiceView) -> Option<Reason> {
    view.ports.iter().find_map(|port| port.hold.as_deref()).map(|hold| hold.reason)
}

fn find_conflicts(view: &ServiceView) -> impl Iterator<Item = Topic> + '_ {
    let lost = view.frontends.iter().filter(|it| it.verdict == Verdict::Conflict);
    lost.map(|it| Topic::Conflict(view.key.clone(), dial_target(it), it.owner.clone()))
}

fn dial_target(it: &FrontendView) -> String {
    format!("{}/{}", std::net::SocketAddr::new(it.address, it.port.get()), it.protocol)
}

impl Topic {
    /// Whether an apiserver holds the object; an Event about any other would have no object.
    fn is_in_cluster(&self) -> bool {
        match self {
            Self::Held(key, _) | Self::Released(key) | Self::Conflict(key, ..) => {
                key.source == Source::Kubernetes
            }
            Self::Rejected(object, _) => object.source() == Source::Kubernetes && object.name().is_some(),
        }
    }
}
