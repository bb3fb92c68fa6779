//! A held list: its backends, their probe results, its deadline, and what ends it early.
//!
//! Invariant: a hold begins with a list that clients had a moment ago, and continues only while the judgement says so
//! and a backend is left. The agent sends the probes.

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

/// A backend is dropped after this many failed probes in a row.
pub const FAILURES_MAX: u8 = 3;

/// Seconds for which a list is held while none of its backends takes a probe. They count from its first probe, or from
/// the start of the hold if no backend is probeable. Longer than an apiserver's restart, and shorter than clients of a
/// refused service expect to wait.
pub const UNANSWERED_LIMIT: i64 = 30;

/// Seconds for which a list is held that a label on its slices hides from proxies. The label states an intent, so an
/// accident is less likely than when endpoints are gone. A minute is enough to remove a wrong label, and half of the
/// time that Kubernetes' own test of that label allows until clients are refused.
pub const HIDDEN_LIMIT: i64 = 60;

/// Seconds after which a list at its bound is judged again, while its source is queried. A healthy apiserver answers
/// within one.
pub const QUERY_SECONDS: i64 = 2;

words! {
    /// The result of a probe.
    pub enum ProbeAnswer {
        Accepted = "accepted",
        /// Its host reports a closed port, or a router reports that the host is unreachable.
        Refused = "refused",
        /// No answer, which a filter between the node and the backend causes as well.
        Silent = "silent",
    }
}

/// One probe of a held backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    pub service: ServiceKey,
    pub port: PortKey,
    pub backend: SocketAddr,
    pub answer: ProbeAnswer,
}

words! {
    /// Whether a backend was probed.
    pub enum ProbeState {
        Due = "due",
        Done = "done",
        /// Never: a probe of it would prove nothing.
        Never = "never",
    }
}

impl ProbeState {
    /// The state of a backend before its first probe.
    fn initial(row: &Row, transport: Transport) -> Self {
        if is_probeable(row, transport) { Self::Due } else { Self::Never }
    }
}

/// A backend of a held list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HeldBackend {
    /// The row when the backend was last in the list.
    pub row: Row,
    pub asked: ProbeState,
    /// It accepted a probe during this hold.
    pub answered: bool,
    /// How many counted probes in a row failed.
    pub failures: u8,
    /// Why it left the list.
    pub lost: Option<Reason>,
    /// A pod can have its address, as far as the node can tell, or the administrator wrote it. A restart decides this
    /// anew, and does not probe the backend before.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub is_open: bool,
    /// Another object lists its address for another target. The agent probes the backend urgently, once in a hold, and
    /// asks the apiserver which pods have the address.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub is_claimed: bool,
}

impl HeldBackend {
    /// A backend without probe results that may not be probed yet.
    pub const fn new(row: Row, asked: ProbeState) -> Self {
        Self { row, asked, answered: false, failures: 0, lost: None, is_open: false, is_claimed: false }
    }
}

/// Whether a probe of this backend can prove anything. Only a TCP connection does, and a backend that was only draining
/// may be gone on purpose.
fn is_probeable(row: &Row, transport: Transport) -> bool {
    transport == Transport::Tcp && row.conditions().ready
}

/// The rows that a hold begins with. If all backends in the list were seen terminating, the hold keeps the weighted-out
/// ones instead.
fn initial_rows(last: &Rows, slices: &[Arc<SliceFacts>]) -> Vec<Row> {
    let mut rows: Vec<Row> = list_members(last, slices).collect();
    let has_ended = |row: &Row| row.was_seen_terminating();
    let is_left_to_others = last.iter().filter(Row::is_chosen).all(|row| has_ended(&row));
    if is_left_to_others && !rows.iter().all(has_ended) {
        rows.retain(|row| !has_ended(row));
    }
    rows
}

/// The rows in a list, and the rows that only their weight kept out: the list would use those once no other is left.
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

