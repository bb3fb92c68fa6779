//! Finds the topics that deserve an Event, and tracks which are new.
//!
//! Invariant: a topic is reported when it begins. Only a hold is reported again when it ends, because its end affects
//! clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_core::facts::ObjectKey;
use holdfast_core::keys::{ServiceKey, Source};
use holdfast_core::snapshot::{
    FrontendView, Reason, Rejections, ServiceView, ServiceViews, Snapshot, Verdict,
};

/// One condition of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// Lists of a service are held for this reason.
    Held(ServiceKey, &'static str),
    /// None of its lists is held any more.
    Released(ServiceKey),
    /// An object was rejected for this reason.
    Rejected(ObjectKey, Arc<str>),
    /// A service claims an address that another one owns.
    Conflict(ServiceKey, String, Option<ServiceKey>),
}

/// The conditions in the last snapshot.
#[derive(Debug, Default)]
pub(super) struct TopicTracker {
    topics: BTreeSet<Topic>,
    services: ServiceViews,
    rejections: Arc<Rejections>,
}

impl TopicTracker {
    /// Returns topics that began and holds that ended since the last call. Returns none before the sources are synced,
    /// because a former process has reported everything that was saved.
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

    /// Whether nothing has changed since the last call. Usually true, which saves a walk over the table.
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
    /// Whether an apiserver has the object; an Event needs one.
    fn is_in_cluster(&self) -> bool {
        match self {
            Self::Held(key, _) | Self::Released(key) | Self::Conflict(key, ..) => {
                key.source == Source::Kubernetes
            }
            Self::Rejected(object, _) => object.source() == Source::Kubernetes && object.name().is_some(),
        }
    }
}
