//! A list that is held: its backends, what probes found of them, until when it is held, and what ends it before.
//!
//! Invariant: a hold begins with a list that clients had a moment ago, and goes on only as long as the judgement says
//! so and a backend is left. Probing itself is the shell's.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::judge::{Bound, EmptyList, HoldContext, Judgement, Policy, SourceLiveness, judge};
use crate::facts::{Endpoint, SliceFacts, Target};
use crate::keys::{PortKey, ServiceKey, Transport};
use crate::list::{LastList, Row, Rows, Scope};
use crate::resolve::PortPolicy;
use crate::snapshot::Reason;
use crate::time::Uptime;
use crate::words;

/// A backend is dropped after so many probes in a row that it did not accept.
pub const FAILURES_MAX: u8 = 3;

/// Seconds for which a list is held while none of its backends takes a probe, from its first probe on, or from its
/// beginning if none can be asked. Longer than a restart of an apiserver, and shorter than the time within which
/// clients of a rejected service expect to be refused.
pub const UNANSWERED_LIMIT: i64 = 30;

/// Seconds for which a list is held that a label on its slices hides from proxies. The label says so in words, so less
/// speaks for an accident than where endpoints are gone. A minute is enough to take a wrong label back, and half of the
/// time that Kubernetes' own test of that label waits until clients are refused.
pub const HIDDEN_LIMIT: i64 = 60;

/// A list whose bound was reached is looked at again so many seconds later, while its source is asked whether the
/// endpoints are back. An apiserver that is well answers within one.
pub const QUERY_SECONDS: i64 = 2;

words! {
    /// How a backend met a probe.
    pub enum ProbeAnswer {
        /// It accepted the connection.
        Accepted = "accepted",
        /// Its host says that nothing listens there, or a router says that the host is not there.
        Refused = "refused",
        /// Nothing came back, which a filter between the node and the backend can do as well.
        Silent = "silent",
    }
}

/// One probe of a held backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    pub service: ServiceKey,
    pub port: PortKey,
    pub backend: SocketAddr,
    /// How the backend met it.
    pub answer: ProbeAnswer,
}

words! {
    /// Whether a backend was probed.
    pub enum ProbeState {
        Due = "due",
        /// At least once.
        Done = "done",
        /// It was not, and will not be: a probe of it would prove nothing.
        Never = "never",
    }
}

impl ProbeState {
    /// What is said of a backend before its first probe.
    fn initial(row: &Row, transport: Transport) -> Self {
        if is_probeable(row, transport) { Self::Due } else { Self::Never }
    }
}

/// A backend of a held list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HeldBackend {
    /// As it was last seen in the list.
    pub row: Row,
    /// Whether it was probed.
    pub asked: ProbeState,
    /// It accepted a probe during this hold.
    pub answered: bool,
    /// How many probes in a row it did not accept, where those count.
    pub failures: u8,
    /// Why it is no longer in the list.
    pub lost: Option<Reason>,
    /// A pod can have its address, as far as the node knows, or the administrator wrote it. Decided anew after a
    /// restart, and until then the backend is not probed.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub is_open: bool,
    /// Another object lists its address for another target, so it is asked out of turn, once in a hold, and the
    /// apiserver is asked whose the address is.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub is_claimed: bool,
}

impl HeldBackend {
    /// A backend of which nothing was found yet, and that may not be probed yet.
    pub const fn new(row: Row, asked: ProbeState) -> Self {
        Self { row, asked, answered: false, failures: 0, lost: None, is_open: false, is_claimed: false }
    }
}

/// Whether a probe of this backend can prove anything. A connection does so for TCP alone; and a backend that was only
/// draining may be gone by right.
fn is_probeable(row: &Row, transport: Transport) -> bool {
    transport == Transport::Tcp && row.conditions().ready
}

/// The rows that a hold begins with. Where all backends in the list were seen terminating, the ones that rested beside
/// it are missed.
fn initial_rows(last: &Rows, slices: &[Arc<SliceFacts>]) -> Vec<Row> {
    let mut rows: Vec<Row> = list_members(last, slices).collect();
    let has_ended = |row: &Row| row.was_seen_terminating();
    let is_left_to_others = last.iter().filter(Row::is_chosen).all(|row| has_ended(&row));
    if is_left_to_others && !rows.iter().all(has_ended) {
        rows.retain(|row| !has_ended(row));
    }
    rows
}