/// A held list.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub reason: Reason,
    pub begun: Uptime,
    /// When one of its backends was first probed.
    pub first_probe: Option<Uptime>,
    /// When the bound started again, because it was reached while the source was silent.
    pub bound_restarted: Option<Uptime>,
    /// When the bound was last reached, if the source has not answered since.
    pub bound_reached: Option<Uptime>,
    pub bound: Bound,
    /// The slices in which the backends were last seen; the rows index these.
    pub slices: Arc<[Arc<SliceFacts>]>,
    /// The backends at the start of the hold, in order, with their probe results.
    pub backends: Vec<HeldBackend>,
}

impl Hold {
    /// Holds the last list and its weighted-out rows.
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

    /// The backends still in the list.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.backends.iter().filter(|it| it.lost.is_none()).map(|it| &it.row)
    }

    pub fn awaits_first_probe(&self) -> bool {
        self.backends.iter().any(|it| it.asked == ProbeState::Due && it.lost.is_none())
    }

    /// The backends to probe. An unlimited hold has none, because no result would change it.
    pub fn probe_targets(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        self.probeable_backends(transport).map(|it| it.row.backend())
    }

    /// The backends to probe urgently. A mass loss has none, because no claim ends it.
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

    /// Probeable backends that may not be probed, because no pod can have their addresses.
    pub fn unprobeable_targets(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        let left = self.backends.iter().filter(|it| it.lost.is_none() && !it.is_open);
        left.filter(move |it| is_probeable(&it.row, transport)).map(|it| it.row.backend())
    }

    /// Records which backends have addresses that pods can have.
    pub(crate) fn set_probeable(hold: &mut Arc<Self>, is_open: impl Fn(SocketAddr) -> bool) {
        let differs = |it: &HeldBackend| it.is_open != is_open(it.row.backend());
        // Readers share the hold, so it is copied only if it changes.
        if hold.backends.iter().any(differs) {
            let backends = &mut Arc::make_mut(hold).backends;
            backends.iter_mut().for_each(|it| it.is_open = is_open(it.row.backend()));
        }
    }

    /// The latest end of the hold, as of now.
    pub fn deadline(&self, policy: &Policy) -> Option<Uptime> {
        let bound = self.bound_time(policy)?;
        Some(self.bound_reached.map_or(bound, |at| bound.max(at.plus(QUERY_SECONDS))))
    }

    /// When the hold reaches its bound. A backend that awaits its first probe does not count as silent.
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

    /// The bound that the hold has just reached and outlives until its source answers.
    pub(crate) fn outlived_bound(&self, policy: &Policy, now: Uptime) -> Option<Uptime> {
        self.bound_time(policy).filter(|_| self.bound_reached == Some(now))
    }

    /// Whether the first probe was made and its time is not recorded yet.
    fn needs_probe_time(&self) -> bool {
        self.first_probe.is_none() && self.backends.iter().any(|it| it.asked == ProbeState::Done)
    }

    /// Why the hold ends now, if it does.
    fn end_reason(&self, policy: &Policy, now: Uptime) -> Option<Reason> {
        if self.rows().next().is_none() {
            return self.backends.iter().rev().find_map(|it| it.lost).or(Some(Reason::HoldExpired));
        }
        self.is_due(policy, now).then_some(Reason::HoldExpired)
    }

    fn is_due(&self, policy: &Policy, now: Uptime) -> bool {
        self.deadline(policy).is_some_and(|until| until <= now)
    }

    /// Makes the hold part of a mass loss, unless its own bound overrides that. `true`: it was not part of one before.
    pub(crate) fn join_mass_loss(hold: &mut Arc<Self>) -> bool {
        let joins = hold.bound == Bound::Guarded;
        // Readers share the hold, so it is copied only if it changes.
        if joins {
            let held = Arc::make_mut(hold);
            (held.reason, held.bound) = (Reason::MassLoss, Bound::MassLoss);
        }
        joins
    }

    /// Drops the backends that are listed as unusable now, if the evidence decides: the cluster wants no traffic to
    /// them.
    fn drop_unready(hold: &mut Arc<Self>, listed: &[Row]) {
        let is_unready = |it: &HeldBackend| it.lost.is_none() && Row::find(listed, &it.row).is_some();
        let by_evidence = matches!(hold.bound, Bound::Guarded | Bound::MassLoss);
        // Readers share the hold, so it is copied only if it changes.
        if by_evidence && hold.backends.iter().any(is_unready) {
            let backends = &mut Arc::make_mut(hold).backends;
            backends.iter_mut().filter(|it| is_unready(it)).for_each(|it| it.lost = Some(Reason::AllUnready));
        }
    }

    /// Records a probe. `true`: the hold changed.
    pub(crate) fn record_probe(&mut self, backend: SocketAddr, answer: ProbeAnswer) -> bool {
        let Some(held) = self.backend(backend) else { return false };
        let before = *held;
        held.asked = ProbeState::Done;
        match answer {
            ProbeAnswer::Accepted => (held.answered, held.failures) = (true, 0),
            // A filter drops silently, so silence counts only against a backend that answered before.
            ProbeAnswer::Silent if !held.answered => {}
            ProbeAnswer::Refused | ProbeAnswer::Silent => held.failures += 1,
        }
        if held.failures >= FAILURES_MAX {
            held.lost = Some(Reason::ProbesFailed);
        }
        before != *held
    }

    /// Whether an object newly lists a held address for another target, true or not. `true`: it is the first such
    /// object for this backend in this hold, and the hold has a bound.
    pub(crate) fn is_new_claim(&self, backend: SocketAddr, by: Target<'_>) -> bool {
        let held = self.position(backend).and_then(|position| self.backends.get(position));
        let Some(held) = held.filter(|held| held.lost.is_none() && !held.is_claimed) else { return false };
        let is_other = |target: Target<'_>| !target.uid.is_empty() && target.uid != by.uid;
        self.bound != Bound::Unlimited && !by.uid.is_empty() && self.target(&held.row).is_some_and(is_other)
    }

    /// Has the backend probed urgently.
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

