//! Logs every change: one line for each outcome at a service, however many frontends have that outcome.
//!
//! Invariant: a line names what clients get from now on and the object that caused it, with the number of the full
//! record. A change that clients do not notice is logged only at debug level.

use std::collections::BTreeMap;

use holdfast_core::change::Change;
use holdfast_core::keys::ServiceKey;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Status, Verdict};
use holdfast_status::record::{Record, Trigger};

use super::change_record::{frontend_name, row_key, rows, rows_by_key, slot};
use holdfast_host::logging::messages::{self, say};

pub(super) fn write(change: &Change, record: &Record) {
    let seq = record.seq;
    let cause = record.triggers.last().map(Trigger::sentence).unwrap_or_default();
    if let Some(error) = &change.error {
        say!(warn, messages::SERVICE_NOT_UPDATED, service = %change.service, %error, seq, cause);
    }
    for (outcome, rows) in &group_by_outcome(change) {
        outcome.log(&change.service, rows, (seq, &cause));
    }
}

/// The change that clients of a frontend notice. Frontends with the same outcome share a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RowOutcome {
    Removed,
    Added(Verdict, Option<Reason>),
    Verdict(Verdict, Verdict, Option<Reason>),
    Backends(Verdict),
    Remembered(Verdict),
    Updated(Verdict),
    Unchanged(Verdict),
}

/// The frontends that share a line; only the first ones are named.
#[derive(Default)]
struct FrontendGroup {
    named: Vec<String>,
    count: usize,
    /// How many backends the first of these frontends has now; `backends_before` is the former number.
    backends: usize,
    backends_before: usize,
}

impl FrontendGroup {
    fn add(&mut self, row: &FrontendView, backends: usize, was: usize) {
        if self.count == 0 {
            (self.backends, self.backends_before) = (backends, was);
        }
        if self.named.len() < NAMED_MAX {
            self.named.push(frontend_name(row));
        }
        self.count += 1;
    }

    fn join_names(&self) -> String {
        let more = self.count - self.named.len();
        let named = self.named.join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    }
}

/// How many frontends a line names; the record names more.
const NAMED_MAX: usize = 3;

fn group_by_outcome(change: &Change) -> BTreeMap<RowOutcome, FrontendGroup> {
    let before = change.before.as_deref();
    let after = change.after.as_deref();
    let known = rows_by_key(before);
    let stays = rows_by_key(after);
    let mut all = BTreeMap::<RowOutcome, FrontendGroup>::new();
    for (view, row) in after.into_iter().flat_map(|view| view.frontends.iter().map(move |row| (view, row))) {
        let old = known.get(&row_key(row)).and_then(|old| Some((before?, *old)));
        let was = old.map_or(0, |(view, old)| view.backends(old).count());
        all.entry(row_outcome(old, (view, row))).or_default().add(row, view.backends(row).count(), was);
    }
    for old in rows(before).filter(|old| !stays.contains_key(&row_key(old))) {
        all.entry(RowOutcome::Removed).or_default().add(old, 0, 0);
    }
    all
}

fn row_outcome(
    old: Option<(&ServiceView, &FrontendView)>,
    (after, new): (&ServiceView, &FrontendView),
) -> RowOutcome {
    let verdict = new.verdict;
    match old {
        None => RowOutcome::Added(verdict, new.reason),
        Some((_, old)) if (old.verdict, old.reason) != (verdict, new.reason) => {
            RowOutcome::Verdict(old.verdict, verdict, new.reason)
        }
        Some((before, old)) if !before.backends(old).map(slot).eq(after.backends(new).map(slot)) => {
            RowOutcome::Backends(verdict)
        }
        Some((_, old)) if old.status == Status::Pending && new.status == Status::Done => {
            RowOutcome::Remembered(verdict)
        }
        Some((_, old)) if old.status != new.status && new.status == Status::Done => {
            RowOutcome::Updated(verdict)
        }
        Some(_) => RowOutcome::Unchanged(verdict),
    }
}

impl RowOutcome {
    fn log(self, service: &ServiceKey, alike: &FrontendGroup, (seq, cause): (Option<u64>, &str)) {
        let frontend = alike.join_names();
        let backends = alike.backends;
        let was = alike.backends_before;
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
                log_verdict(service, (was, verdict, reason), alike, (seq, cause));
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
            Self::Unchanged(verdict) => {
                let verdict = verdict.as_str();
                tracing::debug!(%service, frontend, verdict, backends, seq, cause, "unchanged for clients");
            }
        }
    }
}