/// The rows that were in a list, and those that were out of one for their weight alone: the list has them when no other
/// one is left.
fn list_members<'a>(last: &'a Rows, slices: &'a [Arc<SliceFacts>]) -> impl Iterator<Item = Row> + 'a {
    let node = |row: &Row| slices.get(usize::from(row.slice))?.endpoints.get(usize::from(row.endpoint))?.node;
    let here = last.list(Scope::Local).next().and_then(|row| node(&row));
    last.iter().filter_map(move |mut row| {
        let is_here = here.is_some() && node(&row) == here;
        for (scope, may_be_in) in [(Scope::Cluster, true), (Scope::Local, is_here)] {
            if may_be_in && last.is_weighted_out(&row, scope) {
                row.choose(scope);
            }
        }
        row.is_chosen().then_some(row)
    })
}

/// A list that is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub reason: Reason,
    pub begun: Uptime,
    /// When one of its backends was probed first.
    pub first_probe: Option<Uptime>,
    /// From when the bound counts anew, where it was reached while the source could not tell of endpoints.
    pub bound_restarted: Option<Uptime>,
    /// When the bound was reached last and the source had not said since then whether the endpoints are back.
    pub bound_reached: Option<Uptime>,
    /// For how long.
    pub bound: Bound,
    /// The slices that the backends were last seen in; their rows point into these.
    pub slices: Arc<[Arc<SliceFacts>]>,
    /// The backends that the hold began with, in their order, with what probes found.
    pub backends: Vec<HeldBackend>,
}

impl Hold {
    /// Holds a last list, and those that rest beside it.
    fn new(
        last: &Rows,
        slices: Arc<[Arc<SliceFacts>]>,
        (now, transport): (Uptime, Transport),
        (reason, bound): (Reason, Bound),
    ) -> Self {
        let backend = |row: Row| HeldBackend::new(row.as_held(), ProbeState::initial(&row, transport));
        let backends = initial_rows(last, &slices).into_iter().map(backend).collect();
        Self {
            reason,
            begun: now,
            first_probe: None,
            bound_restarted: None,
            bound_reached: None,
            bound,
            slices,
            backends,
        }
    }

