//! What becomes of a list that would become empty: refused, or held, by the evidence.
//!
//! Invariant: pure. The same evidence gives the same judgement, and every hold has a bound, but for the service that is the
//! node's own way to the apiserver. Deliberately absent: probing, which the shell does, and losses of many services at
//! once, which the world counts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::facts::{Endpoint, SliceFacts, Target};
use crate::keys::{PortKey, ServiceKey, Transport};
use crate::list::{Row, Rows};
use crate::snapshot::Reason;
use crate::time::Uptime;

/// So many probes in a row that nobody took drop a backend.
pub const FAILURES_MAX: u8 = 3;

/// Seconds for which a list is held none of whose backends took a probe, from its first probe on. Longer than a restart of an
/// apiserver, and shorter than the time within which clients of a rejected service expect to be refused.
pub const UNANSWERED_LIMIT: i64 = 30;

/// Seconds after an interruption of a source in which a loss may come of it.
pub const RESYNC_WINDOW: i64 = 60;

/// Losses up to this number are no mass loss, however few services there are.
pub const MASS_LOSS_LEAST: usize = 3;

/// What happens when a list of backends would become empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnEmpty {
    /// Decide by the evidence: what was lost by mistake is held, what was scaled down is refused.
    #[default]
    Auto,
    /// Refuse at once.
    Refuse,
    /// Hold the last list, bounded and probed.
    Hold,
    /// Let the packet leave untouched; for load-balancer and external addresses only.
    Pass,
}

impl OnEmpty {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Refuse, Self::Hold, Self::Pass];

    /// The word in the configuration and in annotations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Refuse => "refuse",
            Self::Hold => "hold",
            Self::Pass => "pass",
        }
    }

    /// The setting that this word names.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.as_str() == word)
    }
}

/// The numbers of `[hold]`; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The setting of every service that has none of its own.
    pub on_empty: OnEmpty,
    /// How long a list is held.
    pub limit: i64,
    /// Which share of the services must be losing everything to make it a mass loss, in millionths.
    pub mass_loss_share: u32,
    /// Within which time.
    pub mass_loss_window: i64,
    /// How long a list is held in a mass loss.
    pub mass_loss_limit: i64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            on_empty: OnEmpty::Auto,
            limit: 120,
            mass_loss_share: 250_000,
            mass_loss_window: 30,
            mass_loss_limit: 600,
        }
    }
}

impl Policy {
    /// Whether it is a mass loss that so many of so many services with a list lost theirs.
    pub fn is_mass_loss(&self, lost: usize, populated: usize) -> bool {
        let share = populated as u64 * u64::from(self.mass_loss_share) / 1_000_000;
        lost > MASS_LOSS_LEAST && lost as u64 > share
    }
}

/// What is known when a list has nobody any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The service's own setting, if it has one that can be understood.
    pub own: Option<OnEmpty>,
    /// The setting of all others.
    pub fallback: OnEmpty,
    /// The node reaches the apiserver by it.
    pub is_control: bool,
    /// Endpoints are listed, and none is usable.
    pub is_listed: bool,
    /// Every member of the last list was seen terminating.
    pub is_scaled_down: bool,
    /// The source was interrupted a short time ago.
    pub is_resync: bool,
}

/// What the evidence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// New connections are refused at once.
    Refuse,
    /// They go to the last list, for this reason and for so long.
    Hold(Reason, Bound),
}

impl Judgement {
    /// Every reason for which a list is held: those that [`judge`] gives, and that of many losses at once.
    pub const REASONS: [Reason; 6] = [
        Reason::Vanished,
        Reason::Resync,
        Reason::MassLoss,
        Reason::Control,
        Reason::AllUnready,
        Reason::ScaledDown,
    ];
}

/// For how long a list is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// [`Policy::limit`], and [`UNANSWERED_LIMIT`] if all backends were probed and none took it.
    Guarded,
    /// [`Policy::limit`], because the service asks for it.
    Limit,
    /// [`Policy::mass_loss_limit`].
    MassLoss,
    /// As long as it takes.
    Unlimited,
}

