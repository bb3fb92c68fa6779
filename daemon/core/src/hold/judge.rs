//! The judgement of a list that has no backend any more: refused, or held, why and for how long.
//!
//! Invariant: pure. The same evidence gives the same judgement, and every hold has a bound, but for the service that is
//! the node's own way to the apiserver. Losses of many services at once are the ledger's ([`super::ledger`]).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::net::IpAddr;

use crate::drains::Drains;
use crate::facts::{Settings, SliceFacts};
use crate::keys::{ServiceKey, Source, Transport};
use crate::limits;
use crate::list::{LastList, Row, Rows};
use crate::snapshot::Reason;
use crate::time::{ClockReading, Uptime};
use crate::words;
use crate::work;

/// For so many seconds after an interruption of a source, a loss may come of that interruption.
pub const RESYNC_WINDOW: i64 = 60;

/// Losses up to this number are no mass loss, however few services there are.
pub const MASS_LOSS_MIN: usize = 3;

words! {
    /// What happens when a list of backends would become empty.
    #[derive(Default)]
    pub enum OnEmpty {
        /// Decide by the evidence: what was lost by mistake is held, what was scaled down is refused.
        #[default]
        Auto = "auto",
        /// Refuse at once.
        Refuse = "refuse",
        /// Hold the last list, bounded and probed.
        Hold = "hold",
        /// Let the packet leave untouched; for load-balancer and external addresses only.
        Pass = "pass",
    }
}

/// The numbers of `[hold]`; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The setting of every service that has none of its own.
    pub on_empty: OnEmpty,
    /// How long a list is held.
    pub limit: i64,
    /// Which share of the services must have lost their lists to make it a mass loss, in millionths.
    pub mass_loss_share: u32,
    /// Within how many seconds that has to happen.
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
    /// Whether it is a mass loss when `lost` of `populated` services with a list lost theirs.
    pub fn is_mass_loss(&self, lost: usize, populated: usize) -> bool {
        let share = populated as u64 * u64::from(self.mass_loss_share) / 1_000_000;
        lost > MASS_LOSS_MIN && lost as u64 > share
    }
}

/// What is known when a list has no backend any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The service's own setting, if it has one that can be understood.
    pub own: Option<OnEmpty>,
    /// The setting for services that have none of their own.
    pub fallback: OnEmpty,
    /// The node reaches the apiserver by this service.
    pub is_control: bool,
    /// Endpoints are listed, and each member of the last list is listed as unusable now or was seen terminating. An
    /// unready endpoint that was no member says nothing about those that went.
    pub is_unready: bool,
    /// The traffic policy is Local, and an endpoint on another node is usable.
    pub has_remote_backend: bool,
    /// Every member of the last list was seen terminating.
    pub is_scaled_down: bool,
    /// A member of the last list stands in a slice with the label that keeps proxies away.
    pub is_hidden: bool,
    /// The source was interrupted a short time ago.
    pub is_resync: bool,
}

impl Evidence {
    /// What became of the backends of the list.
    pub(super) fn reason(self) -> Reason {
        classify(self)
    }
}

/// What the evidence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// New connections are refused at once.
    Refuse,
    /// New connections go to the last list, for this reason and for so long.
    Hold(Reason, Bound),
}

impl Judgement {
    /// Every reason for which a list is held: those that [`judge`] gives, and that of many losses at once.
    pub const REASONS: [Reason; 7] = [
        Reason::Vanished,
        Reason::Hidden,
        Reason::Resync,
        Reason::MassLoss,
        Reason::Control,
        Reason::AllUnready,
        Reason::ScaledDown,
    ];
}

words! {
    /// For how long a list is held.
    pub enum Bound {
        /// [`Policy::parse_limit`], or [`super::HIDDEN_LIMIT`] if a label hides it, or [`super::UNANSWERED_LIMIT`] if no
        /// backend took a probe and none is still to be asked.
        Guarded = "guarded",
        /// [`Policy::parse_limit`], because the service asks for it.
        Limit = "limit",
        /// As long as [`Policy::mass_loss_limit`] says.
        MassLoss = "mass-loss",
        /// As long as it takes.
        Unlimited = "unlimited",
    }
}

/// Judges a list that has no backend any more.
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
        (OnEmpty::Auto | OnEmpty::Pass, _) if evidence.has_remote_backend => Judgement::Refuse,
        (OnEmpty::Auto | OnEmpty::Pass, lost) => Judgement::Hold(lost, Bound::Guarded),
    }
}