    /// The backends that are still in the list.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.backends.iter().filter(|it| it.lost.is_none()).map(|it| &it.row)
    }

    /// Whether a backend is still to be probed for the first time.
    pub fn awaits_first_probe(&self) -> bool {
        self.backends.iter().any(|it| it.asked == ProbeState::Due && it.lost.is_none())
    }

    /// The backends to probe: none of a list that is never let go, because no answer would change anything.
    pub fn probe_targets(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        self.probeable_backends(transport).map(|it| it.row.backend())
    }

    /// The backends to probe out of turn: none in a mass loss, which ends by no claim.
    pub fn urgent_probe_targets(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        let is_hurried = self.bound != Bound::MassLoss;
        self.probeable_backends(transport)
            .filter(move |it| is_hurried && it.is_claimed)
            .map(|it| it.row.backend())
    }

    fn probeable_backends(&self, transport: Transport) -> impl Iterator<Item = &HeldBackend> {
        let is_probed = self.bound != Bound::Unlimited;
        let left = self.backends.iter().filter(|it| it.lost.is_none());
        left.filter(move |it| is_probed && it.is_open && is_probeable(&it.row, transport))
    }

    /// Backends that could be asked, and may not be, because no pod can have their addresses.
    pub fn unprobeable_targets(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        let left = self.backends.iter().filter(|it| it.lost.is_none() && !it.is_open);
        left.filter(move |it| is_probeable(&it.row, transport)).map(|it| it.row.backend())
    }

    /// Notes which of the backends have addresses that pods can have.
    pub(crate) fn set_probeable(hold: &mut Arc<Self>, is_open: impl Fn(SocketAddr) -> bool) {
        let differs = |it: &HeldBackend| it.is_open != is_open(it.row.backend());
        // Readers share it, so it is copied only where it changes.
        if hold.backends.iter().any(differs) {
            let backends = &mut Arc::make_mut(hold).backends;
            backends.iter_mut().for_each(|it| it.is_open = is_open(it.row.backend()));
        }
    }

    /// When the hold ends at the latest, as things stand.
    pub fn deadline(&self, policy: &Policy) -> Option<Uptime> {
        let bound = self.bound_time(policy)?;
        Some(self.bound_reached.map_or(bound, |at| bound.max(at.plus(QUERY_SECONDS))))
    }

    /// When the hold reaches its bound. A backend that is still to be asked has not failed to answer.
    pub(crate) fn bound_time(&self, policy: &Policy) -> Option<Uptime> {
        let limit = match self.bound {
            Bound::Unlimited => return None,
            Bound::MassLoss => policy.mass_loss_limit,
            Bound::Guarded if self.reason == Reason::Hidden => policy.limit.min(HIDDEN_LIMIT),
            Bound::Guarded | Bound::Limit => policy.limit,
        };
        let counted = self.bound_restarted.map_or(self.begun, |anew| anew.max(self.begun));
        let limit = counted.plus(limit);
        let answered = self.backends.iter().any(|it| it.answered);
        let is_silent = self.bound == Bound::Guarded && !answered && !self.awaits_first_probe();
        let unanswered = self.first_probe.map_or(counted, |asked| asked.max(counted)).plus(UNANSWERED_LIMIT);
        Some(if is_silent { limit.min(unanswered) } else { limit })
    }

    /// The bound that the hold has reached just now and that it outlives until its source has answered.
    pub(crate) fn outlived_bound(&self, policy: &Policy, now: Uptime) -> Option<Uptime> {
        self.bound_time(policy).filter(|_| self.bound_reached == Some(now))
    }

    /// Whether the first probe was made and its time is not noted yet.
    fn needs_probe_time(&self) -> bool {
        self.first_probe.is_none() && self.backends.iter().any(|it| it.asked == ProbeState::Done)
    }

    /// Why the hold is over, if it is.
    fn end_reason(&self, policy: &Policy, now: Uptime) -> Option<Reason> {
        if self.rows().next().is_none() {
            return self.backends.iter().rev().find_map(|it| it.lost).or(Some(Reason::HoldExpired));
        }
        self.is_due(policy, now).then_some(Reason::HoldExpired)
    }

    fn is_due(&self, policy: &Policy, now: Uptime) -> bool {
        self.deadline(policy).is_some_and(|until| until <= now)
    }

    /// Makes the hold part of a mass loss, unless it is held for longer or shorter than that by right. `true`: it was
    /// not part of one before.
    pub(crate) fn join_mass_loss(hold: &mut Arc<Self>) -> bool {
        let joins = hold.bound == Bound::Guarded;
        // Readers share it, so it is copied only where it changes.
        if joins {
            let held = Arc::make_mut(hold);
            (held.reason, held.bound) = (Reason::MassLoss, Bound::MassLoss);
        }
        joins
    }

    /// Lets go of the backends that are listed as unusable now, where the evidence decides: the cluster says of these
    /// that they must not get traffic.
    fn drop_unready(hold: &mut Arc<Self>, listed: &[Row]) {
        let is_unready = |it: &HeldBackend| it.lost.is_none() && Row::find(listed, &it.row).is_some();
        let by_evidence = matches!(hold.bound, Bound::Guarded | Bound::MassLoss);
        // Readers share it, so it is copied only where it changes.
        if by_evidence && hold.backends.iter().any(is_unready) {
            let backends = &mut Arc::make_mut(hold).backends;
            backends.iter_mut().filter(|it| is_unready(it)).for_each(|it| it.lost = Some(Reason::AllUnready));
        }
    }

    /// Takes notice of a probe. `true`: something is different now.
    pub(crate) fn record_probe(&mut self, backend: SocketAddr, answer: ProbeAnswer) -> bool {
        let Some(held) = self.backend(backend) else { return false };
        let before = *held;
        held.asked = ProbeState::Done;
        match answer {
            ProbeAnswer::Accepted => (held.answered, held.failures) = (true, 0),
            // A filter answers nothing, so silence proves something only of a backend that did answer.
            ProbeAnswer::Silent if !held.answered => {}
            ProbeAnswer::Refused | ProbeAnswer::Silent => held.failures += 1,
        }
        if held.failures >= FAILURES_MAX {
            held.lost = Some(Reason::ProbesFailed);
        }
        before != *held
    }

    /// Whether it is news that another object lists a held address for another target, be that so or not. `true`: no
    /// object did so before for this backend in this hold, and the hold has a bound.
    pub(crate) fn is_new_claim(&self, backend: SocketAddr, by: Target<'_>) -> bool {
        let held = self.position(backend).and_then(|position| self.backends.get(position));
        let Some(held) = held.filter(|held| held.lost.is_none() && !held.is_claimed) else { return false };
        let is_other = |target: Target<'_>| !target.uid.is_empty() && target.uid != by.uid;
        self.bound != Bound::Unlimited && !by.uid.is_empty() && self.target(&held.row).is_some_and(is_other)
    }

    /// Has the backend probed out of turn.
    pub(crate) fn mark_claimed(&mut self, backend: SocketAddr) {
        if let Some(held) = self.backend(backend) {
            held.is_claimed = true;
        }
    }

    fn position(&self, backend: SocketAddr) -> Option<usize> {
        let wanted = (backend.ip(), backend.port());
        self.backends.binary_search_by(|it| it.row.position().cmp(&wanted)).ok()
    }

    fn backend(&mut self, backend: SocketAddr) -> Option<&mut HeldBackend> {
        let position = self.position(backend)?;
        self.backends.get_mut(position).filter(|it| it.lost.is_none())
    }

    /// The target of the row's endpoint.
    pub(super) fn target(&self, row: &Row) -> Option<Target<'_>> {
        let slice = self.slices.get(usize::from(row.slice))?;
        slice.endpoints.get(usize::from(row.endpoint)).and_then(|endpoint: Endpoint<'_>| endpoint.target)
    }
}

