//! Faults of a load balancer.
//!
//! Invariant: a finding about missing Events requires that Events were read; a balancer is not stuck just because no
//! Event reports it done. A finding that needs no Event is made without them, and says so.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::events::EventLog;
use super::state::{self, DEGRADING};
use super::{BalancerInput, BalancerPhase, BalancerState, ControllerLiveness, Meaning, limits};
use crate::facts::{BalancerFacts, ServiceFacts};
use crate::words;

words! {
    #[derive(PartialOrd, Ord, Hash)]
    pub enum FindingId {
        /// It was made and has no address for no known reason: the status was not written, or the address was
        /// withdrawn.
        EnsuredNoIngress = "lb.ensured-no-ingress",
        /// It could not be made, again and again.
        Failing = "lb.failing",
        /// No node can take its traffic.
        NoNodes = "lb.no-nodes",
        NoController = "lb.no-controller",
        /// No controller acts on its class.
        ClassUnserved = "lb.class-unserved",
        /// It takes too long to be made, without an error.
        StuckEnsuring = "lb.stuck-ensuring",
        /// It works, but not with the newest Service or nodes.
        Degraded = "lb.degraded",
        DeleteStuck = "lb.delete-stuck",
        /// Resources of it may remain at the provider, and cost money.
        OrphanRisk = "lb.orphan-risk",
        /// Its address changes again and again: two controllers write it.
        Flapping = "lb.flapping",
        /// It has had no address for a long time, whatever the reason.
        Pending = "lb.pending",
    }
}

words! {
    #[derive(PartialOrd, Ord)]
    pub enum Severity {
        /// Good to know.
        Notice = "notice",
        /// Something does not work as requested.
        Warning = "warning",
        /// Clients or operators wait for something that needs intervention.
        Error = "error",
    }
}

words! {
    pub enum Confidence {
        /// An Event or the object says so.
        Certain = "certain",
        /// No other input explains it.
        Likely = "likely",
        /// Events were not read, and might say more.
        WithoutEvents = "without-events",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub id: FindingId,
    pub severity: Severity,
    pub confidence: Confidence,
    /// Age in seconds, if known.
    pub age: Option<i64>,
    /// The id of the cause in the Events.
    pub cause: Option<Arc<str>>,
    /// How often Events reported it; 0: never.
    pub count: u32,
}

impl Finding {
    const fn new(id: FindingId, severity: Severity, age: Option<i64>) -> Self {
        Self { id, severity, confidence: Confidence::Certain, age, cause: None, count: 0 }
    }
}

/// Whether the age is known and at least that long.
fn is_at_least(age: Option<i64>, at_least: i64) -> bool {
    age.is_some_and(|age| age >= at_least)
}

/// The inputs for the findings of one load balancer.
struct FindingInput<'a> {
    case: &'a BalancerInput<'a>,
    known: &'a EventLog<'a>,
    state: BalancerState,
    /// Seconds since the state began.
    age: Option<i64>,
    facts: &'a ServiceFacts,
    phase: BalancerPhase,
    /// Seconds since the object shows its phase.
    shown_age: Option<i64>,
}

/// All findings, the most specific first.
pub(super) fn find_all(
    case: &BalancerInput<'_>,
    known: &EventLog<'_>,
    state: BalancerState,
    age: Option<i64>,
) -> Vec<Finding> {
    let Some(facts) = case.facts else { return Vec::new() };
    let phase = BalancerPhase::from_facts(facts);
    let shown = state::shown_age(case, facts);
    let look = FindingInput { case, known, state, age, facts, phase, shown_age: shown };
    FindingId::ALL.into_iter().filter_map(|id| look.evaluate(id)).collect()
}

