//! Schedules the checks.
//!
//! Bounded: [`ConcurrencyLimits`] allow a few prompt checks and many slow ones, because a check that waits for its
//! backend costs only a socket. Fair: the check that has been due longest starts first. A check that runs longer than
//! [`PROMPT_MAX`] moves to a free slow slot while it runs, and starts in a slow slot next time. So hanging backends,
//! however many, delay only one another.
//!
//! Invariant: a check is waiting once or running once, never both. A removed check that still runs keeps its slot until
//! it has finished, because its socket is still open. Time is an argument: the `Duration` since a fixed start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many checks may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConcurrencyLimits {
    /// Slots of checks that may still be prompt.
    prompt: usize,
    /// Slots of checks that are slow now or were the last time.
    slow: usize,
}

impl ConcurrencyLimits {
    /// The most: 10,000 backends, checked every 5 s, that hang for a second each keep 2,000 checks running. At most
    /// `ANSWER_BYTES_MAX` of each is stored: 64 MiB in all, even if every backend sends so much. Prompt slots allow
    /// 2,000 checks a second even if each turns out slow.
    pub(super) const MAX: Self = Self { prompt: 512, slow: 3_584 };

    /// Divides so many sockets into slots, an eighth of them prompt.
    pub(super) fn for_sockets(sockets: usize) -> Self {
        let most = Self::MAX.total();
        let all = sockets.clamp(CONCURRENT_MIN, most);
        let prompt = all / (most / Self::MAX.prompt);
        Self { prompt, slow: all.saturating_sub(prompt) }
    }

    pub(super) const fn total(self) -> usize {
        self.prompt.saturating_add(self.slow)
    }
}

/// This many checks may always run together: an eighth of the usual 1,024 file descriptors.
const CONCURRENT_MIN: usize = 128;

/// Longer than any reply within a data centre; shorter than a useful timeout.
pub(super) const PROMPT_MAX: Duration = Duration::from_millis(250);

/// The most jitter of an interval, in thousandths.
pub(super) const JITTER_PERMILLE_MAX: u32 = 100;

/// The id of one check of one backend; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckId(pub(super) u64);

/// Jitters an interval by ±10 %, the same for the same hash.
pub(super) fn jitter_interval(interval: Duration, hash: u64) -> Duration {
    let spread = u64::from(2 * JITTER_PERMILLE_MAX + 1);
    let stretch = u32::try_from(hash % spread).unwrap_or(JITTER_PERMILLE_MAX);
    interval.saturating_mul(1000 - JITTER_PERMILLE_MAX + stretch) / 1000
}

/// A part of a time, the same for the same hash; hashes spread evenly over it.
pub(super) fn hash_part(whole: Duration, hash: u64) -> Duration {
    let permille = u32::try_from(hash % 1_000).unwrap_or_default();
    whole.saturating_mul(permille) / 1_000
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Prompt,
    Slow,
}

#[derive(Debug)]
struct RunningCheck {
    lane: Lane,
    since: Duration,
}

#[derive(Debug)]
struct Entry {
    lane: Lane,
    // `None` while it runs.
    due: Option<Duration>,
}

/// All checks, waiting or running.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: ConcurrencyLimits,
    entries: BTreeMap<CheckId, Entry>,
    prompt: BTreeSet<(Duration, CheckId)>,
    slow: BTreeSet<(Duration, CheckId)>,
    running: BTreeMap<CheckId, RunningCheck>,
    // Running checks in prompt slots, by start.
    running_prompt: BTreeSet<(Duration, CheckId)>,
}

