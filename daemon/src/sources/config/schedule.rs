//! Which check runs next.
//!
//! Bounded: at most [`AT_ONCE_MAX`] checks run. Fair: the one that has been due for longest starts first. A check that
//! held its place for longer than [`PROMPT_MAX`] waits in the slow lane, which has at most [`SLOW_AT_ONCE_MAX`] places.
//! So backends that hang, however many, delay one another and no others.
//!
//! Invariant: a check is waiting once or running once, never both. A removed check that still runs keeps its place
//! until it has finished, because its socket is still there. Time is an argument: the `Duration` since a fixed start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Sockets that checks may hold together: enough for 25,000 prompt checks a second at 5 ms, an eighth of the usual
/// 1,024 file descriptors.
pub(super) const AT_ONCE_MAX: usize = 128;

/// Half of the places stay for backends that answer promptly.
pub(super) const SLOW_AT_ONCE_MAX: usize = AT_ONCE_MAX / 2;

/// Longer than any answer within a data centre; shorter than a useful timeout.
pub(super) const PROMPT_MAX: Duration = Duration::from_millis(250);

/// How far an interval is stretched or shortened, in thousandths.
pub(super) const JITTER_PERMILLE_MAX: u32 = 100;

/// The number of one check of one backend; no other check gets it, not even once this one is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckId(pub(super) u64);

/// The interval of one backend: always the same for the same hash, within ±10 %.
pub(super) fn jittered(interval: Duration, hash: u64) -> Duration {
    let spread = u64::from(2 * JITTER_PERMILLE_MAX + 1);
    let stretch = u32::try_from(hash % spread).unwrap_or(JITTER_PERMILLE_MAX);
    interval.saturating_mul(1000 - JITTER_PERMILLE_MAX + stretch) / 1000
}

/// A part of a time: always the same for the same hash, and as many hashes fall into one moment of it as into another.
pub(super) fn part(whole: Duration, hash: u64) -> Duration {
    let permille = u32::try_from(hash % 1_000).unwrap_or_default();
    whole.saturating_mul(permille) / 1_000
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Prompt,
    Slow,
}

#[derive(Debug)]
struct Run {
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
#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: BTreeMap<CheckId, Entry>,
    prompt: BTreeSet<(Duration, CheckId)>,
    slow: BTreeSet<(Duration, CheckId)>,
    running: BTreeMap<CheckId, Run>,
    running_slow: usize,
}

impl Schedule {
    /// A new check, or a known one that shall run earlier or later than planned. One that runs now is left alone.
    pub(super) fn set_due(&mut self, id: CheckId, due: Duration) {
        let entry = self.entries.entry(id).or_insert(Entry { lane: Lane::Prompt, due: None });
        if self.running.contains_key(&id) {
            return;
        }
        let lane = entry.lane;
        let before = entry.due.replace(due);
        let waiting = self.waiting(lane);
        if let Some(before) = before {
            waiting.remove(&(before, id));
        }
        waiting.insert((due, id));
    }

    /// Forgets a check.
    pub(super) fn remove(&mut self, id: CheckId) {
        if let Some(Entry { lane, due: Some(due) }) = self.entries.remove(&id) {
            self.waiting(lane).remove(&(due, id));
        }
    }

    /// Starts the check that has been due for longest and has a place; the caller runs it.
    pub(super) fn start_due(&mut self, now: Duration) -> Option<CheckId> {
        let (due, id) = self.next().filter(|(due, _)| *due <= now)?;
        let entry = self.entries.get_mut(&id)?;
        entry.due = None;
        let lane = entry.lane;
        self.waiting(lane).remove(&(due, id));
        self.running_slow += usize::from(lane == Lane::Slow);
        self.running.insert(id, Run { lane, since: now });
        Some(id)
    }

    /// Frees the place of a check. It is next due `wait` after its start, at the earliest now.
    pub(super) fn finished(&mut self, id: CheckId, now: Duration, wait: Duration) {
        let Some(run) = self.running.remove(&id) else {
            return;
        };
        self.running_slow -= usize::from(run.lane == Lane::Slow);
        if let Some(entry) = self.entries.get_mut(&id) {
            let prompt = now.saturating_sub(run.since) <= PROMPT_MAX;
            entry.lane = if prompt { Lane::Prompt } else { Lane::Slow };
            self.set_due(id, run.since.saturating_add(wait).max(now));
        }
    }

    /// When the next check is due; `None`: none waits, or none can start before another one has finished.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.next().map(|(due, _)| due)
    }

    fn next(&self) -> Option<(Duration, CheckId)> {
        if self.running.len() >= AT_ONCE_MAX {
            return None;
        }
        let slow = if self.running_slow < SLOW_AT_ONCE_MAX { self.slow.first() } else { None };
        self.prompt.first().into_iter().chain(slow).min().copied()
    }

    fn waiting(&mut self, lane: Lane) -> &mut BTreeSet<(Duration, CheckId)> {
        match lane {
            Lane::Prompt => &mut self.prompt,
            Lane::Slow => &mut self.slow,
        }
    }
}

#[cfg(test)]
mod tests;