fn classify(evidence: Evidence) -> Reason {
    if evidence.is_unready {
        Reason::AllUnready
    } else if evidence.is_scaled_down {
        Reason::ScaledDown
    } else if evidence.is_hidden {
        Reason::Hidden
    } else if evidence.is_resync {
        Reason::Resync
    } else {
        Reason::Vanished
    }
}

/// The addresses in slices that a label keeps proxies away from, looked for when a list is judged first.
#[derive(Debug, Default)]
pub(crate) struct HiddenAddresses {
    slices: Vec<Arc<SliceFacts>>,
    addresses: OnceCell<Vec<IpAddr>>,
}

impl HiddenAddresses {
    /// The addresses of a service, as many as a service may have rows.
    pub(crate) fn from_slices(slices: &[Arc<SliceFacts>]) -> Self {
        let slices = slices.iter().filter(|slice| slice.headless).cloned().collect();
        Self { slices, addresses: OnceCell::new() }
    }

    /// How many of these addresses a decision looks at.
    pub(crate) fn lookup_cost(slices: &[Arc<SliceFacts>]) -> usize {
        let each = slices.iter().filter(|slice| slice.headless).map(|slice| slice.endpoints.len());
        each.sum::<usize>().min(limits::ROWS_PER_SERVICE_MAX)
    }

    /// The addresses in their order.
    fn addresses(&self) -> &[IpAddr] {
        self.addresses.get_or_init(|| {
            let each = self.slices.iter().flat_map(|slice| slice.endpoints.iter_brief());
            let mut addresses: Vec<_> =
                each.map(|(address, _)| address).take(limits::ROWS_PER_SERVICE_MAX).collect();
            work::count_work(addresses.len());
            addresses.sort_unstable();
            addresses
        })
    }
}

/// The lists of a port that have no backend any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmptyList<'a> {
    /// The endpoints that are listed for the port, in their order. None of them is chosen.
    pub(crate) listed: &'a [Row],
    /// The port's protocol.
    pub(crate) transport: Transport,
    /// The lists had a backend until now, held or not.
    pub(crate) had_list: bool,
    /// The traffic policy is Local, and an endpoint on another node is usable.
    pub(crate) has_remote_backend: bool,
}

/// Whether a source can tell that the endpoints of a held list are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceLiveness {
    /// Its files are on this node, so whatever it has to tell has come.
    Always,
    /// It cannot, or could not until a moment ago.
    Silent,
    /// It seems well, and answered a question that was put at this time; none: no answer is young enough.
    Queried(Option<Uptime>),
}

/// What one service's empty lists are judged by, beside the lists themselves.
pub(crate) struct HoldContext<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) own: Option<OnEmpty>,
    pub(crate) is_resync: bool,
    /// Whether the source could tell that the endpoints are back.
    pub(crate) liveness: SourceLiveness,
    pub(crate) now: ClockReading,
    /// The service's slices, as they were when its last lists were made.
    pub(crate) slices: Arc<[Arc<SliceFacts>]>,
    /// Addresses of endpoints in slices that a label keeps proxies away from now.
    pub(crate) hidden: HiddenAddresses,
    pub(crate) key: ServiceKey,
    pub(crate) settings: &'a Settings,
    /// The drains in force.
    pub(crate) drains: &'a Drains,
}

impl HoldContext<'_> {
    /// What is known of a list that has no backend any more, by the last list and by the endpoints that are listed now.
    pub(super) fn evidence(&self, last: &LastList, empty: &EmptyList<'_>) -> Evidence {
        Evidence {
            own: self.own,
            fallback: self.policy.on_empty,
            is_control: last.rows().is_some_and(|last| self.is_control(last)),
            is_unready: !empty.listed.is_empty() && last.is_accounted_for(empty.listed),
            has_remote_backend: empty.has_remote_backend,
            is_scaled_down: last.was_scaled_down(),
            is_hidden: last.has_member_in(self.hidden.addresses()),
            is_resync: self.is_resync,
        }
    }

    /// Whether the node reaches the apiserver by this list.
    fn is_control(&self, last: &Rows) -> bool {
        let is_named = self.key.name.namespace() == "default" && self.key.name.name() == "kubernetes";
        let is_own = is_named && self.key.source != Source::ClusterSet;
        let mut members = last.iter().filter(|row| last.is_member(row));
        is_own || members.any(|row| self.settings.is_apiserver(&row.backend()))
    }
}

#[cfg(test)]
mod tests;
