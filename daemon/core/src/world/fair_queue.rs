//! A fair queue of dirty services by namespace, so that no tenant delays another.
//!
//! Invariant: a namespace that had nothing waiting comes first, once. All others take turns and get the same amount of
//! work, however many or heavy their services are. Within a namespace, services go in order of arrival.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

use crate::op::ServiceId;

#[derive(Debug, Default)]
pub(super) struct FairQueue {
    lanes: BTreeMap<Arc<str>, Lane>,
    /// The namespaces that had a new lane when their first service came.
    fresh: VecDeque<Arc<str>>,
    /// The other namespaces, in turn. A lane is removed only when it is found empty here, so that a namespace that
    /// keeps returning is fresh only once per round.
    others: VecDeque<Arc<str>>,
    /// The namespace of the last popped service.
    current: Option<Arc<str>>,
    len: usize,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<ServiceId>,
    /// The work of the namespace in this turn; a heavy service may exceed a turn's.
    spent: u64,
}

impl FairQueue {
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Enqueues a dirty service behind the others of its namespace.
    pub(super) fn push(&mut self, namespace: &Arc<str>, id: ServiceId) {
        self.lane_mut(namespace).waiting.push_back(id);
    }

    /// Enqueues a service before the others of its namespace, so that it continues at the namespace's next turn.
    pub(super) fn put_back(&mut self, namespace: &Arc<str>, id: ServiceId) {
        self.lane_mut(namespace).waiting.push_front(id);
    }

    fn lane_mut(&mut self, namespace: &Arc<str>) -> &mut Lane {
        self.len += 1;
        self.lanes.entry(Arc::clone(namespace)).or_insert_with_key(|namespace| {
            self.fresh.push_back(Arc::clone(namespace));
            Lane::default()
        })
    }

    /// Pops the next service. `turn` is the work of one turn of a namespace.
    pub(super) fn pop(&mut self, turn: u64) -> Option<ServiceId> {
        loop {
            let is_fresh = !self.fresh.is_empty();
            let ring = if is_fresh { &mut self.fresh } else { &mut self.others };
            let name = ring.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let has_had_its_turn = lane.spent >= turn.max(1);
            if lane.waiting.is_empty() && !is_fresh {
                self.lanes.remove(&name);
            } else if lane.waiting.is_empty() || has_had_its_turn {
                lane.spent = lane.spent.saturating_sub(turn.max(1));
                self.others.push_back(name);
            } else if let Some(id) = lane.waiting.pop_front() {
                ring.push_front(Arc::clone(&name));
                self.current = Some(name);
                self.len -= 1;
                return Some(id);
            }
        }
    }

    pub(super) fn charge(&mut self, work: u64) {
        if let Some(lane) = self.current.as_ref().and_then(|name| self.lanes.get_mut(name)) {
            lane.spent = lane.spent.saturating_add(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use std::vec;

    use super::*;

    const TURN: u64 = 10;

    fn push(queue: &mut FairQueue, namespace: &str, ids: core::ops::Range<u32>) {
        ids.for_each(|id| queue.push(&namespace.into(), ServiceId(id)));
    }

    /// Pops the next services, each with this much work.
    fn take(queue: &mut FairQueue, count: usize, work: u64) -> Vec<u32> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(id) = queue.pop(TURN)
        {
            queue.charge(work);
            taken.push(id.0);
        }
        taken
    }

    #[test]
    fn a_namespace_that_had_nothing_waiting_comes_first() {
        let mut queue = FairQueue::default();
        push(&mut queue, "crowd", 0..100);
        assert_eq!(take(&mut queue, 3, 10), [0, 1, 2]);
        push(&mut queue, "other", 200..201);
        assert_eq!(take(&mut queue, 3, 10), [200, 3, 4]);
    }

    #[test]
    fn a_returning_namespace_comes_first_only_once_per_round() {
        let mut queue = FairQueue::default();
        push(&mut queue, "patient", 0..100);
        assert_eq!(take(&mut queue, 1, 10), [0]);
        let mut served = Vec::new();
        for id in 200..210 {
            push(&mut queue, "eager", id..id + 1);
            served.extend(take(&mut queue, 2, 10));
        }
        let patient = served.iter().filter(|id| **id < 100).count();
        assert!((8..=12).contains(&patient), "{served:?}");
    }

    #[test]
    fn each_namespace_gets_the_same_work_however_heavy_its_services_are() {
        let mut queue = FairQueue::default();
        push(&mut queue, "heavy", 0..1_000);
        push(&mut queue, "light", 1_000..9_000);
        let mut work = [0, 0];
        for _ in 0..2_000 {
            let id = queue.pop(TURN).unwrap();
            let (which, weight) = if id.0 < 1_000 { (0, 55) } else { (1, 1) };
            queue.charge(weight);
            work[which] += weight;
        }
        assert!(work[0].abs_diff(work[1]) < 150, "{work:?}");
    }

    #[test]
    fn a_namespaces_services_keep_their_order_and_a_returned_one_leads() {
        let mut queue = FairQueue::default();
        push(&mut queue, "a", 0..3);
        assert_eq!(take(&mut queue, 1, 1), [0]);
        queue.put_back(&"a".into(), ServiceId(0));
        assert_eq!(take(&mut queue, 9, 1), [0, 1, 2]);
        assert_eq!((queue.is_empty(), take(&mut queue, 1, 1)), (true, vec![]));
        assert!(
            queue.lanes.is_empty() && queue.others.is_empty() && queue.fresh.is_empty(),
            "nothing is left"
        );
    }
}
