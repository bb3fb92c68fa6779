//! Which address is asked for next.
//!
//! Invariant: an address is asked [`PAUSES`] and one more times at most while it is disputed, and what was asked counts
//! for an address that is let go and disputed again. A namespace has at most [`OF_NAMESPACE_MAX`] addresses here, and
//! the namespaces take turns. A look costs no more than the held services that have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{ServiceView, Snapshot};
use tokio::time::Instant;

/// How long each further question for an address waits: what runs there may change, and an apiserver may be behind.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(60)];

/// For how long it is remembered that an address was asked for.
const REMEMBERED: Duration = Duration::from_secs(120);

/// The most addresses of one namespace that are asked for at a time: more pods than change places in a moment.
const OF_NAMESPACE_MAX: usize = 16;

/// The most addresses of all namespaces.
const ADDRESSES_MAX: usize = 1_024;

#[derive(Debug)]
struct Question {
    namespace: Arc<str>,
    is_disputed: bool,
    asked: usize,
    /// When it is asked for next, or forgotten if it is not disputed; `None`: never again.
    due: Option<Instant>,
    forgotten: Instant,
}

/// All disputed addresses.
#[derive(Debug, Default)]
pub(super) struct Disputes {
    questions: BTreeMap<IpAddr, Question>,
    /// The views that were looked at, each with its disputed addresses.
    seen: BTreeMap<ServiceId, (Arc<ServiceView>, BTreeSet<IpAddr>)>,
    /// When each namespace had its last turn.
    turns: BTreeMap<Arc<str>, u64>,
    turns_given: u64,
}

impl Disputes {
    /// Follows the disputes of a snapshot; a new one waits for as long as `pause` says.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, now: Instant, pause: &dyn Fn() -> Duration) {
        self.look(snapshot);
        let disputed = self.disputed();
        for (address, question) in &mut self.questions {
            question.is_disputed = disputed.contains_key(address);
        }
        self.questions.retain(|_, it| it.is_disputed || now < it.forgotten);
        for (address, namespace) in disputed {
            self.add(address, namespace, (now, pause));
        }
        let Self { questions, turns, .. } = self;
        turns.retain(|namespace, _| questions.values().any(|it| it.namespace == *namespace));
    }

    fn look(&mut self, snapshot: &Snapshot) {
        self.seen.retain(|id, _| snapshot.held.contains(id));
        for id in snapshot.held.iter() {
            let Some(view) = snapshot.services.get(*id) else { continue };
            if self.seen.get(id).is_none_or(|(seen, _)| !Arc::ptr_eq(seen, view)) {
                self.seen.insert(*id, (Arc::clone(view), addresses(view)));
            }
        }
    }

    /// Each disputed address with the namespace of a service that holds it.
    fn disputed(&self) -> BTreeMap<IpAddr, Arc<str>> {
        let of_view = |(view, addresses): &(Arc<ServiceView>, BTreeSet<IpAddr>)| {
            let namespace: Arc<str> = view.key.name.namespace().into();
            addresses.iter().map(|address| (*address, Arc::clone(&namespace))).collect::<Vec<_>>()
        };
        self.seen.values().flat_map(of_view).collect()
    }

    fn add(&mut self, address: IpAddr, namespace: Arc<str>, (now, pause): (Instant, &dyn Fn() -> Duration)) {
        let of_namespace = || self.questions.values().filter(|it| it.namespace == namespace).count();
        let is_known = self.questions.contains_key(&address);
        if is_known || self.questions.len() >= ADDRESSES_MAX || of_namespace() >= OF_NAMESPACE_MAX {
            return;
        }
        let due = Some(now + pause());
        let question = Question { namespace, is_disputed: true, asked: 0, due, forgotten: now };
        self.questions.insert(address, question);
    }

    /// When the next question may be asked.
    pub(super) fn next(&self) -> Option<Instant> {
        self.questions.values().filter(|it| it.is_disputed).filter_map(|it| it.due).min()
    }

    /// An address to ask for now: one of the namespace that has waited longest for a turn.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<IpAddr> {
        let is_due = |it: &Question| it.is_disputed && it.due.is_some_and(|due| due <= now);
        let turn = |it: &Question| self.turns.get(&it.namespace).copied().unwrap_or_default();
        let due = self.questions.iter().filter(|(_, it)| is_due(it));
        let (address, _) = due.min_by_key(|(_, it)| (turn(it), it.due))?;
        let address = *address;
        let question = self.questions.get_mut(&address)?;
        question.due = PAUSES.get(question.asked).map(|pause| now + *pause);
        question.asked += 1;
        question.forgotten = now + REMEMBERED;
        self.turns_given += 1;
        self.turns.insert(Arc::clone(&question.namespace), self.turns_given);
        Some(address)
    }
}

/// The disputed addresses of a service of the cluster.
fn addresses(view: &ServiceView) -> BTreeSet<IpAddr> {
    let is_of_cluster = view.key.source == Source::Kubernetes;
    let holds = view.ports.iter().filter(|_| is_of_cluster).filter_map(|port| port.hold.as_deref());
    holds.flat_map(holdfast_core::hold::Hold::disputed_addresses).collect()
}

#[cfg(test)]
mod tests;
