//! Logs every change: one line for each outcome at a service, however many frontends have that outcome.
//!
//! Invariant: a line names what clients get from now on and the object that caused it, with the number of the full
//! record. The beginning of an outage is a warning or an error, and its end a notice. A change that clients do not
//! notice is logged only at debug level.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::change::Change;
use holdfast_core::health::Health;
use holdfast_core::keys::ServiceKey;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Status, Verdict};
use holdfast_status::frontend_text::shorten_node_port;
use holdfast_status::record::{Record, Trigger};

use super::change_record::{frontend_name, row_key, rows, rows_by_key, slot};
use holdfast_host::logging::messages::{self, say};

/// Logs a message at the level of a severity.
macro_rules! say_at {
    ($severity:expr, $message:expr, $($field:tt)+) => {
        match $severity {
            Severity::Error => say!(error, $message, $($field)+),
            Severity::Warning => say!(warn, $message, $($field)+),
            Severity::Notice => say!(notice, $message, $($field)+),
            Severity::Info => say!(info, $message, $($field)+),
        }
    };
}

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
    Added(Verdict, Option<Reason>, Severity),
    Verdict(Verdict, Verdict, Option<Reason>, Severity),
    Backends(Verdict),
    Remembered(Verdict),
    Updated(Verdict),
    Unchanged(Verdict),
}

/// The frontends that share a line; only the first ones are named.
#[derive(Default)]
struct FrontendGroup {
    named: Vec<String>,
    /// The services that have the address of one that is named.
    owners: BTreeSet<String>,
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
            self.named.push(shorten_node_port(&frontend_name(row)).into_owned());
            self.owners.extend(row.owner.as_ref().map(ToString::to_string));
        }
        self.count += 1;
    }

    fn join_names(&self) -> String {
        let more = self.count - self.named.len();
        let named = self.named.join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    }

    fn join_owners(&self) -> Option<String> {
        let owners: Vec<&str> = self.owners.iter().map(String::as_str).collect();
        (!owners.is_empty()).then(|| owners.join(", "))
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
        None => RowOutcome::Added(verdict, new.reason, added_severity(new, after.frontend_health(new))),
        Some((_, old)) if (old.verdict, old.reason) != (verdict, new.reason) => {
            let severity = verdict_severity(old.verdict, new, after.frontend_health(new));
            RowOutcome::Verdict(old.verdict, verdict, new.reason, severity)
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
            Self::Added(verdict, reason, severity) => {
                let verdict = verdict.as_str();
                let reason = reason.map(Reason::as_str);
                let owner = alike.join_owners();
                say_at!(
                    severity, messages::FRONTEND_ADDED,
                    %service, frontend, verdict, reason, owner, backends, seq, cause
                );
            }
            Self::Verdict(was, verdict, reason, severity) => {
                log_verdict(service, (was, verdict, reason, severity), alike, (seq, cause));
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
                say!(notice, messages::FRONTEND_UPDATED, %service, frontend, verdict, backends, seq, cause);
            }
            Self::Unchanged(verdict) => {
                let verdict = verdict.as_str();
                tracing::debug!(%service, frontend, verdict, backends, seq, cause, "unchanged for clients");
            }
        }
    }
}

/// How much a new verdict matters to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    /// A hold ran out after an accident, and clients are no longer served.
    Error,
    /// Clients are no longer served, another service has an address that they dial, or a hold began.
    Warning,
    /// An outage or a hold is over, or clients are no longer served on purpose.
    Notice,
    Info,
}

/// Whether clients of a frontend do not get the service that they dial, because of its address or protocol. This is a
/// fault of objects, even if it was never served.
const fn is_claimed_in_vain(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Conflict | Verdict::Unprogrammed)
}

/// Rates a new frontend. One that has no backend yet is no news: its clients were never served.
fn added_severity(new: &FrontendView, health: Health) -> Severity {
    let is_outage = health == Health::Outage && is_claimed_in_vain(new.verdict);
    if is_outage { Severity::Warning } else { Severity::Info }
}

/// Rates the change of a verdict.
fn verdict_severity(old: Verdict, new: &FrontendView, health: Health) -> Severity {
    let is_meant = new.reason == Some(Reason::ScaledDown)
        || (health != Health::Outage && is_claimed_in_vain(new.verdict));
    match (old.serves_clients(), new.verdict.serves_clients()) {
        (_, true) if new.verdict == Verdict::Held && old != Verdict::Held => Severity::Warning,
        (true, true) if old == Verdict::Held && new.verdict != Verdict::Held => Severity::Notice,
        (true, true) => Severity::Info,
        (false, true) => Severity::Notice,
        (true, false) if is_meant => Severity::Notice,
        (true, false) if old == Verdict::Held => Severity::Error,
        (true, false) => Severity::Warning,
        (false, false) => match (is_claimed_in_vain(old), is_claimed_in_vain(new.verdict)) {
            (false, true) if health == Health::Outage => Severity::Warning,
            (true, false) => Severity::Notice,
            _ => Severity::Info,
        },
    }
}