/// The history of one port's lists, by which an empty one is judged.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListHistory {
    /// The last list that was not empty.
    pub(crate) last: LastList,
    /// The hold, while there is one.
    pub(crate) hold: Option<Arc<Hold>>,
    /// Why the last hold ended without a list.
    pub(crate) end_reason: Option<Reason>,
    /// The evidence at the last judgement; `None`: the list has a backend, or never had one.
    pub(crate) evidence: Option<Reason>,
}

impl ListHistory {
    /// Ends the hold: the list has a backend again, or the service dropped the port.
    pub(crate) fn release(&mut self) {
        (self.hold, self.end_reason, self.evidence) = (None, None, None);
    }

    /// Judges a list that becomes empty, or one with a hold that may end. A list that was empty before stays empty.
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
        // Readers share the hold, so it is copied only if it changes.
        let now = case.now.uptime();
        if !is_same {
            let held = Arc::make_mut(&mut hold);
            if held.bound == Bound::Unlimited {
                // An unlimited hold probes no backend, so the time until now proves nothing.
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

    /// Why the list has no backend, by its history. `None`: it never had one.
    pub(crate) fn empty_reason(&self) -> Option<Reason> {
        let seen = match self.evidence? {
            seen @ (Reason::AllUnready | Reason::ScaledDown) => seen,
            _ => Reason::Vanished,
        };
        let ended = self.end_reason.filter(|_| seen != Reason::AllUnready);
        self.hold.as_ref().map(|hold| hold.reason).or(ended).or(Some(seen))
    }

    /// The held rows merged with the listed ones, sorted; a held row replaces a listed one. Lists that no frontend uses
    /// any more are not held.
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
