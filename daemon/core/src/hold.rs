//! Holding: the whole policy of what becomes of a list that would become empty.
//!
//! **The judgement.** Each service decides for itself, at the moment when a list that had a backend would have none.
//! [`check_count()`] looks at the evidence alone: what the service asks for, whether the node reaches the apiserver by it,
//! what became of each backend of the list, whether the source was interrupted. A list is refused at once if each of
//! its backends was seen terminating or is listed as unready itself; one that went without such a sign is held; neither
//! a label that only controllers write nor another endpoint that is unready is a sign. A service's own `refuse` or
//! `hold` wins over the evidence. When more services than a share of all lose their lists within a short time, in more
//! than one namespace or in all of one, the world judges them once more, together: that is a mass loss.
//!
//! **What is kept.** Of each port its last list that was not empty, with the members that were seen terminating since;
//! while it is held, that list with what probes found of each backend; afterwards, why the hold ended. A hold writes
//! nothing to the maps when it begins, because the old list is what they have. It is kept over restarts and goes along
//! with a renamed port.
//!
//! **When it ends.** When the service has a list again; when the evidence turns to intent; when no backend is left,
//! because each failed its probes; and at its bound: [`Policy::parse_limit`], [`UNANSWERED_LIMIT`] where none took a probe
//! and none is still to be asked, as with UDP, [`HIDDEN_LIMIT`] where a label hides the list from proxies,
//! [`Policy::mass_loss_limit`] in a mass loss. A bound that is reached while the source of the service cannot tell
//! whether the endpoints are back counts from then on anew: what takes an apiserver away also empties slices, and what
//! mends them is not heard. A source that seems well is asked before the list goes, because an apiserver that hangs
//! and a process that stood still look well for a while: the list goes with the answer, and stays without one. Only the
//! node's own way to the apiserver is held without limit. Another object that lists a held address proves nothing: its
//! writer may be mistaken, or lie. It has the backend probed out of turn, once in a hold, and the apiserver asked whose
//! the address is, and no more. If a pod runs there and the one of the held endpoint does not, the address leaves the
//! hold at once; the other addresses stay.
//!
//! **What is probed.** Of what the apiserver's objects list, only addresses that pods can have: a tenant's slice must
//! not make a node probe the hosts of other nodes. The others are held for their bound without being asked.
//!
//! | room | owns |
//! |---|---|
//! | `judge` | the pure decision and its evidence |
//! | `held` | a list that is held, its probes and deadlines |
//! | `ledger` | which holds are in force, and what may end them |
//! | `pods` | whose a held address is now |
//! | `losses` | what the services of each namespace lost lately, and whether that is a mass loss |
//! | `silence` | which sources cannot tell now whether endpoints are back, and what they answered |
//!
//! Invariant: pure, and every hold has a bound once its source is heard, except that of the node's own way to the
//! apiserver. The shell probes, and has sources answer; the world marks services dirty, with a cause for each.

mod held_list;
mod judge;
mod ledger;
mod losses;
mod pods;
mod silence;

pub(crate) use held_list::ListHistory;
pub use held_list::{
    FAILURES_MAX, HIDDEN_LIMIT, HeldBackend, Hold, ProbeAnswer, ProbeResult, ProbeState, QUERY_SECONDS,
    UNANSWERED_LIMIT,
};
pub use judge::{Bound, Evidence, Judgement, MASS_LOSS_MIN, OnEmpty, Policy, RESYNC_WINDOW, judge};
pub(crate) use judge::{EmptyList, HiddenAddresses, HoldContext};
pub(crate) use ledger::Ledger;
pub(crate) use losses::{ListPresence, MassLoss};
pub use pods::PodsAt;
