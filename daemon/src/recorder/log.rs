//! Every change in the log: one line for each outcome at a service, however many frontends have that outcome.
//!
//! Invariant: a line tells what a client gets from now on and which object made it so, with the number of the record
//! that has the rest; a change that clients do not notice is told at debug level only.

use std::collections::BTreeMap;

use holdfast_core::change::Change;
use holdfast_core::keys::ServiceKey;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Status, Verdict};
use holdfast_judgement::record::{Record, Trigger};

use super::from_change::{key, name, places, rows, slot};
use crate::logging::messages::{self, say};

/// Logs one change, of which this is the record.
pub(super) fn write(change: &Change, record: &Record) {
    let seq = record.seq;
    let cause = record.triggers.last().map(Trigger::sentence).unwrap_or_default();
    if let Some(error) = &change.error {
        say!(warn, messages::SERVICE_NOT_UPDATED, service = %change.service, %error, seq, cause);
    }
    for (outcome, rows) in &by_outcome(change) {
        outcome.say(&change.service, rows, (seq, &cause));
    }
}

/// What clients of a frontend notice. Frontends of which the same is to be said share a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Removed,
    Added(Verdict, Option<Reason>),
    /// The verdict before, the verdict now, and the reason for it.
    Verdict(Verdict, Verdict, Option<Reason>),
    Backends(Verdict),
    Remembered(Verdict),
    Updated(Verdict),
    Same(Verdict),
}

/// The frontends that share a line; only the first ones are named.
#[derive(Default)]
struct Alike {
    named: Vec<String>,
    count: usize,
    /// How many backends the first of these frontends has now; `was`: how many it had before.
    backends: usize,
    was: usize,
}

impl Alike {
    fn add(&mut self, row: &FrontendView, backends: usize, was: usize) {
        if self.count == 0 {
            (self.backends, self.was) = (backends, was);
        }
        if self.named.len() < NAMED_MAX {
            self.named.push(name(row));
        }
        self.count += 1;
    }

    fn spelled(&self) -> String {
        let more = self.count - self.named.len();
        let named = self.named.join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    }
}

/// How many frontends a line names; the record names more of them.
const NAMED_MAX: usize = 3;

fn by_outcome(change: &Change) -> BTreeMap<Outcome, Alike> {
    let before = change.before.as_deref();
    let after = change.after.as_deref();
    let known = places(before);
    let stays = places(after);
    let mut all = BTreeMap::<Outcome, Alike>::new();
    for (view, row) in after.into_iter().flat_map(|view| view.frontends.iter().map(move |row| (view, row))) {
        let old = known.get(&key(row)).and_then(|old| Some((before?, *old)));
        let was = old.map_or(0, |(view, old)| view.backends(old).count());
        all.entry(outcome(old, (view, row))).or_default().add(row, view.backends(row).count(), was);
    }
    for old in rows(before).filter(|old| !stays.contains_key(&key(old))) {
        all.entry(Outcome::Removed).or_default().add(old, 0, 0);
    }
    all
}

fn outcome(
    old: Option<(&ServiceView, &FrontendView)>,
    (after, new): (&ServiceView, &FrontendView),
) -> Outcome {
    let verdict = new.verdict;
    match old {
        None => Outcome::Added(verdict, new.reason),
        Some((_, old)) if (old.verdict, old.reason) != (verdict, new.reason) => {
            Outcome::Verdict(old.verdict, verdict, new.reason)
        }
        Some((before, old)) if !before.backends(old).map(slot).eq(after.backends(new).map(slot)) => {
            Outcome::Backends(verdict)
        }
        Some((_, old)) if old.status == Status::Pending && new.status == Status::Done => {
            Outcome::Remembered(verdict)
        }
        Some((_, old)) if old.status != new.status && new.status == Status::Done => Outcome::Updated(verdict),
        Some(_) => Outcome::Same(verdict),
    }
}

impl Outcome {
    fn say(self, service: &ServiceKey, alike: &Alike, (seq, cause): (Option<u64>, &str)) {
        let frontend = alike.spelled();
        let backends = alike.backends;
        let was = alike.was;
        match self {
            Self::Removed => {
                say!(info, messages::FRONTEND_REMOVED, %service, frontend, seq, cause);
            }
            Self::Added(verdict, reason) => {
                let verdict = verdict.as_str();
                let reason = reason.map(Reason::as_str);
                say!(info, messages::FRONTEND_ADDED, %service, frontend, verdict, reason, backends, seq, cause);
            }
            Self::Verdict(was, verdict, reason) => {
                say_verdict(service, (was, verdict, reason), alike, (seq, cause));
            }
            Self::Backends(verdict) => {
                let verdict = verdict.as_str();
                say!(info, messages::BACKENDS_CHANGED, %service, frontend, verdict, backends, was, seq, cause);
            }
            Self::Remembered(verdict) => {
                let verdict = verdict.as_str();
                say!(info, messages::REMEMBERED_WRITTEN, %service, frontend, verdict, backends, seq, cause);
            }
            Self::Updated(verdict) => {
                let verdict = verdict.as_str();
                say!(info, messages::FRONTEND_UPDATED, %service, frontend, verdict, backends, seq, cause);
            }
            Self::Same(verdict) => {
                let verdict = verdict.as_str();
                tracing::debug!(%service, frontend, verdict, backends, seq, cause, "unchanged for clients");
            }
        }
    }
}

/// Logs a new verdict. A hold is never silent: its beginning and its end are warnings.
fn say_verdict(
    service: &ServiceKey,
    (old, new, reason): (Verdict, Verdict, Option<Reason>),
    alike: &Alike,
    (seq, cause): (Option<u64>, &str),
) {
    let frontend = alike.spelled();
    let backends = alike.backends;
    let verdict = new.as_str();
    let was = old.as_str();
    let reason = reason.map(Reason::as_str);
    match (old == Verdict::Held, new == Verdict::Held) {
        (false, true) => {
            say!(warn, messages::LIST_HELD, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (true, false) => {
            say!(warn, messages::HOLD_ENDED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _) => {
            say!(info, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
    }
}