fn log_verdict(
    service: &ServiceKey,
    (old, new, reason, severity): (Verdict, Verdict, Option<Reason>, Severity),
    alike: &FrontendGroup,
    (seq, cause): (Option<u64>, &str),
) {
    let (frontend, owner, backends) = (alike.join_names(), alike.join_owners(), alike.backends);
    let (was, verdict, reason) = (old.as_str(), new.as_str(), reason.map(Reason::as_str));
    match (old == Verdict::Held, new == Verdict::Held) {
        (false, true) => say_at!(
            severity, messages::LIST_HELD,
            %service, frontend, verdict, was, reason, backends, seq, cause
        ),
        (true, false) => say_at!(
            severity, messages::HOLD_ENDED,
            %service, frontend, verdict, was, reason, owner, backends, seq, cause
        ),
        (true, true) | (false, false) => say_at!(
            severity, messages::VERDICT_CHANGED,
            %service, frontend, verdict, was, reason, owner, backends, seq, cause
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use holdfast_core::keys::Protocol;
    use holdfast_core::list::Scope;
    use holdfast_core::op::FrontendType;

    use super::*;

    fn frontend(verdict: Verdict, reason: Option<Reason>) -> FrontendView {
        FrontendView {
            address: [10, 96, 0, 10].into(),
            port: NonZeroU16::new(80).unwrap(),
            protocol: Protocol::TCP,
            kind: FrontendType::ClusterIp,
            port_name: "".into(),
            position: None,
            scope: Scope::Cluster,
            external_local: false,
            verdict,
            reason,
            status: Status::Done,
            owner: None,
            applied: None,
            since: holdfast_core::facts::Timestamp::default(),
            verdict_since: holdfast_core::facts::Timestamp::default(),
        }
    }

    #[test]
    fn a_line_names_a_node_port_as_the_tables_do() {
        let node_port = FrontendView {
            address: std::net::Ipv4Addr::UNSPECIFIED.into(),
            port: NonZeroU16::new(30_080).unwrap(),
            kind: FrontendType::NodePort,
            ..frontend(Verdict::Serving, None)
        };
        let mut group = FrontendGroup::default();
        group.add(&frontend(Verdict::Serving, None), 1, 0);
        group.add(&node_port, 1, 0);
        assert_eq!(group.join_names(), "10.96.0.10:80/TCP, *:30080/TCP");
    }

    #[track_caller]
    fn check(old: Verdict, new: Verdict, reason: Option<Reason>, expected: Severity) {
        let health = Health::from_verdict(new, reason);
        let found = verdict_severity(old, &frontend(new, reason), health);
        assert_eq!(found, expected, "{old} to {new}, {reason:?}");
    }

    /// `journalctl -p warning` shows the beginning of every unintended outage, and `-p notice` its end too.
    #[test]
    fn the_beginning_of_an_outage_is_a_warning_and_its_end_a_notice() {
        use Verdict::{
            Bypassed, Conflict, Draining, Dropping, Held, Passing, Refusing, Serving, Unprogrammed,
        };

        let (unready, scaled) = (Some(Reason::AllUnready), Some(Reason::ScaledDown));
        for outage in [Refusing, Dropping, Passing, Conflict, Unprogrammed] {
            for served in [Serving, Draining, Bypassed] {
                check(served, outage, unready, Severity::Warning);
                check(served, outage, scaled, Severity::Notice);
                check(outage, served, None, Severity::Notice);
            }
            check(Held, outage, Some(Reason::HoldExpired), Severity::Error);
            check(Held, outage, scaled, Severity::Notice);
            check(outage, Held, Some(Reason::Vanished), Severity::Warning);
        }
        check(Serving, Held, Some(Reason::Vanished), Severity::Warning);
        check(Held, Held, Some(Reason::MassLoss), Severity::Info);
        check(Held, Serving, None, Severity::Notice);
        check(Serving, Draining, scaled, Severity::Info);
        check(Serving, Dropping, Some(Reason::LocalPolicy), Severity::Warning);
    }

    #[test]
    fn an_address_that_another_service_has_is_a_warning_though_nobody_was_served() {
        let claimed = Some(Reason::Claimed);
        check(Verdict::Refusing, Verdict::Conflict, claimed, Severity::Warning);
        check(Verdict::Conflict, Verdict::Refusing, Some(Reason::NoEndpoints), Severity::Notice);
        check(Verdict::Refusing, Verdict::Refusing, Some(Reason::AllUnready), Severity::Info);
        for (verdict, reason, expected) in [
            (Verdict::Conflict, claimed, Severity::Warning),
            (Verdict::Unprogrammed, Some(Reason::Address), Severity::Warning),
            (Verdict::Unprogrammed, None, Severity::Info),
            (Verdict::Refusing, Some(Reason::NoEndpoints), Severity::Info),
            (Verdict::Refusing, Some(Reason::AllUnready), Severity::Info),
            (Verdict::Serving, None, Severity::Info),
        ] {
            let health = Health::from_verdict(verdict, reason);
            assert_eq!(added_severity(&frontend(verdict, reason), health), expected, "{verdict} {reason:?}");
        }
        let derived = frontend(Verdict::Conflict, claimed);
        assert_eq!(added_severity(&derived, Health::Intended), Severity::Info, "a derived Service has it");
    }
}
