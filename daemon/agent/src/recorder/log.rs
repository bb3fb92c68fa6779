//! Every change in the log: one line for each outcome at a service, however many frontends have that outcome.
//!
//! Invariant: a line tells what a client gets from now on and which object made it so, with the number of the record
//! that has the rest; a change that clients do not notice is told at debug level only.

use std::collections::BTreeMap;

use holdfast_core::change::Change;
use holdfast_core::keys::ServiceKey;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Status, Verdict};
use holdfast_status::record::{Record, Trigger};

use super::from_change::{key, name, places, rows, slot};
use holdfast_host::logging::messages::{self, say};

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

/// How much a new verdict matters to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// An accident was held for as long as it may be, and clients are no longer served.
    Error,
    /// Clients are no longer served, or a hold began or ended.
    Warning,
    /// Clients are served again, or are no longer served because somebody wanted it so.
    Notice,
    Info,
}

/// Whether clients of a frontend get no backend of its service.
const fn is_outage(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Refusing
        | Verdict::Dropping
        | Verdict::Passing
        | Verdict::Conflict
        | Verdict::Unprogrammed => true,
        Verdict::Serving | Verdict::Draining | Verdict::Held | Verdict::Bypassed => false,
    }
}

/// Weighs the change from one verdict to another. A hold is never silent: its beginning and its end are warnings.
fn weigh(old: Verdict, new: Verdict, reason: Option<Reason>) -> Weight {
    let is_meant = reason == Some(Reason::ScaledDown);
    match (is_outage(old), is_outage(new)) {
        (false, true) if old == Verdict::Held && !is_meant => Weight::Error,
        _ if (old == Verdict::Held) != (new == Verdict::Held) => Weight::Warning,
        (false, true) if is_meant => Weight::Notice,
        (false, true) => Weight::Warning,
        (true, false) => Weight::Notice,
        (true, true) | (false, false) => Weight::Info,
    }
}

/// Logs a new verdict.
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
    let weight = weigh(old, new, reason);
    let reason = reason.map(Reason::as_str);
    match (old == Verdict::Held, new == Verdict::Held, weight) {
        (false, true, _) => {
            say!(warn, messages::LIST_HELD, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (true, false, Weight::Error) => {
            say!(error, messages::HOLD_ENDED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (true, false, _) => {
            say!(warn, messages::HOLD_ENDED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _, Weight::Error | Weight::Warning) => {
            say!(warn, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _, Weight::Notice) => {
            say!(notice, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _, Weight::Info) => {
            say!(info, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `journalctl -p warning` shows every outage that nobody meant, and `-p notice` its end too.
    #[test]
    fn the_beginning_of_an_outage_is_a_warning_and_its_end_a_notice() {
        use Verdict::{
            Bypassed, Conflict, Draining, Dropping, Held, Passing, Refusing, Serving, Unprogrammed,
        };

        let outages = [Refusing, Dropping, Passing, Conflict, Unprogrammed];
        for outage in outages {
            for served in [Serving, Draining, Bypassed] {
                assert_eq!(weigh(served, outage, Some(Reason::AllUnready)), Weight::Warning, "{outage:?}");
                assert_eq!(weigh(served, outage, Some(Reason::ScaledDown)), Weight::Notice, "{outage:?}");
                assert_eq!(weigh(outage, served, None), Weight::Notice, "{outage:?}");
            }
            assert_eq!(weigh(Held, outage, Some(Reason::HoldExpired)), Weight::Error, "{outage:?}");
            assert_eq!(weigh(Held, outage, Some(Reason::ScaledDown)), Weight::Warning, "{outage:?}");
            assert_eq!(weigh(outage, Held, Some(Reason::Vanished)), Weight::Warning, "{outage:?}");
            assert!(outages.iter().all(|other| weigh(outage, *other, None) == Weight::Info), "{outage:?}");
        }
        assert_eq!(weigh(Serving, Held, Some(Reason::Vanished)), Weight::Warning);
        assert_eq!(weigh(Held, Serving, None), Weight::Warning);
        assert_eq!(weigh(Serving, Draining, Some(Reason::ScaledDown)), Weight::Info);
    }
}
