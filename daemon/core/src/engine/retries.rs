//! When a service is tried again after its ops failed.
//!
//! Invariant: each failure in a row doubles the wait up to a bound; a success resets it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use crate::op::ServiceId;

/// The first wait: long enough for a busy map, short enough to go unnoticed.
const WAIT_MIN: Duration = Duration::from_millis(20);

/// The longest wait: a full map is tried twice a minute.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// All services that wait for another try.
#[derive(Debug, Default)]
pub(super) struct Retries {
    waiting: BTreeMap<ServiceId, (Duration, Duration)>,
    due: BTreeSet<(Duration, ServiceId)>,
    /// The services that wait for something else than their namespace's quota.
    failing: BTreeSet<ServiceId>,
}

impl Retries {
    pub(super) fn record_failure(&mut self, id: ServiceId, now: Duration, is_part: bool) {
        let before = self.waiting.get(&id).map(|(_, wait)| *wait * 2);
        let wait = before.unwrap_or(WAIT_MIN).min(WAIT_MAX);
        self.forget_due(id);
        self.waiting.insert(id, (now + wait, wait));
        self.due.insert((now + wait, id));
        if is_part {
            self.failing.remove(&id);
        } else {
            self.failing.insert(id);
        }
    }

    pub(super) fn record_success(&mut self, id: ServiceId) {
        if !self.waiting.is_empty() {
            self.forget_due(id);
            self.waiting.remove(&id);
            self.failing.remove(&id);
        }
    }

    /// Takes the services that have waited long enough. They keep their wait, so that the next failure doubles it.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<ServiceId> {
        let mut due = Vec::new();
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            due.push(id);
        }
        due
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many services wait for something else than their namespace's quota.
    pub(super) fn failing(&self) -> usize {
        self.failing.len()
    }

    fn forget_due(&mut self, id: ServiceId) {
        if let Some((at, _)) = self.waiting.get(&id) {
            self.due.remove(&(*at, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ServiceId = ServiceId(7);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let mut retries = Retries::default();
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..13 {
            retries.record_failure(ID, now, false);
            let due = retries.next_due().unwrap();
            assert!(retries.take_due(due - at(1)).is_empty(), "too early");
            assert_eq!(retries.take_due(due), [ID]);
            waits.push((due - now).as_millis());
            now = due;
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 20480, 30000, 30000]);
    }

    #[test]
    fn success_forgets_failures() {
        let mut retries = Retries::default();
        retries.record_failure(ID, at(0), false);
        retries.record_failure(ID, at(0), false);
        retries.record_success(ID);
        assert_eq!((retries.next_due(), retries.len()), (None, 0));
        retries.record_failure(ID, at(100), false);
        assert_eq!(retries.next_due(), Some(at(120)));
    }

    #[test]
    fn a_service_over_its_quota_waits_and_does_not_fail() {
        let mut retries = Retries::default();
        retries.record_failure(ID, at(0), false);
        assert_eq!((retries.len(), retries.failing()), (1, 1));
        retries.record_failure(ID, at(10), true);
        assert_eq!((retries.len(), retries.failing()), (1, 0));
        retries.record_failure(ID, at(20), false);
        retries.record_success(ID);
        assert_eq!((retries.len(), retries.failing()), (0, 0));
    }

    #[test]
    fn a_second_failure_moves_the_time() {
        let mut retries = Retries::default();
        retries.record_failure(ID, at(0), false);
        retries.record_failure(ID, at(10), false);
        assert_eq!(retries.take_due(at(49)), []);
        assert_eq!(retries.take_due(at(50)), [ID]);
    }
}
