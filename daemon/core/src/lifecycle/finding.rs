//! What is wrong with a load balancer.
//!
//! Invariant: a finding that rests on silence is made only where Events were read and said nothing; no balancer is
//! called stuck because no Event called it done. A finding that needs no Event is made without them, and says so.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::events::EventLog;
use super::state::{self, DEGRADING};
use super::{BalancerInput, BalancerPhase, BalancerState, ControllerLiveness, Meaning, limits};
use crate::facts::{BalancerFacts, ServiceFacts};
use crate::words;

words! {
    /// What can be found.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum FindingId {
        /// It is made, and nothing says why it has no address: the status was not written, or the address was taken
        /// back.
        EnsuredNoIngress = "lb.ensured-no-ingress",
        /// It could not be made, again and again.
        Failing = "lb.failing",
        /// There is no node that could take its traffic.
        NoNodes = "lb.no-nodes",
        /// No controller acts on it.
        NoController = "lb.no-controller",
        /// No controller acts on its class.
        ClassUnserved = "lb.class-unserved",
        /// It is being made for too long, without an error.
        StuckEnsuring = "lb.stuck-ensuring",
        /// It works, and not with the newest Service or nodes.
        Degraded = "lb.degraded",
        /// It is being removed for too long.
        DeleteStuck = "lb.delete-stuck",
        /// What it was made of may stay at the provider, and cost money.
        OrphanRisk = "lb.orphan-risk",
        /// Its address changes again and again: two controllers write it.
        Flapping = "lb.flapping",
        /// It has no address for a long time, whatever the reason.
        Pending = "lb.pending",
    }
}

words! {
    /// How bad it is.
    #[derive(PartialOrd, Ord)]
    pub enum Severity {
        /// Worth to know.
        Notice = "notice",
        /// Something does not work as asked for.
        Warning = "warning",
        /// Clients or operators wait for something that will not come by itself.
        Error = "error",
    }
}

words! {
    /// How sure it is.
    pub enum Confidence {
        /// An Event says so, or it stands in the object.
        Certain = "certain",
        /// Nothing else that was looked at explains it.
        Likely = "likely",
        /// Events were not read, and might say more.
        WithoutEvents = "without-events",
    }
}

/// Something that is wrong with a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub id: FindingId,
    pub severity: Severity,
    pub confidence: Confidence,
    /// For how many seconds, where that is known.
    pub age: Option<i64>,
    /// Why: the id of the cause that the Events came with.
    pub cause: Option<Arc<str>>,
    /// How often Events told it; 0: never.
    pub count: u32,
}

impl Finding {
    const fn new(id: FindingId, severity: Severity, age: Option<i64>) -> Self {
        Self { id, severity, confidence: Confidence::Certain, age, cause: None, count: 0 }
    }
}

/// Whether the age is known, and is at least that.
fn is_at_least(age: Option<i64>, at_least: i64) -> bool {
    age.is_some_and(|age| age >= at_least)
}

/// What the findings of one load balancer are made from.
struct FindingInput<'a> {
    case: &'a BalancerInput<'a>,
    known: &'a EventLog<'a>,
    state: BalancerState,
    /// For how many seconds the state is what it is.
    age: Option<i64>,
    facts: &'a ServiceFacts,
    phase: BalancerPhase,
    /// For how many seconds the object shows what it shows.
    shown_age: Option<i64>,
}

/// All that is wrong, the most specific first.
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

    /// The age of the Event that called the balancer done, if nothing was begun or has failed since.
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

    /// A retry that has begun is part of failing, until an Event calls it done.
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
        let told = self.known.latest_open(&[Meaning::NoNodes]).filter(|_| asks)?;
        let cause = told.event.cause.clone();
        let count = told.event.count.max(1);
        Some(Finding { cause, count, ..Finding::new(FindingId::NoNodes, Severity::Error, told.oldest) })
    }

    /// No controller acts on the balancer: Events were read and there was none. A finalizer shows that a controller was
    /// there once: only a Lease that has run out tells that it is gone.
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

    /// This is never found without Events: an error in an Event that was not read is no silence.
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
        let told = self.known.latest_open(&DEGRADING).filter(|_| self.state == BalancerState::Degraded)?;
        let cause = told.event.cause.clone();
        let (count, oldest) = self.known.count_repeats(&DEGRADING, cause.as_deref());
        is_at_least(oldest, limits::DEGRADED_AFTER).then(|| Finding {
            cause,
            count,
            ..Finding::new(FindingId::Degraded, Severity::Warning, oldest)
        })
    }

    /// The time counts from when the Service was asked to go, however often its removal was tried.
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

    /// How sure a finding is that rests on the object alone.
    fn object_confidence(&self) -> Confidence {
        if self.known.was_read() { Confidence::Certain } else { Confidence::WithoutEvents }
    }
}
