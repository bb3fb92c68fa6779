//! Every change in the log, one line per transition.
//!
//! Invariant: a line tells what a client gets from now on and which object made it so, with the number of the record
//! that has the rest; a change that clients do not notice is told at debug level only.

use holdfast_core::change::Change;
use holdfast_core::keys::ServiceKey;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Status, Verdict};

use super::from_change::{key, name, places, rows, slot};
use super::record::{Record, Trigger};
use crate::logging::messages::{self, say};

/// Logs one change, of which this is the record.
pub(super) fn write(change: &Change, record: &Record) {
    let (seq, cause) = (record.seq, record.triggers.last().map(Trigger::sentence).unwrap_or_default());
    if let Some(error) = &change.error {
        say!(warn, messages::SERVICE_NOT_UPDATED, service = %change.service, %error, seq, cause);
    }
    let before = change.before.as_deref();
    let after = change.after.as_deref();
    let known = places(before);
    for (view, row) in after.into_iter().flat_map(|view| view.frontends.iter().map(move |row| (view, row))) {
        let old = known.get(&key(row)).and_then(|old| Some((before?, *old)));
        write_frontend(&change.service, old, (view, row), (seq, &cause));
    }
    let stays = places(after);
    for old in rows(before).filter(|old| !stays.contains_key(&key(old))) {
        let frontend = name(old);
        say!(info, messages::FRONTEND_REMOVED, service = %change.service, frontend, seq, cause);
    }
}

fn write_frontend(
    service: &ServiceKey,
    old: Option<(&ServiceView, &FrontendView)>,
    (after, new): (&ServiceView, &FrontendView),
    (seq, cause): (Option<u64>, &str),
) {
    let (frontend, verdict) = (name(new), new.verdict.as_str());
    let reason = new.reason.map(Reason::as_str);
    let backends = after.backends(new).count();
    match old {
        None => {
            say!(info, messages::FRONTEND_ADDED, %service, frontend, verdict, reason, backends, seq, cause);
        }
        Some((_, old)) if (old.verdict, old.reason) != (new.verdict, new.reason) => {
            write_verdict(service, (after, new), old.verdict, (seq, cause));
        }
        Some((before, old)) if !before.backends(old).map(slot).eq(after.backends(new).map(slot)) => {
            let was = before.backends(old).count();
            say!(info, messages::BACKENDS_CHANGED, %service, frontend, verdict, backends, was, seq, cause);
        }
        Some((_, old)) if old.status == Status::Pending && new.status == Status::Done => {
            say!(info, messages::REMEMBERED_WRITTEN, %service, frontend, verdict, backends, seq, cause);
        }
        Some((_, old)) if old.status != new.status && new.status == Status::Done => {
            say!(info, messages::FRONTEND_UPDATED, %service, frontend, verdict, backends, seq, cause);
        }
        Some(_) => {
            tracing::debug!(%service, frontend, verdict, backends, seq, cause, "unchanged for clients");
        }
    }
}

/// A hold is never silent: neither when it begins, nor when it ends.
fn write_verdict(
    service: &ServiceKey,
    (after, new): (&ServiceView, &FrontendView),
    old: Verdict,
    (seq, cause): (Option<u64>, &str),
) {
    let (frontend, verdict, was) = (name(new), new.verdict.as_str(), old.as_str());
    let reason = new.reason.map(Reason::as_str);
    let backends = after.backends(new).count();
    match (old == Verdict::Held, new.verdict == Verdict::Held) {
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