impl Schedule {
    pub(super) const fn new(limits: ConcurrencyLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            prompt: BTreeSet::new(),
            slow: BTreeSet::new(),
            running: BTreeMap::new(),
            running_prompt: BTreeSet::new(),
        }
    }

    /// Adds a check, or reschedules a waiting one. A running check is left alone.
    pub(super) fn set_due(&mut self, id: CheckId, due: Duration) {
        let entry = self.entries.entry(id).or_insert(Entry { lane: Lane::Prompt, due: None });
        if self.running.contains_key(&id) {
            return;
        }
        let lane = entry.lane;
        let before = entry.due.replace(due);
        let waiting = self.lane_queue(lane);
        if let Some(before) = before {
            waiting.remove(&(before, id));
        }
        waiting.insert((due, id));
    }

    /// When a waiting check is due; `None`: it runs, or does not exist.
    pub(super) fn due(&self, id: CheckId) -> Option<Duration> {
        self.entries.get(&id)?.due
    }

    pub(super) fn remove(&mut self, id: CheckId) {
        if let Some(Entry { lane, due: Some(due) }) = self.entries.remove(&id) {
            self.lane_queue(lane).remove(&(due, id));
        }
    }

    /// Starts the check that has been due longest and has a slot; the caller runs it.
    pub(super) fn start_due(&mut self, now: Duration) -> Option<CheckId> {
        self.move_overdue(now);
        let (due, id) = self.next_waiting().filter(|(due, _)| *due <= now)?;
        let entry = self.entries.get_mut(&id)?;
        entry.due = None;
        let lane = entry.lane;
        self.lane_queue(lane).remove(&(due, id));
        self.running.insert(id, RunningCheck { lane, since: now });
        if lane == Lane::Prompt {
            self.running_prompt.insert((now, id));
        }
        Some(id)
    }

    /// Moves overdue checks to slow slots, so that they do not delay prompt ones.
    fn move_overdue(&mut self, now: Duration) {
        while self.has_slow_capacity()
            && let Some((since, id)) = self.running_prompt.first().copied()
            && now.saturating_sub(since) >= PROMPT_MAX
        {
            self.running_prompt.remove(&(since, id));
            if let Some(run) = self.running.get_mut(&id) {
                run.lane = Lane::Slow;
            }
        }
    }

    /// Frees a check's slot. The check is next due `wait` after its start, but not before now.
    pub(super) fn finish_check(&mut self, id: CheckId, now: Duration, wait: Duration) {
        let Some(run) = self.running.remove(&id) else {
            return;
        };
        if run.lane == Lane::Prompt {
            self.running_prompt.remove(&(run.since, id));
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            let prompt = now.saturating_sub(run.since) <= PROMPT_MAX;
            entry.lane = if prompt { Lane::Prompt } else { Lane::Slow };
            self.set_due(id, run.since.saturating_add(wait).max(now));
        }
    }

    /// When the next check can start; `None`: none waits, or none can start before another has finished.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let next = self.next_waiting().map(|(due, _)| due);
        next.into_iter().chain(self.next_freed()).min()
    }

    fn next_waiting(&self) -> Option<(Duration, CheckId)> {
        let prompt = self.prompt.first().filter(|_| self.has_prompt_capacity());
        let slow = self.slow.first().filter(|_| self.has_slow_capacity());
        prompt.into_iter().chain(slow).min().copied()
    }

    /// When a waiting prompt check gets the slot of an overdue one.
    fn next_freed(&self) -> Option<Duration> {
        let waits = !self.has_prompt_capacity() && self.has_slow_capacity();
        let (due, _) = self.prompt.first().filter(|_| waits)?;
        let (since, _) = self.running_prompt.first()?;
        Some(since.saturating_add(PROMPT_MAX).max(*due))
    }

    fn has_prompt_capacity(&self) -> bool {
        self.running_prompt.len() < self.limits.prompt
    }

    fn has_slow_capacity(&self) -> bool {
        self.running.len().saturating_sub(self.running_prompt.len()) < self.limits.slow
    }

    fn lane_queue(&mut self, lane: Lane) -> &mut BTreeSet<(Duration, CheckId)> {
        match lane {
            Lane::Prompt => &mut self.prompt,
            Lane::Slow => &mut self.slow,
        }
    }
}

#[cfg(test)]
mod tests;