/// What is kept of the lists of one port, so that an empty one can be judged.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListHistory {
    /// The last list that was not empty.
    pub(crate) last: LastList,
    /// That list, while it is held.
    pub(crate) hold: Option<Arc<Hold>>,
    /// Why the last hold ended without a list.
    pub(crate) end_reason: Option<Reason>,
    /// What the evidence said of the empty list when it was judged last; `None`: it has a backend, or never had one.
    pub(crate) evidence: Option<Reason>,
}

impl ListHistory {
    /// Holds nothing any more: the list has a backend again, or no service asks for the port any more.
    pub(crate) fn release(&mut self) {
        (self.hold, self.end_reason, self.evidence) = (None, None, None);
    }

    /// Judges a list that becomes empty, or that is held and might be let go. A list that was empty before stays empty.
    pub(crate) fn judge_empty(&mut self, empty: EmptyList<'_>, case: &HoldContext<'_>) {
        self.last.observe(empty.listed);
        let Some(last) = self.last.rows() else { return };
        let evidence = case.evidence(&self.last, &empty);
        self.evidence = Some(evidence.reason());
        let judgement = match judge(evidence) {
            Judgement::Hold(reason, bound) => Some((reason, bound)),
            Judgement::Refuse => None,
        };
        match (self.hold.take(), judgement) {
            (Some(hold), Some(now)) => self.continue_hold(hold, now, (empty.listed, case)),
            (None, Some(now)) if empty.had_list => {
                let slices = Arc::clone(&case.slices);
                let when = (case.now.uptime(), empty.transport);
                let mut hold = Arc::new(Hold::new(last, slices, when, now));
                Hold::drop_unready(&mut hold, empty.listed);
                self.hold = Some(hold);
            }
            (_, _) => {}
        }
    }

    fn continue_hold(
        &mut self,
        mut hold: Arc<Hold>,
        (reason, bound): (Reason, Bound),
        (listed, case): (&[Row], &HoldContext<'_>),
    ) {
        let is_same = hold.bound == bound || (hold.bound, bound) == (Bound::MassLoss, Bound::Guarded);
        // Readers share it, so it is copied only where it changes.
        let now = case.now.uptime();
        if !is_same {
            let held = Arc::make_mut(&mut hold);
            if held.bound == Bound::Unlimited {
                // Without a bound no backend was ever probed, so the time until now proves nothing.
                held.begun = now;
            }
            (held.reason, held.bound) = (reason, bound);
        }
        Hold::drop_unready(&mut hold, listed);
        if hold.needs_probe_time() {
            Arc::make_mut(&mut hold).first_probe = Some(now);
        }
        if hold.is_due(case.policy, now) {
            match case.liveness {
                SourceLiveness::Silent => Arc::make_mut(&mut hold).bound_restarted = Some(now),
                SourceLiveness::Queried(answered) if answered < hold.bound_time(case.policy) => {
                    Arc::make_mut(&mut hold).bound_reached = Some(now);
                }
                SourceLiveness::Queried(_) | SourceLiveness::Always => {}
            }
        }
        self.end_reason = hold.end_reason(case.policy, now);
        self.hold = self.end_reason.is_none().then_some(hold);
    }

    /// Why no backend is there, as far as the past tells. `None`: the list never had one.
    pub(crate) fn empty_reason(&self) -> Option<Reason> {
        let seen = match self.evidence? {
            seen @ (Reason::AllUnready | Reason::ScaledDown) => seen,
            _ => Reason::Vanished,
        };
        let ended = self.end_reason.filter(|_| seen != Reason::AllUnready);
        self.hold.as_ref().map(|hold| hold.reason).or(ended).or(Some(seen))
    }

    /// Gives the rows that are held and those that are listed, sorted; a backend that is both is shown as it is held. A
    /// list that no frontend uses any more is not held.
    pub(crate) fn merge_held(&self, listed: Vec<Row>, policy: PortPolicy) -> Vec<Row> {
        let Some(hold) = &self.hold else { return listed };
        let used = |row: &Row| row.restrict_lists(policy.cluster_used, policy.local_used);
        let mut rows: Vec<Row> = hold.rows().map(used).chain(listed).collect();
        rows.sort_by_key(|row| (row.address, row.port));
        rows.dedup_by_key(|row| (row.address, row.port));
        rows
    }
}

#[cfg(test)]
mod tests;
