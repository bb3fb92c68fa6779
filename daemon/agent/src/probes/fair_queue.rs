//! Selects the list or address that has the turn: namespaces take turns, and each has its own order.
//!
//! Invariant: a due item waits for at most one turn of each other namespace, and for earlier items of its own. Within
//! a namespace the lowest [`Turn`] goes first. A turn costs the logarithm of the queue's size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

/// When a list or an address is next in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// At once: a list that has had no turn yet. New lists are numbered from the list of their namespace that last
    /// had its first turn, so a few late ones do not wait for all before them.
    First(u64),
    /// From this time on. A list with more to probe is due again at the time of its last turn, behind all that were
    /// due before.
    Again(Instant),
}

impl Turn {
    fn is_due(self, now: Instant) -> bool {
        match self {
            Self::First(_) => true,
            Self::Again(at) => at <= now,
        }
    }
}

/// The turns of one namespace.
#[derive(Debug)]
struct Lane<T> {
    turns: BTreeSet<(Turn, T)>,
    /// Its position in the ring, if it is there.
    position: Option<u64>,
}

/// All turns, by namespace.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    lanes: BTreeMap<Arc<str>, Lane<T>>,
    /// The namespaces that take turns, each behind those that were there when it became due.
    ring: BTreeMap<u64, Arc<str>>,
    /// The namespaces outside the ring, by their first turns.
    later: BTreeSet<(Turn, Arc<str>)>,
    last_position: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), ring: BTreeMap::new(), later: BTreeSet::new(), last_position: 0 }
    }
}

impl<T: Ord> FairQueue<T> {
    pub(super) fn insert(&mut self, namespace: &str, turn: Turn, who: T) {
        self.change(namespace, |turns| turns.insert((turn, who)));
    }

    pub(super) fn remove(&mut self, namespace: &str, turn: Turn, who: T) {
        self.change(namespace, |turns| turns.remove(&(turn, who)));
    }

    fn change(&mut self, namespace: &str, change: impl FnOnce(&mut BTreeSet<(Turn, T)>) -> bool) {
        let found = self.lanes.remove_entry(namespace);
        let new = || (namespace.into(), Lane { turns: BTreeSet::new(), position: None });
        let (name, mut lane) = found.unwrap_or_else(new);
        if let (Some((first, _)), None) = (lane.turns.first(), lane.position) {
            self.later.remove(&(*first, Arc::clone(&name)));
        }
        change(&mut lane.turns);
        self.put(name, lane);
    }

    /// Puts a namespace in the ring or in `later`; one without a turn is dropped.
    fn put(&mut self, name: Arc<str>, lane: Lane<T>) {
        match (lane.turns.first(), lane.position) {
            (Some((first, _)), None) => drop(self.later.insert((*first, Arc::clone(&name)))),
            (Some(_), Some(_)) => {}
            (None, Some(place)) => return drop(self.ring.remove(&place)),
            (None, None) => return,
        }
        self.lanes.insert(name, lane);
    }

    /// When the next turn is; `earliest` if it may be at once.
    pub(super) fn next(&self, earliest: Instant) -> Option<Instant> {
        if !self.ring.is_empty() {
            return Some(earliest);
        }
        self.later.first().map(|(turn, _)| match turn {
            Turn::First(_) => earliest,
            Turn::Again(at) => *at,
        })
    }

    /// Takes the turn that is due now, if any. Its namespace goes behind all others.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Turn, T)> {
        self.fill_ring(now);
        while let Some((_, name)) = self.ring.pop_first() {
            let Some(mut lane) = self.lanes.remove(&name) else { continue };
            lane.position = None;
            let is_due = lane.turns.first().is_some_and(|(turn, _)| turn.is_due(now));
            let taken = if is_due { lane.turns.pop_first() } else { None };
            self.put(name, lane);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    fn fill_ring(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(turn, _)| turn.is_due(now)) {
            let Some((_, name)) = self.later.pop_first() else { return };
            self.last_position += 1;
            if let Some(lane) = self.lanes.get_mut(&name) {
                lane.position = Some(self.last_position);
            }
            self.ring.insert(self.last_position, name);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lanes.values().map(|lane| lane.turns.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_fixtures::clock;

    use super::*;

    fn taken(turns: &mut FairQueue<u32>, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| turns.take(now)).map(|(_, who)| who).collect()
    }

    #[test]
    fn namespaces_take_turns_however_much_each_has() {
        let (mut turns, now) = (FairQueue::default(), clock::now().into());
        (0..5).for_each(|who| turns.insert("crowd", Turn::Again(now), who));
        turns.insert("few", Turn::Again(now), 10);
        turns.insert("few", Turn::First(7), 11);
        assert_eq!(taken(&mut turns, now), [11, 0, 10, 1, 2, 3, 4]);
        assert!(turns.lanes.is_empty() && turns.ring.is_empty() && turns.later.is_empty(), "nothing is left");
    }

    #[test]
    fn a_due_item_waits_for_one_turn_of_each_other_namespace() {
        let (mut turns, now) = (FairQueue::default(), clock::now().into());
        let soon = now + Duration::from_secs(1);
        (0..5).for_each(|who| turns.insert("crowd", Turn::First(who.into()), who));
        turns.insert("late", Turn::Again(soon), 10);
        assert_eq!((turns.take(now), turns.next(now)), (Some((Turn::First(0), 0)), Some(now)));
        assert_eq!(taken(&mut turns, soon), [1, 10, 2, 3, 4]);
    }

    #[test]
    fn a_removed_turn_is_not_waited_for() {
        let (mut turns, now) = (FairQueue::default(), clock::now().into());
        let soon = now + Duration::from_secs(1);
        turns.insert("a", Turn::Again(now), 1);
        turns.insert("b", Turn::Again(now), 2);
        turns.insert("b", Turn::Again(soon), 3);
        assert_eq!(turns.take(now), Some((Turn::Again(now), 1)));
        turns.remove("b", Turn::Again(now), 2);
        assert_eq!((turns.take(now), turns.next(now)), (None, Some(soon)));
        turns.remove("b", Turn::Again(soon), 3);
        assert_eq!((turns.take(soon), turns.next(now), turns.len()), (None, None, 0));
    }
}