/// How much a new verdict matters to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerdictSeverity {
    /// A hold ran out after an accident, and clients are no longer served.
    Error,
    /// Clients are no longer served, or a hold began or ended.
    Warning,
    /// Clients are served again, or are no longer served on purpose.
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

/// Rates the change of a verdict. A hold is never silent: its beginning and its end are warnings.
fn verdict_severity(old: Verdict, new: Verdict, reason: Option<Reason>) -> VerdictSeverity {
    let is_meant = reason == Some(Reason::ScaledDown);
    match (is_outage(old), is_outage(new)) {
        (false, true) if old == Verdict::Held && !is_meant => VerdictSeverity::Error,
        _ if (old == Verdict::Held) != (new == Verdict::Held) => VerdictSeverity::Warning,
        (false, true) if is_meant => VerdictSeverity::Notice,
        (false, true) => VerdictSeverity::Warning,
        (true, false) => VerdictSeverity::Notice,
        (true, true) | (false, false) => VerdictSeverity::Info,
    }
}

fn log_verdict(
    service: &ServiceKey,
    (old, new, reason): (Verdict, Verdict, Option<Reason>),
    alike: &FrontendGroup,
    (seq, cause): (Option<u64>, &str),
) {
    let frontend = alike.join_names();
    let backends = alike.backends;
    let verdict = new.as_str();
    let was = old.as_str();
    let weight = verdict_severity(old, new, reason);
    let reason = reason.map(Reason::as_str);
    match (old == Verdict::Held, new == Verdict::Held, weight) {
        (false, true, _) => {
            say!(warn, messages::LIST_HELD, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (true, false, VerdictSeverity::Error) => {
            say!(error, messages::HOLD_ENDED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (true, false, _) => {
            say!(warn, messages::HOLD_ENDED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _, VerdictSeverity::Error | VerdictSeverity::Warning) => {
            say!(warn, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _, VerdictSeverity::Notice) => {
            say!(notice, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
        (_, _, VerdictSeverity::Info) => {
            say!(info, messages::VERDICT_CHANGED, %service, frontend, verdict, was, reason, backends, seq, cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `journalctl -p warning` shows every unintended outage, and `-p notice` its end too.
    #[test]
    fn the_beginning_of_an_outage_is_a_warning_and_its_end_a_notice() {
        use Verdict::{
            Bypassed, Conflict, Draining, Dropping, Held, Passing, Refusing, Serving, Unprogrammed,
        };

        let outages = [Refusing, Dropping, Passing, Conflict, Unprogrammed];
        for outage in outages {
            for served in [Serving, Draining, Bypassed] {
                assert_eq!(
                    verdict_severity(served, outage, Some(Reason::AllUnready)),
                    VerdictSeverity::Warning,
                    "{outage:?}"
                );
                assert_eq!(
                    verdict_severity(served, outage, Some(Reason::ScaledDown)),
                    VerdictSeverity::Notice,
                    "{outage:?}"
                );
                assert_eq!(verdict_severity(outage, served, None), VerdictSeverity::Notice, "{outage:?}");
            }
            assert_eq!(
                verdict_severity(Held, outage, Some(Reason::HoldExpired)),
                VerdictSeverity::Error,
                "{outage:?}"
            );
            assert_eq!(
                verdict_severity(Held, outage, Some(Reason::ScaledDown)),
                VerdictSeverity::Warning,
                "{outage:?}"
            );
            assert_eq!(
                verdict_severity(outage, Held, Some(Reason::Vanished)),
                VerdictSeverity::Warning,
                "{outage:?}"
            );
            assert!(
                outages.iter().all(|other| verdict_severity(outage, *other, None) == VerdictSeverity::Info),
                "{outage:?}"
            );
        }
        assert_eq!(verdict_severity(Serving, Held, Some(Reason::Vanished)), VerdictSeverity::Warning);
        assert_eq!(verdict_severity(Held, Serving, None), VerdictSeverity::Warning);
        assert_eq!(verdict_severity(Serving, Draining, Some(Reason::ScaledDown)), VerdictSeverity::Info);
    }
}