impl Bound {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Guarded, Self::Limit, Self::MassLoss, Self::Unlimited];

    /// The one spelling in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guarded => "guarded",
            Self::Limit => "limit",
            Self::MassLoss => "mass-loss",
            Self::Unlimited => "unlimited",
        }
    }
}

/// Judges a list that has nobody any more.
pub fn judge(evidence: Evidence) -> Judgement {
    let seen = classify(evidence);
    let is_explicit = matches!(evidence.own, Some(OnEmpty::Refuse | OnEmpty::Hold));
    if evidence.is_control && !is_explicit {
        return Judgement::Hold(Reason::Control, Bound::Unlimited);
    }
    match (evidence.own.unwrap_or(evidence.fallback), seen) {
        (OnEmpty::Refuse, _) => Judgement::Refuse,
        (OnEmpty::Hold, reason) => Judgement::Hold(reason, Bound::Limit),
        (OnEmpty::Auto | OnEmpty::Pass, Reason::AllUnready | Reason::ScaledDown) => Judgement::Refuse,
        (OnEmpty::Auto | OnEmpty::Pass, lost) => Judgement::Hold(lost, Bound::Guarded),
    }
}

fn classify(evidence: Evidence) -> Reason {
    if evidence.is_listed {
        Reason::AllUnready
    } else if evidence.is_scaled_down {
        Reason::ScaledDown
    } else if evidence.is_resync {
        Reason::Resync
    } else {
        Reason::Vanished
    }
}

/// How a backend met a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It accepted the connection.
    Accepted,
    /// Its host says that nobody is there.
    Refused,
    /// Nothing came back, which a filter between the node and the backend can do as well.
    Silent,
}

impl Answer {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Refused, Self::Silent];

    /// The one spelling in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Silent => "silent",
        }
    }
}

/// One probe of a held backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Whose list.
    pub service: ServiceKey,
    /// Which port.
    pub port: PortKey,
    /// Which backend.
    pub backend: SocketAddr,
    /// What came of it.
    pub answer: Answer,
}

/// Whether a backend was probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Not yet.
    Due,
    /// At least once.
    Done,
    /// Nor will it be: a probe of it would prove nothing.
    Never,
}

impl Asked {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Due, Self::Done, Self::Never];

    /// Before the first probe.
    pub fn before(row: &Row, transport: Transport) -> Self {
        if can_be_asked(row, transport) { Self::Due } else { Self::Never }
    }

    /// The one spelling in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Done => "done",
            Self::Never => "never",
        }
    }
}

/// A backend of a held list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBackend {
    /// As it was last seen in the list.
    pub row: Row,
    /// Whether it was probed.
    pub asked: Asked,
    /// It accepted a probe during this hold.
    pub answered: bool,
    /// How many probes in a row it did not accept since, where those count.
    pub failures: u8,
    /// Why it is no longer in the list.
    pub lost: Option<Reason>,
}

/// A connection must prove something, which it does for TCP; and what was only draining may be gone by right.
fn can_be_asked(row: &Row, transport: Transport) -> bool {
    transport == Transport::Tcp && row.conditions().ready
}

/// A list that is held.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// Why.
    pub reason: Reason,
    /// Since when.
    pub begun: Uptime,
    /// When one of its backends was probed first.
    pub asked: Option<Uptime>,
    /// For how long.
    pub bound: Bound,
    /// The slices that the backends were last seen in; their rows point into these.
    pub slices: Arc<[Arc<SliceFacts>]>,
    /// The last list, with what probes found.
    pub backends: Vec<HeldBackend>,
}

impl Hold {
    /// Holds the chosen ones of the rows of a last list.
    pub(crate) fn new(
        last: &Rows,
        slices: Arc<[Arc<SliceFacts>]>,
        (now, transport): (Uptime, Transport),
        (reason, bound): (Reason, Bound),
    ) -> Self {
        let chosen = last.all().iter().filter(|row| row.is_chosen());
        let backend = |row: &Row| HeldBackend {
            row: row.held(),
            asked: Asked::before(row, transport),
            answered: false,
            failures: 0,
            lost: None,
        };
        Self { reason, begun: now, asked: None, bound, slices, backends: chosen.map(backend).collect() }
    }

