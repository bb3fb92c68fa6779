//! Judges a list without a backend: refused, or held for which reason and how long.
//!
//! Invariant: pure. The same evidence gives the same judgement, and every hold has a bound, except that of the node's
//! own path to the apiserver. The ledger judges losses of many services at once ([`super::ledger`]).

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

/// For this many seconds after a source's interruption, a loss may be its consequence.
pub const RESYNC_WINDOW: i64 = 60;

/// Losses up to this number are no mass loss, however few services there are.
pub const MASS_LOSS_MIN: usize = 3;

words! {
    /// What happens when a list of backends would become empty.
    #[derive(Default)]
    pub enum OnEmpty {
        /// Decide by the evidence: hold what was lost by mistake, refuse what was scaled down.
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
    /// The setting of services without their own.
    pub on_empty: OnEmpty,
    /// How long a list is held.
    pub limit: i64,
    /// The share of the services that must lose their lists to make a mass loss, in millionths.
    pub mass_loss_share: u32,
    /// The window for these losses, in seconds.
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
    /// Whether it is a mass loss if `lost` of `populated` services lost their lists.
    pub fn is_mass_loss(&self, lost: usize, populated: usize) -> bool {
        let share = populated as u64 * u64::from(self.mass_loss_share) / 1_000_000;
        lost > MASS_LOSS_MIN && lost as u64 > share
    }
}

/// The evidence when a list has no backend any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The service's own setting, if it has a valid one.
    pub own: Option<OnEmpty>,
    /// The setting of services without their own.
    pub fallback: OnEmpty,
    /// The node reaches the apiserver through this service.
    pub is_control: bool,
    /// Endpoints are listed, and each member of the last list is listed as unusable now or was seen terminating. An
    /// unready endpoint that was no member does not explain a lost one.
    pub is_unready: bool,
    /// The traffic policy is Local, and an endpoint on another node is usable.
    pub has_remote_backend: bool,
    /// Every member of the last list was seen terminating.
    pub is_scaled_down: bool,
    /// A slice with the label that hides it from proxies lists a member of the last list.
    pub is_hidden: bool,
    /// The source was interrupted recently.
    pub is_resync: bool,
}

impl Evidence {
    /// What happened to the backends of the list.
    pub(super) fn reason(self) -> Reason {
        classify(self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// New connections are refused at once.
    Refuse,
    /// New connections go to the last list, for this reason and up to this bound.
    Hold(Reason, Bound),
}

impl Judgement {
    /// Every reason to hold a list: those that [`judge`] returns, and a mass loss.
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
        /// [`Policy::limit`], or [`super::HIDDEN_LIMIT`] if a label hides it, or [`super::UNANSWERED_LIMIT`] if no
        /// backend took a probe and none awaits one.
        Guarded = "guarded",
        /// [`Policy::limit`], because the service asks for it.
        Limit = "limit",
        MassLoss = "mass-loss",
        Unlimited = "unlimited",
    }
}

/// Judges a list without a backend.
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

/// The addresses in slices with the label that hides them from proxies, collected when a list is first judged.
#[derive(Debug, Default)]
pub(crate) struct HiddenAddresses {
    slices: Vec<Arc<SliceFacts>>,
    addresses: OnceCell<Vec<IpAddr>>,
}

impl HiddenAddresses {
    /// The hidden addresses of a service, at most as many as a service may have rows.
    pub(crate) fn from_slices(slices: &[Arc<SliceFacts>]) -> Self {
        let slices = slices.iter().filter(|slice| slice.headless).cloned().collect();
        Self { slices, addresses: OnceCell::new() }
    }

    /// How many of these addresses a decision looks up.
    pub(crate) fn lookup_cost(slices: &[Arc<SliceFacts>]) -> usize {
        let each = slices.iter().filter(|slice| slice.headless).map(|slice| slice.endpoints.len());
        each.sum::<usize>().min(limits::ROWS_PER_SERVICE_MAX)
    }

    /// The addresses, sorted.
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

/// The lists of a port without a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmptyList<'a> {
    /// The endpoints listed for the port, in order; none is chosen.
    pub(crate) listed: &'a [Row],
    pub(crate) transport: Transport,
    /// The lists had a backend before, held or not.
    pub(crate) had_list: bool,
    /// The traffic policy is Local, and an endpoint on another node is usable.
    pub(crate) has_remote_backend: bool,
}

/// Whether a source can report that the endpoints of a held list are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceLiveness {
    /// Its files are on this node, so all of its reports have arrived.
    Always,
    /// It cannot, or could not until a moment ago.
    Silent,
    /// It seems healthy, and answered a query of this time; `None`: it has no recent answer.
    Queried(Option<Uptime>),
}

/// The context in which the empty lists of one service are judged.
pub(crate) struct HoldContext<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) own: Option<OnEmpty>,
    pub(crate) is_resync: bool,
    /// Whether the source could report that the endpoints are back.
    pub(crate) liveness: SourceLiveness,
    pub(crate) now: ClockReading,
    /// The service's slices when its last lists were made.
    pub(crate) slices: Arc<[Arc<SliceFacts>]>,
    /// The addresses in slices that a label hides from proxies now.
    pub(crate) hidden: HiddenAddresses,
    pub(crate) key: ServiceKey,
    pub(crate) settings: &'a Settings,
    pub(crate) drains: &'a Drains,
}

impl HoldContext<'_> {
    /// The evidence about a list without a backend, from the last list and the endpoints listed now.
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

    /// Whether the node reaches the apiserver through this list.
    fn is_control(&self, last: &Rows) -> bool {
        let is_named = self.key.name.namespace() == "default" && self.key.name.name() == "kubernetes";
        let is_own = is_named && self.key.source != Source::ClusterSet;
        let mut members = last.iter().filter(|row| last.is_member(row));
        is_own || members.any(|row| self.settings.is_apiserver(&row.backend()))
    }
}

#[cfg(test)]
mod tests;