impl FindingInput<'_> {
    fn evaluate(&self, id: FindingId) -> Option<Finding> {
        match id {
            FindingId::EnsuredNoIngress => self.find_ensured_no_ingress(),
            FindingId::Failing => self.find_failing(),
            FindingId::NoNodes => self.find_no_nodes(),
            FindingId::NoController => self.find_unserved(false, id),
            FindingId::ClassUnserved => self.find_unserved(true, id),
            FindingId::StuckEnsuring => self.find_stuck_ensuring(),
            FindingId::Degraded => self.find_degraded(),
            FindingId::DeleteStuck => self.find_delete_stuck(),
            FindingId::OrphanRisk => self.find_orphan_risk(),
            FindingId::Flapping => self.find_flapping(),
            FindingId::Pending => self.find_pending(),
        }
    }

    fn is_pending(&self) -> bool {
        self.phase == BalancerPhase::Pending
    }

    fn has_class(&self) -> bool {
        self.facts.balancer.as_deref().is_some_and(|it| it.class.is_some())
    }

    fn has_finalizer(&self) -> bool {
        self.facts.balancer.as_deref().is_some_and(BalancerFacts::has_balancer_finalizer)
    }

    /// The age of the Event that reports the balancer done, unless a later one begins or fails.
    fn done_event_age(&self) -> Option<i64> {
        let done = self.known.latest_event(&[Meaning::Ensured])?;
        let others = [Meaning::Ensuring, Meaning::Creating, Meaning::SyncFailed];
        let is_last = self.known.latest_event(&others).is_none_or(|other| done.is_not_before(Some(&other)));
        done.age.filter(|_| is_last)
    }

    fn find_ensured_no_ingress(&self) -> Option<Finding> {
        let age = self.done_event_age().filter(|_| self.is_pending());
        is_at_least(age, limits::STATUS_WRITTEN_AFTER)
            .then(|| Finding::new(FindingId::EnsuredNoIngress, Severity::Error, age))
    }

    /// A retry that has begun counts as failing until an Event reports it done.
    fn find_failing(&self) -> Option<Finding> {
        const FAILED: [Meaning; 1] = [Meaning::SyncFailed];
        let failed = self.known.latest_open(&FAILED).filter(|_| self.is_pending())?;
        let cause = failed.event.cause.clone();
        let (count, oldest) = self.known.count_repeats(&FAILED, cause.as_deref());
        (count >= limits::FAILURES_MIN || is_at_least(oldest, limits::FAILING_AFTER)).then(|| Finding {
            cause,
            count,
            ..Finding::new(FindingId::Failing, Severity::Error, oldest)
        })
    }

    fn find_no_nodes(&self) -> Option<Finding> {
        let asks = matches!(self.phase, BalancerPhase::Pending | BalancerPhase::Addressed);
        let open = self.known.latest_open(&[Meaning::NoNodes]).filter(|_| asks)?;
        let cause = open.event.cause.clone();
        let count = open.event.count.max(1);
        Some(Finding { cause, count, ..Finding::new(FindingId::NoNodes, Severity::Error, open.oldest) })
    }

    /// No controller acts on the balancer: Events were read and there was none. A finalizer shows that a controller
    /// existed: then only an expired Lease proves that it is gone.
    fn find_unserved(&self, of_a_class: bool, id: FindingId) -> Option<Finding> {
        let is_dead = self.case.controller == ControllerLiveness::Silent && !of_a_class;
        let is_nobodys = !self.has_finalizer() || is_dead;
        let is_so = self.is_pending()
            && self.known.has_none()
            && self.has_class() == of_a_class
            && is_nobodys
            && is_at_least(self.shown_age, limits::UNANSWERED_AFTER);
        let confidence = if is_dead { Confidence::Certain } else { Confidence::Likely };
        is_so.then(|| Finding { confidence, ..Finding::new(id, Severity::Error, self.shown_age) })
    }

    /// Never found without Events: an unread Event may report an error.
    fn find_stuck_ensuring(&self) -> Option<Finding> {
        let is_at_work = matches!(self.state, BalancerState::Ensuring | BalancerState::Creating);
        let is_explained = self.done_event_age().is_some()
            || self.known.latest_open(&[Meaning::SyncFailed, Meaning::NoNodes]).is_some()
            || self.find_unserved(false, FindingId::NoController).is_some();
        if !is_at_work
            || !self.known.was_read()
            || is_explained
            || !is_at_least(self.age, limits::STUCK_AFTER)
        {
            return None;
        }
        let is_long = is_at_least(self.age, limits::STUCK_ERROR_AFTER);
        let severity = if is_long { Severity::Error } else { Severity::Warning };
        let confidence = Confidence::Likely;
        Some(Finding { confidence, ..Finding::new(FindingId::StuckEnsuring, severity, self.age) })
    }

    fn find_degraded(&self) -> Option<Finding> {
        let open = self.known.latest_open(&DEGRADING).filter(|_| self.state == BalancerState::Degraded)?;
        let cause = open.event.cause.clone();
        let (count, oldest) = self.known.count_repeats(&DEGRADING, cause.as_deref());
        is_at_least(oldest, limits::DEGRADED_AFTER).then(|| Finding {
            cause,
            count,
            ..Finding::new(FindingId::Degraded, Severity::Warning, oldest)
        })
    }

    /// The time counts from the deletion request, however often the removal was tried.
    fn find_delete_stuck(&self) -> Option<Finding> {
        let is_so =
            self.phase == BalancerPhase::Leaving && is_at_least(self.shown_age, limits::DELETE_STUCK_AFTER);
        let newest = self.known.latest_open(&[Meaning::DeleteFailed]);
        let cause = newest.and_then(|it| it.event.cause.clone());
        let count = newest.map_or(0, |it| it.event.count);
        let confidence = self.object_confidence();
        let found = Finding::new(FindingId::DeleteStuck, Severity::Warning, self.shown_age);
        is_so.then_some(Finding { confidence, cause, count, ..found })
    }

    fn find_orphan_risk(&self) -> Option<Finding> {
        let failed = self.known.latest_open(&[Meaning::DeleteFailed]);
        let failed = failed.filter(|it| self.state == BalancerState::DeleteFailing && it.event.strands)?;
        let cause = failed.event.cause.clone();
        let count = failed.event.count.max(1);
        let confidence = Confidence::Likely;
        let found = Finding::new(FindingId::OrphanRisk, Severity::Notice, failed.oldest);
        Some(Finding { confidence, cause, count, ..found })
    }

    fn find_flapping(&self) -> Option<Finding> {
        let is_so = self.case.history.is_some_and(|seen| seen.is_flapping(self.case.now.uptime()));
        is_so.then(|| Finding::new(FindingId::Flapping, Severity::Warning, None))
    }

    fn find_pending(&self) -> Option<Finding> {
        let is_so = self.is_pending() && is_at_least(self.shown_age, limits::PENDING_AFTER);
        let confidence = self.object_confidence();
        is_so.then(|| Finding {
            confidence,
            ..Finding::new(FindingId::Pending, Severity::Warning, self.shown_age)
        })
    }

    /// The confidence of a finding from the object alone.
    fn object_confidence(&self) -> Confidence {
        if self.known.was_read() { Confidence::Certain } else { Confidence::WithoutEvents }
    }
}