    /// The backends that are still in the list.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.backends.iter().filter(|it| it.lost.is_none()).map(|it| &it.row)
    }

    /// Whether somebody is still to be probed for the first time.
    pub fn waits(&self) -> bool {
        self.backends.iter().any(|it| it.asked == Asked::Due && it.lost.is_none())
    }

    /// Whom to probe: nobody of a list that is never let go, because nothing must follow.
    pub fn probes(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        let is_probed = self.bound != Bound::Unlimited;
        self.rows().filter(move |row| is_probed && can_be_asked(row, transport)).map(Row::backend)
    }

    /// When it ends at the latest, as things stand. Whoever was not asked has not failed to answer.
    pub fn until(&self, policy: &Policy) -> Option<Uptime> {
        let limit = match self.bound {
            Bound::Unlimited => return None,
            Bound::MassLoss => policy.mass_loss_limit,
            Bound::Guarded | Bound::Limit => policy.limit,
        };
        let limit = self.begun.plus(limit);
        let answered = self.backends.iter().any(|it| it.answered);
        let is_silent = self.bound == Bound::Guarded && !answered && !self.waits();
        let unanswered = self.asked.unwrap_or(self.begun).plus(UNANSWERED_LIMIT);
        Some(if is_silent { limit.min(unanswered) } else { limit })
    }

    /// Whether the first probe was made and nobody has noted when.
    pub(crate) fn is_asked_now(&self) -> bool {
        self.asked.is_none() && self.backends.iter().any(|it| it.asked == Asked::Done)
    }

    /// Why it is over, if it is.
    pub(crate) fn ends(&self, policy: &Policy, now: Uptime) -> Option<Reason> {
        if self.rows().next().is_none() {
            return self.backends.iter().rev().find_map(|it| it.lost).or(Some(Reason::HoldExpired));
        }
        self.until(policy).is_some_and(|until| until <= now).then_some(Reason::HoldExpired)
    }

    /// Takes notice of a probe. `true`: something is different now.
    pub(crate) fn observe(&mut self, backend: SocketAddr, answer: Answer) -> bool {
        let Some(held) = self.backend(backend) else { return false };
        let before = *held;
        held.asked = Asked::Done;
        match answer {
            Answer::Accepted => (held.answered, held.failures) = (true, 0),
            // A filter answers nothing, so silence proves something only of one who did answer.
            Answer::Silent if !held.answered => {}
            Answer::Refused | Answer::Silent => held.failures += 1,
        }
        if held.failures >= FAILURES_MAX {
            held.lost = Some(Reason::ProbesFailed);
        }
        before != *held
    }

    /// Somebody else has the address now. `true`: that one was in the list.
    pub(crate) fn give_up(&mut self, backend: SocketAddr, by: Target<'_>) -> bool {
        let target = self.backend(backend).map(|held| held.row).and_then(|row| self.target(&row));
        let is_other = target.is_some_and(|target| !target.uid.is_empty() && target.uid != by.uid);
        let lost = self.backend(backend).filter(|_| is_other && !by.uid.is_empty());
        lost.map(|held| held.lost = Some(Reason::Claimed)).is_some()
    }

    fn backend(&mut self, backend: SocketAddr) -> Option<&mut HeldBackend> {
        let wanted = (backend.ip(), backend.port());
        let place = self.backends.binary_search_by(|it| it.row.place().cmp(&wanted)).ok()?;
        self.backends.get_mut(place).filter(|it| it.lost.is_none())
    }

    /// What the row's endpoint was for.
    fn target(&self, row: &Row) -> Option<Target<'_>> {
        let slice = self.slices.get(usize::from(row.slice))?;
        slice.endpoints.get(usize::from(row.endpoint)).and_then(|endpoint: Endpoint<'_>| endpoint.target)
    }
}

#[cfg(test)]
mod tests;
