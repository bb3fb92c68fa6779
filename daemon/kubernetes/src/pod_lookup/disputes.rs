//! Schedules the requests for disputed addresses.
//!
//! Invariant: a disputed address is asked for at most once more than [`PAUSES`] has entries; requests also count when
//! the dispute ends and returns. A namespace has at most [`NAMESPACE_ADDRESSES_MAX`] addresses, and namespaces take
//! turns. An update only visits held services that have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{ServiceView, Snapshot};
use tokio::time::Instant;

/// The delay of each further request for an address: its Pod may change, and an apiserver may lag.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(60)];

/// How long the requests for an address are remembered.
const REMEMBER_FOR: Duration = Duration::from_secs(120);

/// The most addresses of one namespace at a time: more Pods than move in a moment.
const NAMESPACE_ADDRESSES_MAX: usize = 16;

/// The most addresses in total.
const ADDRESSES_MAX: usize = 1_024;

#[derive(Debug)]
struct PodQuery {
    namespace: Arc<str>,
    is_disputed: bool,
    attempts: usize,
    /// When to ask next; `None`: never again.
    due: Option<Instant>,
    forget_at: Instant,
}

/// All disputed addresses, and those remembered.
#[derive(Debug, Default)]
pub(super) struct Disputes {
    queries: BTreeMap<IpAddr, PodQuery>,
    /// The visited views with their disputed addresses.
    views: BTreeMap<ServiceId, (Arc<ServiceView>, BTreeSet<IpAddr>)>,
    /// The last turn of each namespace.
    turns: BTreeMap<Arc<str>, u64>,
    turns_given: u64,
}

impl Disputes {
    /// Follows the disputes of a snapshot; a new one is delayed by `pause`.
    pub(super) fn update_disputes(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        pause: &dyn Fn() -> Duration,
    ) {
        self.refresh_views(snapshot);
        let disputed = self.disputed_addresses();
        for (address, question) in &mut self.queries {
            question.is_disputed = disputed.contains_key(address);
        }
        self.queries.retain(|_, it| it.is_disputed || now < it.forget_at);
        for (address, namespace) in disputed {
            self.add_query(address, namespace, (now, pause));
        }
        let Self { queries: questions, turns, .. } = self;
        turns.retain(|namespace, _| questions.values().any(|it| it.namespace == *namespace));
    }

    fn refresh_views(&mut self, snapshot: &Snapshot) {
        self.views.retain(|id, _| snapshot.held.contains(id));
        for id in snapshot.held.iter() {
            let Some(view) = snapshot.services.get(*id) else { continue };
            if self.views.get(id).is_none_or(|(seen, _)| !Arc::ptr_eq(seen, view)) {
                self.views.insert(*id, (Arc::clone(view), service_disputes(view)));
            }
        }
    }

    /// The disputed addresses, each with the namespace of a service that holds it.
    fn disputed_addresses(&self) -> BTreeMap<IpAddr, Arc<str>> {
        let of_view = |(view, addresses): &(Arc<ServiceView>, BTreeSet<IpAddr>)| {
            let namespace: Arc<str> = view.key.name.namespace().into();
            addresses.iter().map(|address| (*address, Arc::clone(&namespace))).collect::<Vec<_>>()
        };
        self.views.values().flat_map(of_view).collect()
    }

    fn add_query(
        &mut self,
        address: IpAddr,
        namespace: Arc<str>,
        (now, pause): (Instant, &dyn Fn() -> Duration),
    ) {
        let of_namespace = || self.queries.values().filter(|it| it.namespace == namespace).count();
        let is_known = self.queries.contains_key(&address);
        if is_known || self.queries.len() >= ADDRESSES_MAX || of_namespace() >= NAMESPACE_ADDRESSES_MAX {
            return;
        }
        let due = Some(now + pause());
        let question = PodQuery { namespace, is_disputed: true, attempts: 0, due, forget_at: now };
        self.queries.insert(address, question);
    }

    /// When the next request is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queries.values().filter(|it| it.is_disputed).filter_map(|it| it.due).min()
    }

    /// Takes a due address, of the namespace with the oldest turn.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<IpAddr> {
        let is_due = |it: &PodQuery| it.is_disputed && it.due.is_some_and(|due| due <= now);
        let turn = |it: &PodQuery| self.turns.get(&it.namespace).copied().unwrap_or_default();
        let due = self.queries.iter().filter(|(_, it)| is_due(it));
        let (address, _) = due.min_by_key(|(_, it)| (turn(it), it.due))?;
        let address = *address;
        let question = self.queries.get_mut(&address)?;
        question.due = PAUSES.get(question.attempts).map(|pause| now + *pause);
        question.attempts += 1;
        question.forget_at = now + REMEMBER_FOR;
        self.turns_given += 1;
        self.turns.insert(Arc::clone(&question.namespace), self.turns_given);
        Some(address)
    }
}

/// The disputed addresses of a service of the cluster.
fn service_disputes(view: &ServiceView) -> BTreeSet<IpAddr> {
    let is_of_cluster = view.key.source == Source::Kubernetes;
    let holds = view.ports.iter().filter(|_| is_of_cluster).filter_map(|port| port.hold.as_deref());
    holds.flat_map(holdfast_core::hold::Hold::disputed_addresses).collect()
}

#[cfg(test)]
mod tests;
